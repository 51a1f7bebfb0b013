"""A client that takes part: how long it dials again, and what of a hostile service reaches its terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from covey.engines.interrupt import Interrupt
from covey.engines.service.dialled_link import LinkLost, ServiceEnded
from covey.engines.service.greeting import Welcome
from covey.engines.service.guest_keys import KeyFolder, read_key
from covey.errors import PeerLost, PlanError, WireError
from covey.federated.local_training import refuse_settings
from covey.federated.messages import AGGREGATOR, COORDINATOR, ComeBack, Configuration, SumWithdrawal
from covey.message import Address
from covey.run.federated import enrolled_clients, joining
from covey.run.federated.enrolled_clients import EnrolledClients
from covey.run.federated.joining import Attendance, JoinedClient, ToldRefusals, ToldSums, ToldTraining
from covey.run.federated.service_news import DeclinedSums
from covey.task import PrivateSgd
from covey.vector import Vector
from tests.federated.conftest import regression

HOSTILE = "\x1b[2Jalice\nroot# \x9b"


class FakeTime:
    """A clock that only sleeping and visits advance."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 1e-3)


def client(tmp_path: Path, say: Callable[[str], None] = print) -> JoinedClient:
    KeyFolder(tmp_path / "keys").add("alice", 500, tmp_path / "alice.key")
    return JoinedClient("tcp://nowhere:1", read_key(tmp_path / "alice.key"), regression(), "hash", say, Interrupt())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    made = FakeTime()
    monkeypatch.setattr(joining, "time", made)
    return made


def visiting(one: JoinedClient, clock: FakeTime, visits: Iterable[Any]) -> None:
    """Let each visit take so many seconds, or fail."""
    left = iter(visits)

    def visit() -> float:
        found = next(left)
        if isinstance(found, BaseException):
            raise found
        clock.now += found
        return 0.0

    one._visit = visit  # type: ignore[method-assign]


def lost() -> LinkLost:
    return LinkLost("nobody is there", "the service")


def test_patience_begins_with_the_first_failure_and_not_with_the_last_visit(tmp_path: Path, clock: FakeTime) -> None:
    one = client(tmp_path)
    visiting(one, clock, [1000.0, lost(), lost(), 1000.0, lost(), ServiceEnded("over")])
    one.run(patience=10.0)
    visiting(one, clock, (lost() for _ in range(10_000)))
    began = clock.now
    with pytest.raises(PeerLost, match="gave up after 10 s"):
        one.run(patience=10.0)
    assert 10 < clock.now - began < 60


def test_a_client_may_dial_for_days(tmp_path: Path, clock: FakeTime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "sleep", lambda seconds: setattr(clock, "now", clock.now + 100))
    one = client(tmp_path)
    visiting(one, clock, [*(lost() for _ in range(1100)), ServiceEnded("over")])
    one.run(patience=1e9)


def test_no_control_characters_of_a_service_reach_the_terminal(tmp_path: Path) -> None:
    said: list[str] = []
    one = client(tmp_path, said.append)
    one._trained(Welcome(HOSTILE, "fedavg", 0))
    ToldRefusals(one.done, said.append).delivered(0.0, COORDINATOR, one.me, ComeBack(0.0, 0.0, HOSTILE), 0)
    with pytest.raises(PlanError) as found:
        one._trained(Welcome("alice", f"fedavg{HOSTILE}", 0))
    assert len(said) == 2 and all(line.isprintable() and "alice" in line for line in [*said, str(found.value)])


def test_a_round_or_a_seed_below_zero_is_refused_by_name(tmp_path: Path) -> None:
    given = Configuration(-1, 0.0, Vector(()), Vector(()))
    with pytest.raises(WireError, match="asked for round -1"):
        ToldTraining(SimpleNamespace(), Attendance(), print).train(0, given)  # type: ignore[arg-type]
    with pytest.raises(WireError, match="the seed -1"):
        client(tmp_path)._trained(Welcome("alice", "fedavg", -1))


@pytest.mark.parametrize("now", ["removed", "older", "renamed", "not revoked", "malformed"])
def test_a_list_of_clients_that_cannot_follow_is_refused_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: str
) -> None:
    monkeypatch.setattr(enrolled_clients, "KEYS_EVERY", -1.0)
    folder, file = KeyFolder(tmp_path / "keys"), tmp_path / "keys" / "guests.json"
    folder.add("alice", 5, tmp_path / "a.key")
    older = file.read_bytes()
    folder.add("bob", 5, tmp_path / "b.key")
    before = file.read_bytes()
    folder.revoke("bob")
    clients = EnrolledClients(folder)
    if now == "removed":
        file.unlink()
    else:
        renamed = before.replace(b"alice", b"carol").replace(b'"revoked": false', b'"revoked": true')
        file.write_bytes(
            {"older": older, "renamed": renamed, "not revoked": before, "malformed": b"{"}[now]
        )
    with pytest.raises(WireError):
        clients.changed()
    assert not clients.changed(), "said once"
    assert clients.name(Address("client", 1)) == "bob" and len(clients) == 2 and len(clients.welcome()) == 1
    file.write_bytes(before.replace(b'"revoked": false', b'"revoked": true'))
    assert clients.changed() and not clients.welcome(), "a list that can follow is taken"


def test_a_client_and_the_service_say_why_a_sum_was_declined_and_how_small_sums_were() -> None:
    said, done = list[str](), Attendance()
    told = ToldSums(done, said.append)
    told.withdrew(0, f"too few{HOSTILE}")
    told.opens(1, 3)
    told.opens(2, 2)
    told.opens(3, 3)
    assert said[0].startswith("round 1: too few") and said[0].isprintable() and done.withdrew and done.smallest == 2
    assert said[2] == "round 3: its sum has 2 clients"
    heard = list[str]()
    declined = DeclinedSums(lambda client: "alice", heard.append)
    for why in ("", f"too few{HOSTILE}", "too few again"):
        declined.delivered(0.0, Address("client", 0), AGGREGATOR, SumWithdrawal(0, why), 1)
    (line,) = heard
    assert "0 (alice) declined a secure sum: too few" in line and line.isprintable() and declined.lines == heard


def test_a_task_with_private_training_is_told_what_to_use_instead() -> None:
    with pytest.raises(PlanError, match=r"^Task\(private=…\) hides samples, not clients: omit it"):
        refuse_settings(replace(regression(), private=PrivateSgd(noise=1.0, clip=1.0, delta=1e-3)))
