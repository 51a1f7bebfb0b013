"""torchrun: roles on the ranks of a c10d rendezvous; outside of one, a rendezvous is opened on this machine.

Inside, every rank runs the same command: rank 0 leads, and site configs travel through the rendezvous' own store.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from datetime import timedelta
from functools import cache

import msgspec
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from covey.engines.cluster.places import HERE, Places
from covey.engines.cluster.ranks import Presence, Ranks, presence, presences
from covey.engines.launch_environment import LaunchEnvironment, by_torchrun
from covey.engines.process.liveness import Silence
from covey.errors import PeerLost
from covey.names import option

COMING = 90.0  # seconds until the rendezvous must be there
LEAVING = 30.0  # seconds that a leader which refuses waits for the others to hear of it
LOOK = 0.05  # seconds between two looks into the store


def places(workers: int, native: bool) -> Places:
    """The ranks of the rendezvous that this process belongs to; else those of one that is opened on this machine."""
    collective = NativeStore() if native else None
    started = by_torchrun()
    if started is None:
        from covey.engines.torchrun_agent import TorchrunPlaces

        return TorchrunPlaces(workers, collective)
    return RANKS.places(started, collective)


@cache
def channel(started: LaunchEnvironment, coming: float = COMING) -> StoreChannel:
    """The way to the other ranks, which must be there within `coming` seconds."""
    return StoreChannel(started, coming)


RANKS = Ranks("torchrun", by_torchrun, channel)


class StoreChannel:
    """The store of a c10d rendezvous as a channel. All who reach its port can read it: torchrun trusts networks."""

    def __init__(self, started: LaunchEnvironment, coming: float = COMING) -> None:
        self.started, self.coming = started, coming
        self._store: Store | None = None

    @property
    def store(self) -> Store:
        if self._store is None:
            try:
                self._store = self._connect()
            except RuntimeError as error:
                where = f"{self.started.master}:{self.started.port}"
                raise PeerLost(f"the rendezvous at {where} cannot be reached: {error}") from None
        return self._store

    def _connect(self) -> Store:
        started = self.started
        shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)  # torchrun's agent holds it
        store = TCPStore(
            started.master, started.port, started.size, is_master=started.leads and not shared,
            timeout=timedelta(seconds=self.coming), wait_for_workers=False, multi_tenant=True,
        )  # fmt: skip
        return PrefixStore(f"covey/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)

    def lead(self) -> None:
        self.store.set("led", "true")  # the others may find it from now on

    def gather(self, patience: float) -> list[Presence]:
        return [presence(HERE), *(self._presence(rank, patience) for rank in range(1, self.started.size))]

    def _presence(self, rank: int, patience: float) -> Presence:
        clock = Silence[int](patience)
        while not self.store.check([f"here/{rank}"]):
            clock.tick()
            if clock.awake > patience:
                raise PeerLost(
                    f"rank {rank} did not arrive within {patience:g} s; a longer {option('stall')} gives it more time"
                )
            time.sleep(LOOK)
        return presences.read(self.store.get(f"here/{rank}"), f"rank {rank}")

    def hand_out(self, configs: Sequence[bytes]) -> None:
        for rank, config in enumerate(configs, start=1):
            self.store.set(f"config/{rank}", config.hex())

    def dismiss(self) -> None:
        """Wait until the configs are taken: a store of this process goes with it, and the others may still start."""
        until = time.monotonic() + LEAVING
        keys = [f"config/{rank}" for rank in range(1, self.started.size)]
        while any(self.store.check([key]) for key in keys) and time.monotonic() < until:
            time.sleep(LOOK)

    def take(self) -> bytes:
        """The config; none if the leader went away with its store."""
        key = f"config/{self.started.rank}"
        try:
            store = self.store
            with socket.create_connection((self.started.master, self.started.port), COMING) as probe:
                leader = probe.getpeername()[0]
            store.set(f"here/{self.started.rank}", msgspec.json.encode(presence(leader)).decode())
            while not store.check([key]):
                time.sleep(LOOK)
            config = bytes.fromhex(store.get(key).decode())
            self.store.delete_key(key)  # it holds a secret
            return config
        except (RuntimeError, OSError):  # all of torch's errors about stores are such
            return b""

    def close(self, well: bool) -> None:
        self._store = None


class NativeStore:
    """The store by which the roles themselves meet for torch's own collectives."""

    def __init__(self) -> None:
        self.store: TCPStore | None = None

    def __call__(self, address: str) -> str:
        if self.store is None:
            self.store = TCPStore(address, 0, is_master=True, wait_for_workers=False)
        return f"covey.engines.native.c10d {address} {self.store.port}"
