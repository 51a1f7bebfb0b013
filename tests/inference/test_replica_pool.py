"""Starts of replicas that the system refuses."""

from __future__ import annotations

import asyncio
import errno
import os
import socket

import pytest

from covey.inference.messages import ReplicaReady
from covey.inference.replicas import replica_pool
from covey.inference.replicas.replica_pool import ReplicaPool
from covey.message import Address, streamed


class ScarceForks:
    """Its first starts find no file left."""

    def __init__(self, refused: int) -> None:
        self.refused, self.asked = refused, 0
        self.replica: socket.socket | None = None

    def start(self, rank: int) -> socket.socket:
        self.asked += 1
        if self.asked <= self.refused:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        mine, self.replica = socket.socketpair()
        self.replica.sendall(streamed(ReplicaReady(sender=Address("replica", rank))))
        return mine

    def end(self, rank: int) -> None:
        return None

    def close(self, gently: bool = False) -> None:
        assert self.replica is not None
        self.replica.close()


def test_a_start_for_which_there_are_no_files_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(replica_pool, "PAUSE", 0.01)
    forks = ScarceForks(refused=3)

    async def begun() -> None:
        pool = ReplicaPool([forks])  # type: ignore[list-item]
        pool.start(0)
        await asyncio.wait_for(pool.ready(), 30)
        pool.close()

    asyncio.run(begun())
    told = capsys.readouterr().err
    assert forks.asked == 4 and told.count("replica 0 cannot be started now") == 1 and "Too many open files" in told


class StoppedForks:
    """Starts replicas that never say anything, as if the fork server were stopped, but for the first one."""

    def __init__(self) -> None:
        self.links: dict[int, socket.socket] = {}

    def start(self, rank: int) -> socket.socket:
        mine, replica = socket.socketpair()
        if not self.links:
            replica.sendall(streamed(ReplicaReady(sender=Address("replica", rank))))
        self.links[rank] = replica
        return mine

    def end(self, rank: int) -> None:
        return None

    def close(self, gently: bool = False) -> None:
        for link in self.links.values():
            link.close()


def test_the_log_says_once_that_replicas_cannot_be_started(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(replica_pool, "LONG", 0.1)
    forks, told = StoppedForks(), []

    async def stopped() -> None:
        pool = ReplicaPool([forks])  # type: ignore[list-item]
        pool.start(0)
        await asyncio.wait_for(pool.ready(), 30)
        await asyncio.sleep(0.3)
        told.append(capsys.readouterr().err)
        forks.links[0].close()  # it is lost
        pool.start(1)
        await asyncio.sleep(0.6)
        told.append(capsys.readouterr().err)
        forks.links[0].sendall(streamed(ReplicaReady(sender=Address("replica", 0))))
        pool.start(2)
        await asyncio.sleep(0.3)
        told.append(capsys.readouterr().err)
        pool.close()

    asyncio.run(stopped())
    assert [one.count("is not ready 0.1 s after its start") for one in told] == [0, 1, 1], told


class FrailForks:
    """Starts replicas that are ready, and lost as soon as the front has heard that."""

    def __init__(self) -> None:
        self.starts = 0

    def start(self, rank: int) -> socket.socket:
        mine, replica = socket.socketpair()
        replica.sendall(streamed(ReplicaReady(sender=Address("replica", rank))))
        self.starts += 1
        replica.close()
        return mine

    def end(self, rank: int) -> None:
        return None

    def close(self, gently: bool = False) -> None:
        return None


def test_a_replica_that_was_ready_each_time_is_replaced_however_often_it_is_lost(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Three starts in a row that fail are enough, but not three losses in the life of a replica."""
    forks = FrailForks()

    async def lost() -> None:
        pool = ReplicaPool([forks])  # type: ignore[list-item]
        pool.start(0)
        while pool.lost < 2 * replica_pool.TRIES:
            assert not pool.failed.done()
            await asyncio.sleep(0.01)
        pool.close()

    asyncio.run(asyncio.wait_for(lost(), 20))
    assert forks.starts >= 2 * replica_pool.TRIES and "replica 0 is back after" in capsys.readouterr().err
