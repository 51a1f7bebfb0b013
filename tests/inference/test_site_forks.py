"""Replicas on hosts that are lost: links are relayed over real sockets, by hosts that are played."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from covey.inference.sites.relay_words import Down, EndHere, LinkEnded, RelayedBytes, StartHere, Up
from covey.inference.sites.site_forks import SiteForks


class PlayedSites:
    """Two hosts that say and lose what a test tells them to."""

    def __init__(self) -> None:
        self.hosts, self.awaited = [0, 1], True
        self.told: list[tuple[int, Down]] = []
        self.says: list[tuple[int, Up]] = []
        self.loses: list[int] = []
        self.wakeup = os.eventfd(0, os.EFD_NONBLOCK)
        self.sockets = [self.wakeup]

    def tell(self, host: int, word: Down) -> None:
        self.told.append((host, word))

    def words(self) -> list[tuple[int, Up]]:
        said, self.says = self.says, []
        return said

    def lost(self) -> list[int]:
        gone, self.loses = self.loses, []
        self.hosts = [host for host in self.hosts if host not in gone]
        return gone

    def begin(self) -> None:
        return None

    def close(self) -> None:
        os.close(self.wakeup)


@contextmanager
def forks() -> Iterator[tuple[PlayedSites, SiteForks]]:
    sites = PlayedSites()
    made = SiteForks(sites)  # type: ignore[arg-type]
    try:
        yield sites, made
    finally:
        made.close()


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def starts(sites: PlayedSites) -> list[tuple[int, int]]:
    """The hosts that were told to start a replica, each with the rank."""
    return [(host, word.rank) for host, word in sites.told if isinstance(word, StartHere)]


def hung_up(link: socket.socket) -> bool:
    try:
        return not link.recv(10, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False


def test_a_start_waits_for_hosts_that_are_only_silent() -> None:
    with forks() as (sites, made):
        sites.loses = [0, 1]
        until(lambda: not sites.hosts)
        link = made.start(7)
        time.sleep(0.5)
        assert not sites.told and not hung_up(link)
        sites.hosts = [1]
        until(lambda: starts(sites) == [(1, 7)])
        sites.says = [(1, RelayedBytes(1, b"ready"))]
        until(lambda: link.recv(10, socket.MSG_PEEK) == b"ready")
        link.close()


def test_a_start_fails_when_no_host_is_expected(capsys: pytest.CaptureFixture[str]) -> None:
    with forks() as (sites, made):
        sites.loses = [0, 1]
        until(lambda: not sites.hosts)
        link = made.start(7)
        time.sleep(0.3)
        sites.awaited = False
        until(lambda: hung_up(link))
        link.close()
    told = capsys.readouterr().err
    assert told.count("replica 7 is started when a host is heard again") == 1
    assert told.count("no host is left on which a replica could be started") == 1


def test_only_a_replica_that_was_ready_is_lost_with_its_host() -> None:
    """One that has said nothing is started on another host, over the same link."""
    with forks() as (sites, made):
        ready = made.start(0)
        until(lambda: starts(sites) == [(0, 0)])
        fresh = made.start(1)
        until(lambda: starts(sites) == [(0, 0), (1, 1)])
        sites.says = [(0, RelayedBytes(1, b"ready"))]
        until(lambda: ready.recv(10, socket.MSG_PEEK) == b"ready")
        ready.recv(10)
        sites.loses = [1]
        until(lambda: starts(sites) == [(0, 0), (1, 1), (0, 1)])
        assert (1, EndHere(2)) in sites.told and not hung_up(fresh)
        sites.says = [(0, LinkEnded(2)), (0, RelayedBytes(3, b"here"))]  # the first is of its earlier host
        until(lambda: fresh.recv(10) == b"here")
        sites.loses = [0]
        until(lambda: hung_up(ready) and hung_up(fresh))
        for link in (ready, fresh):
            link.close()


def test_a_replica_that_waits_for_a_host_can_be_ended() -> None:
    with forks() as (sites, made):
        sites.loses = [0, 1]
        until(lambda: not sites.hosts)
        link = made.start(7)
        made.end(7)
        until(lambda: hung_up(link))
        sites.hosts = [0]
        time.sleep(0.3)
        assert not starts(sites)
        link.close()
