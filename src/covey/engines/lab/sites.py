"""Sites on the hosts of a lab: each in its namespace and its group, its roles on the shaped link."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from covey.engines.cluster.places import Places
from covey.engines.cluster.site_messages import SiteConfig
from covey.engines.lab import fork_server, name, networks, quota, running
from covey.engines.lab.fork_server import Invitation, ends
from covey.engines.lab.running import Lab
from covey.engines.lab.settings import LabSettings
from covey.engines.process.child_process import read, write
from covey.engines.process.forking.fork_server_client import forked_by_server
from covey.engines.process.forking.role_processes import describe
from covey.engines.process.forking.run_fork_server import RunForkServer
from covey.errors import PeerLost

PATIENCE, HASTE = 8.0, 1.0  # seconds that sites have to leave by themselves, after a good run and after a bad one


class LabPlaces(Places):
    """A lab, from its making to its end."""

    separate = True  # its networks stand for machines

    def __init__(self, settings: LabSettings) -> None:
        self.settings, self.hosts = settings, settings.hosts
        self.lab: Lab | None = None
        self.groups: dict[str, Path] = {}
        self.parent: RunForkServer | None = None  # of all sites
        self.line: socket.socket | None = None
        self.living: dict[str, int] = {}  # which site each host has, of those that it has had

    def pids(self) -> list[int]:
        return [self.parent.pid] if self.parent else []

    def open(self, patience: float) -> list[str]:
        with running.locked():
            running.reap()
            nets = networks.free()
            self.lab = Lab(name.new())
            networks.lay(self.lab.name, self.settings.rates, nets)
        if any(share is not None for share in self.settings.cpus):
            self.groups = quota.make(str(self.lab.name), self.hosts, quota.groups())
        self.address = f"{nets.control}.{networks.LAUNCHER}"
        return self.hosts

    def invite(self, configs: Sequence[SiteConfig], handed: bytes) -> None:
        assert self.lab is not None, "a lab is opened first"
        self.line = self._start(configs[0])
        self.living = dict.fromkeys(self.hosts, 0)
        with suppress(OSError):  # it has died at once: `lost` will say so
            write(self.line, msgspec.msgpack.encode([self._invitation(config) for config in configs]))
            write(self.line, handed)

    def invite_again(self, config: SiteConfig) -> bool:
        assert self.lab is not None and self.line is not None, "sites are lost after they were invited"
        host = self.hosts[config.site]
        if self.lab.is_cut(host):
            return False
        self.lab.end(host)
        self.living[host] = config.incarnation
        with suppress(OSError):
            write(self.line, msgspec.msgpack.encode([self._invitation(config)]))
        return True

    def depart(self, site: int) -> bool:
        assert self.lab is not None, "a lab is opened first"
        self.lab.kill(self.hosts[site])
        return True

    def arrive(self, site: int) -> None:
        assert self.lab is not None, "a lab is opened first"
        self.lab.restore(self.hosts[site])

    def begin(self) -> None:
        """All roles are ready. The quotas hold from now on, so that a slow host does not import torch slowly."""
        for host, share in zip(self.hosts, self.settings.cpus, strict=True):
            if share is not None:
                quota.limit(self.groups[host], share)

    def lost(self) -> str:
        return next(iter(self.ended().values()), "")

    def ended(self) -> dict[int, str]:
        return dict(self._news(0.0))

    def close(self, well: bool) -> None:
        try:
            until = time.monotonic() + (PATIENCE if well else HASTE)
            while self.living and (left := until - time.monotonic()) > 0:
                with suppress(PeerLost):
                    dict(self._news(left))
            if self.line and self.parent:
                self.line.close()  # the parent ends what is left
                self.parent.wait(PATIENCE)
                self.parent.signal(signal.SIGKILL)
                self.parent.reap()
        finally:
            if self.lab:
                self.lab.remove()

    def _start(self, config: SiteConfig) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            self.parent = forked_by_server(
                config.threads, ours, theirs, None, config.warm, config.stall, entry=f"{fork_server.__name__}:main"
            )
        return ours

    def _invitation(self, config: SiteConfig) -> Invitation:
        assert self.lab is not None, "a lab is opened first"
        host = self.hosts[config.site]
        return Invitation(
            config=msgspec.structs.replace(config, interface=networks.DATA), host=host,
            namespace=self.lab.name.host(host), group=str(self.groups.get(host, "")),
        )  # fmt: skip

    def _news(self, patience: float) -> Iterator[tuple[int, str]]:
        """The sites that have ended within `patience` seconds, each with how, in words."""
        while self.line and select.select([self.line], [], [], patience)[0]:
            patience = 0.0
            try:
                ended = ends.read(read(self.line), "the fork server of the lab")
            except (SystemExit, OSError):
                self.living.clear()
                raise PeerLost("the fork server of the lab has died, and all roles with it") from None
            if self.living.get(ended.host) == ended.incarnation:  # else another site is there already
                del self.living[ended.host]
                how = describe(os.waitstatus_to_exitcode(ended.status))
                yield self.hosts.index(ended.host), f"the site on {ended.host} {how}, and its roles with it"
