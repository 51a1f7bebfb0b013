"""Hosts of replicas that are lost and come again, by a clock of the test's own."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from covey.engines.process import liveness
from covey.inference.sites.host_presence import HostPresence
from covey.inference.sites.relay_words import HostBeat, LinkEnded, RenewHost


class Watch:
    """The time, and a front that looks five times a second at two hosts, of which host 0 beats."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(liveness, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.hosts = HostPresence(2)
        for host in (0, 1):
            assert self.hosts.hear(host, HostBeat(0)) is None
        self.hosts.silent()

    def passes(self, seconds: float) -> dict[int, str]:
        """Who was silent for too long after so many seconds."""
        silent: dict[int, str] = {}
        for _ in range(round(5 * seconds)):
            self.now += 0.2
            self.hosts.hear(0, HostBeat(0))
            silent |= self.hosts.silent()
        return silent


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch)


def test_a_silent_host_is_lost_after_five_seconds(watch: Watch) -> None:
    assert not watch.passes(4.8)
    (told,) = watch.passes(0.6).items()
    assert told[0] == 1 and told[1].startswith("nothing was heard of it for 5.")


def test_a_front_that_was_stopped_loses_no_host(watch: Watch) -> None:
    assert not watch.passes(1)
    watch.now += 60
    assert not watch.passes(2)
    assert set(watch.passes(3)) == {1}


def test_a_lost_host_is_there_again_when_it_has_begun_another_incarnation(watch: Watch) -> None:
    assert watch.hosts.lose(1) and not watch.hosts.lose(1) and watch.hosts.hosts == [0]
    assert watch.hosts.hear(1, LinkEnded(3)) is None and watch.hosts.hosts == [0]
    assert watch.hosts.hear(1, HostBeat(0)) == RenewHost(1) and watch.hosts.hosts == [0]
    assert watch.hosts.hear(1, HostBeat(1)) is None and watch.hosts.hosts == [0, 1]
    assert watch.hosts.lose(1) and watch.hosts.hear(1, HostBeat(1)) == RenewHost(2)


def test_hosts_are_awaited_until_all_have_ended_or_for_90_seconds(watch: Watch) -> None:
    watch.passes(1)
    watch.hosts.lose(0)
    watch.hosts.lose(1)
    watch.passes(89)
    assert watch.hosts.awaited
    watch.passes(2)
    assert not watch.hosts.awaited
    watch.hosts.hear(1, HostBeat(1))
    watch.hosts.silent()
    assert watch.hosts.awaited
    watch.hosts.end({0: "its process ended"})
    assert watch.hosts.awaited
    watch.hosts.end({1: "its process ended"})
    assert not watch.hosts.awaited
    watch.hosts.lose(1)
    assert watch.hosts.hear(1, HostBeat(2)) is None and not watch.hosts.hosts, "it was said to have ended"
