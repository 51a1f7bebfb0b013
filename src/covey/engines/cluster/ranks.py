"""Ranks: processes that something else has started, all with one command. Rank 0 leads the run, and each is a site.

Rank 0 hosts its own site on a thread: if it dies, the fork server of that site goes with it at once.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Protocol

import msgspec

from covey.decoding import WireFormat
from covey.engines.cluster import site, this_host
from covey.engines.cluster.places import HERE, Places
from covey.engines.cluster.site_messages import SiteConfig, configs
from covey.engines.launch_environment import LaunchEnvironment, choose_gpu
from covey.errors import PeerLost, PlanError

PATIENCE = 8.0  # seconds that the leader's own site has to leave


class Presence(msgspec.Struct, frozen=True):
    """What a rank reports to the leader."""

    host: str
    machine: str  # the same for ranks that reach each other without a network
    leader: str = ""  # the address at which the leader was reached from there


presences: WireFormat[Presence] = WireFormat("presence of a rank", Presence, "json")


class Channel(Protocol):
    """How the ranks of a job reach each other before covey's own links are there."""

    def lead(self) -> None:
        """(The leader) this process is there."""
        ...

    def gather(self, patience: float) -> list[Presence]:
        """(The leader) all ranks in order, if they arrive within this many seconds."""
        ...

    def hand_out(self, configs: Sequence[bytes]) -> None:
        """(The leader) one config for each other rank, in order; an empty one: there will be no run."""
        ...

    def take(self) -> bytes:
        """(The others) report that this rank is there, and wait for its config."""
        ...

    def dismiss(self) -> None:
        """(The leader) close it after a run that was called off, when the others have heard so."""
        ...

    def close(self, well: bool) -> None:
        """It is not needed any more; all ranks come here if all went `well`."""
        ...


class ChannelOpener(Protocol):
    """Opens the channel of a rank, once."""

    def __call__(self, started: LaunchEnvironment, coming: float = ..., /) -> Channel:
        """The channel; the others must be there within `coming` seconds."""
        ...


class RankPlaces(Places):
    """The places of a run that is led by rank 0 of a job."""

    def __init__(self, channel: Channel, size: int, native: Callable[[str], str] | None = None) -> None:
        self.channel, self.size = channel, size
        self._native = native
        self.invited = False
        self.trouble = ""
        self.own: threading.Thread | None = None

    def open(self, patience: float) -> list[str]:
        present = self.channel.gather(patience)
        self.address = leader_address(present)
        return names(present)

    @property
    def native(self) -> str:
        return self._native(self.address) if self._native else ""

    def invite(self, configs: Sequence[SiteConfig], handed: bytes) -> None:
        self.invited = True
        self.own = threading.Thread(target=self._host, args=(configs[0], handed), name="site", daemon=True)
        self.own.start()
        self.channel.hand_out([msgspec.msgpack.encode(config) for config in configs[1:]])

    def _host(self, config: SiteConfig, handed: bytes) -> None:
        try:
            site.host(config, handed)
        except Exception as error:
            self.trouble = f"the site of rank 0 failed: {error}"

    def lost(self) -> str:
        return self.trouble

    def close(self, well: bool) -> None:
        if not self.invited:
            call_off(self.channel, self.size)
        if self.own is not None:
            self.own.join(PATIENCE)
        self.channel.close(well)


class Ranks:
    """The ranks of a job that another program has started, each with the launcher's command: one leads, all host."""

    def __init__(
        self, starter: str, environment: Callable[[], LaunchEnvironment | None], channel: ChannelOpener
    ) -> None:
        self.starter, self.environment, self.channel = starter, environment, channel
        self.led = False  # this process has led a run

    def places(self, started: LaunchEnvironment, native: Callable[[str], str] | None) -> RankPlaces:
        """(The leader) the places of the one run that a job can have."""
        if self.led:
            raise PlanError(f"the other ranks ended with the first run: call covey.fit once per {self.starter}")
        self.led = True
        return RankPlaces(self.channel(started), started.size, native)

    def guest(self, handed: Callable[[], bytes]) -> bool:
        """If another rank leads the run: host roles here until it is over. `handed` packs a task of this process."""
        started = self.environment()
        if started is None:
            return False
        choose_gpu(started.local)
        channel = self.channel(started)
        if started.leads:
            channel.lead()
        else:
            attend(channel, handed)
        return not started.leads

    def refuse(self) -> None:
        """(The leader) the run cannot start: the others need not wait for it."""
        started = self.environment()
        if started is not None and started.leads and not self.led:
            self.led = True
            call_off(self.channel(started), started.size)
            self.channel(started).dismiss()


def call_off(channel: Channel, size: int) -> None:
    """(The leader) there will be no run."""
    channel.hand_out([b""] * (size - 1))


def attend(channel: Channel, handed: Callable[[], bytes]) -> None:
    """(The others) host what rank 0 places here until the run is over; only the leader prints."""
    heard = _Signals()
    data = channel.take()
    if not data:
        return channel.close(True)
    heard.ignored = True  # the leader hears of it too, and ends the run in order
    try:
        well = site.host(configs.read(data, "rank 0"), handed())
    except PeerLost:
        raise PeerLost("rank 0, which led the run, is gone") from None
    channel.close(well)


class _Signals:
    """Ctrl-C is for the leader; SIGTERM and SIGHUP end a process that hosts nothing yet, quietly."""

    def __init__(self) -> None:
        self.ignored = False
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            for number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, self._terminate)

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        if not self.ignored:
            os._exit(0)


def presence(leader: str = "") -> Presence:
    """What this rank reports."""
    return Presence(socket.gethostname(), machine(), leader)


def machine() -> str:
    """One kernel, booted once, and one network of it."""
    found = this_host.machine()
    return f"{found.kernel} {found.network}"


def leader_address(present: Sequence[Presence]) -> str:
    """Where the leader, which is the first, was reached from another machine, if there is one."""
    return next((one.leader for one in present if one.machine != present[0].machine), HERE)


def names(present: Sequence[Presence]) -> list[str]:
    """What to call each rank's host; machines with one name (containers, namespaces) are numbered."""
    machines = list(dict.fromkeys(one.machine for one in present))
    called = {one.machine: one.host for one in present}
    if len(set(called.values())) < len(machines):
        called = {name: f"{called[name]}.{number}" for number, name in enumerate(machines)}
    return [called[one.machine] for one in present]
