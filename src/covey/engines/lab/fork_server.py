"""The fork server of all sites of a lab, as all hosts are on one machine: a fork of the one that has imported torch.

A site enters its group of processes and its network before it does anything else. The fork server tells how each
ends, and when its launcher is gone, however it died, it takes them all with it.
"""

from __future__ import annotations

import ctypes
import gc
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from covey.decoding import WireFormat
from covey.engines.cluster import site
from covey.engines.cluster.site_messages import SiteConfig
from covey.engines.lab.name import NETNS
from covey.engines.process.child_process import Launcher, entitle, forked_child, read, write
from covey.engines.process.forking.fork_server import import_all
from covey.engines.process.forking.role_processes import forked
from covey.errors import PeerLost

CLONE_NEWNET = 0x40000000


class Invitation(msgspec.Struct, frozen=True, kw_only=True):
    """The config of a site, and where the site runs."""

    config: SiteConfig
    host: str
    namespace: str
    group: str = ""


class SiteEnded(msgspec.Struct, frozen=True):
    """A site has ended."""

    host: str
    status: int
    incarnation: int = 0  # which of the sites that this host has had


_invitations: WireFormat[list[Invitation]] = WireFormat("list of invitations", list[Invitation])
ends: WireFormat[SiteEnded] = WireFormat("word of the fork server of a lab", SiteEnded)


def main(handle: int, directory: str, warm: str, launcher: Launcher) -> None:
    """Fork a site for each invitation, also for those that come later; stay until the launcher goes."""
    line = socket.socket(fileno=handle)
    entitle("covey: fork server")
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # Linux wakes the stopped ones of a dead launcher with it
    import_all(warm)
    invitations = _invitations.read(read(line), "the launcher")
    handed = read(line)
    if hung_up(line):
        return  # the run was over before torch was imported, and its networks are gone
    gc.freeze()
    sites = {_fork(line, invitation, handed): invitation for invitation in invitations}
    try:
        _watch(line, sites, handed, launcher)
    finally:
        for pid in sites:
            os.kill(pid, signal.SIGKILL)  # its fork server sees it, and ends its roles
            os.waitpid(pid, 0)


def hung_up(line: socket.socket) -> bool:
    """Whether the other end is closed."""
    poll = select.poll()
    poll.register(line, 0)  # reports only a hang-up
    return bool(poll.poll(0))


def _fork(line: socket.socket, invitation: Invitation, handed: bytes) -> int:
    def work() -> None:
        if invitation.group:
            (Path(invitation.group) / "cgroup.procs").write_text(str(os.getpid()))
        enter(invitation.namespace)
        try:
            site.host(invitation.config, handed, forked)
        except PeerLost as lost:
            print(f"covey: the site on {invitation.host} ends: {lost}", file=sys.stderr)
            raise SystemExit(1) from None

    return forked_child(line, f"covey: site {invitation.host}", work)


def enter(namespace: str) -> None:
    """From now on this process has the network of that namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with (NETNS / namespace).open() as file:
        if libc.setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")


def _watch(line: socket.socket, sites: dict[int, Invitation], handed: bytes, launcher: Launcher) -> None:
    handles = {os.pidfd_open(pid): pid for pid in sites}
    poll = select.poll()
    poll.register(line, select.POLLIN | select.POLLHUP)
    for handle in (*handles, *launcher.handles):
        poll.register(handle, select.POLLIN)
    while True:
        for ready, _ in poll.poll():
            if ready == line.fileno():
                for invitation in _invitations.read(read(line), "the launcher"):
                    sites[pid := _fork(line, invitation, handed)] = invitation
                    handles[handle := os.pidfd_open(pid)] = pid
                    poll.register(handle, select.POLLIN)
                continue
            if ready not in handles:
                return
            poll.unregister(ready)
            pid = handles.pop(ready)
            os.close(ready)
            _, status = os.waitpid(pid, 0)
            ended = sites.pop(pid)
            with suppress(OSError):
                write(line, msgspec.msgpack.encode(SiteEnded(ended.host, status, ended.config.incarnation)))

