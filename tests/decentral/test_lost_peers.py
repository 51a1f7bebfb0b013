"""Workers without a server of which one is lost: it comes back with the model of another, and nothing counts twice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import covey
from covey.decentral.gossip.adpsgd import HalfDifference, Meet, Meetings, answerer
from covey.decentral.peer_membership import GivenModel, PeerMembership
from covey.errors import PeerLost, WireError
from covey.membership import Joined
from covey.message import Address, stamped
from covey.model.flat import Flat
from covey.model.replica import Replica
from covey.program import Memory
from covey.simulate import BytesPerSecond, Cluster, Link, Seconds
from covey.vector import Vector
from tests.killing import STEPS, Finished
from tests.worlds import INSTANT, Recorder, mlp, quadratic, spread, worker

# A model of five numbers travels for 8 ms, a batch takes about 10.
SLOW = Cluster(
    compute=Seconds(0.010), slowdowns={1: 1.3, 2: 1.7, 3: 1.1},
    link=Link(bandwidth=BytesPerSecond(5e3), latency=Seconds(0.0)),
)  # fmt: skip


class Moves:
    """What models change by, besides their gradients: halves of meetings, and models that are taken over."""

    def __init__(self) -> None:
        self.start = torch.zeros(5, dtype=torch.float64)  # the sum of all models
        self.adopted = self.start.clone()
        self.came: list[Tensor] = []  # halves by which a passive worker came, and an active one has not gone
        self.both = 0  # meetings of which both sides have moved

    def begin(self, replicas: dict[Address, Replica]) -> None:
        spread()(replicas)
        self.start = sum((replica.flat.parts[0] for replica in replicas.values()), torch.zeros(5))

    @contextmanager
    def watched(self) -> Iterator[None]:
        move, go, take = Meetings.move, Meetings.go, PeerMembership._take

        def moved(meetings: Meetings, meet: Meet) -> HalfDifference:
            half = move(meetings, meet)
            self.came.append(half.half.parts[0].clone())
            return half

        def gone(meetings: Meetings, half: HalfDifference) -> None:
            matching = [one for one in self.came if torch.equal(one, half.half.parts[0])]
            self.came = [one for one in self.came if one is not matching[0]]
            self.both += 1
            go(meetings, half)

        def taken(peers: PeerMembership, given: GivenModel) -> None:
            take(peers, given)
            self.adopted += given.model.parts[0]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Meetings, "move", moved)
            patch.setattr(Meetings, "go", gone)
            patch.setattr(PeerMembership, "_take", taken)
            yield


def still(strategy: str, at: list[int], moves: Moves, **given: Any) -> Finished:
    """A run whose gradients move nothing, from unequal weights."""
    with moves.watched():
        return Finished(strategy, at, task=quadratic(lr=0.0), before=moves.begin, **given)


def total(found: Finished) -> Tensor:
    """The sum of the models that count; one that was lost when all others had ended does not."""
    return sum((one.flat.parts[0] * one.shown.weight for one in found.replicas.values()), torch.zeros(5))


@pytest.mark.parametrize(
    "victim", [0, 1, pytest.param(2, marks=pytest.mark.full), pytest.param(3, marks=pytest.mark.full)]
)
def test_the_models_of_a_meeting_move_both_or_one_is_lost(victim: int) -> None:
    """Killed at every effect: all models together have moved by what was lost and taken over, and by nothing else.

    A half by which only one side moved is of a meeting with the lost worker: at most one for each of its neighbours.
    """
    whole = still("adpsgd", [], calm := Moves(), workers=4, victim=worker(victim), cluster=SLOW)
    assert torch.allclose(total(whole), calm.start) and not calm.came and calm.both > 3 and whole.effects > 20
    halved = 0
    for at in range(whole.effects):
        found = still("adpsgd", [at], moves := Moves(), workers=4, victim=worker(victim), cluster=SLOW)
        assert found.outcome.samples == whole.outcome.samples, f"killed at effect {at}"
        assert found.outcome.tallies[worker(victim)].notes["lost models"] == 1
        lost = sum((numbers for _, numbers, _ in found.lost), torch.zeros(5))
        loose = sum(moves.came, torch.zeros(5))
        assert torch.allclose(total(found), moves.start - lost + moves.adopted + loose), f"killed at effect {at}"
        assert len(moves.came) <= 2 and moves.both > 1
        halved += bool(moves.came)
    assert halved, "no kill came in the middle of a meeting"


class Heard(Exception):
    """Nothing else comes."""


@pytest.mark.parametrize("restarted", [False, True])
def test_nobody_comes_half_of_the_way_to_one_that_was_lost_after_it_asked(restarted: bool) -> None:
    ask, news = (stamped(body, worker(1), copy=False) for body in (Meet(Vector(())), Joined(1)))
    words, moved, heard = [ask], list[Any](), list[Any]()

    async def receive_any(*kinds: Any) -> Any:
        if not words:
            raise Heard
        return words.pop()

    async def note(word: Any, *_: Any, **__: Any) -> None:
        heard.append(word)

    node: Any = SimpleNamespace(
        receive_any=receive_any, receive_nowait=lambda kind, sender: news if restarted else None, send=note
    )
    peers: Any = SimpleNamespace(asks=(Joined,), elastic=True, hear=note)
    meetings: Any = SimpleNamespace(move=moved.append)
    with pytest.raises(Heard):
        answerer(node, meetings, Memory(0), peers).send(None)
    assert (moved, heard) == (([], [news]) if restarted else ([ask], [worker(1)]))


@pytest.mark.parametrize("every", [7, pytest.param(2, marks=pytest.mark.full)])
@pytest.mark.parametrize(("spec", "effects"), [("adpsgd", 40), ("gosgd(probability=0.01)", 12)])
def test_two_neighbours_that_are_lost_at_once_take_the_model_of_a_third(spec: str, effects: int, every: int) -> None:
    for first in range(0, effects, every):
        for second in range(max(0, first - 3), first + 4, 1 + every // 3):
            found = Finished(spec, [first], also={worker(0): [second]}, workers=4, cluster=INSTANT)
            assert len(found.outcome.membership) == 2, f"killed at effects {first} and {second}"
            assert all(tensor.isfinite().all() for tensor in found.weights.values())


@pytest.mark.parametrize("spec", ["adpsgd", "gosgd(probability=0.5)", "dpsgd", "malt"])
def test_a_new_incarnation_counts_in_no_score_before_it_has_a_model(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, ask = list[float](), PeerMembership._ask

    async def asking(peers: PeerMembership, *given: Any) -> None:
        weights.append(peers.replica.shown.weight)
        await ask(peers, *given)
        assert peers.replica.shown.weight > 0

    monkeypatch.setattr(PeerMembership, "_ask", asking)
    Finished(spec, [9], workers=4, cluster=INSTANT)
    assert weights == [0.0]


def test_when_all_are_lost_at_once_the_run_cannot_go_on() -> None:
    with pytest.raises(PeerLost, match="lost, and no other worker had the model"):
        Finished("adpsgd", [5], also={worker(0): [6]}, workers=2, cluster=INSTANT)


TREE = "tree_easgd(fanout=2, up=1, down=2)"  # 0 is above 1 and 2, and 1 is above 3 and 4


@pytest.mark.parametrize(("victim", "donor"), [(0, 1), (1, 0), (4, 1)])
def test_a_worker_in_a_tree_takes_the_model_of_the_one_above_it_and_others_do_not_wait(victim: int, donor: int) -> None:
    """Root, inner worker and leaf, killed at every effect; the root takes that of its first child."""
    whole = Finished(TREE, workers=5, victim=worker(victim), watch=(calm := Recorder()))
    for at in range(0, whole.effects - 9, 1 + victim):
        found = Finished(TREE, [at], workers=5, victim=worker(victim), watch=(log := Recorder()))
        assert found.outcome.samples == whole.outcome.samples and len(found.outcome.membership) == 1
        assert [(one.sender.rank, one.to.rank) for one in log.kinds(GivenModel)] == [(donor, victim)]
        others = [one for one in calm.computes if one[2] != worker(victim)]
        assert sorted(one for one in log.computes if one[2] != worker(victim)) == sorted(others)


def test_a_root_that_is_lost_when_all_others_have_ended_takes_the_model_along() -> None:
    """It waits for a last farewell, which is late, while all others have heard each other's."""
    given: Any = {"engine": "simulated", "cluster": INSTANT, "on_failure": "continue", "steps": STEPS}
    late = "delay worker 1 -> worker 0@35ms by 1s; kill worker 0@500ms"
    with pytest.raises(PeerLost, match="worker 0 was lost after all others had ended, and with it the model"):
        covey.fit(mlp(), TREE, 3, faults=late, **given)


@pytest.mark.parametrize("sent", [[torch.tensor([7])], [torch.tensor([7]), torch.tensor([1, 0])]], ids=["few", "long"])
def test_counters_that_do_not_fit_are_refused_by_the_name_of_who_gave_them(sent: list[torch.Tensor]) -> None:
    module = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2))
    taking: Any = object.__new__(PeerMembership)
    taking.replica = SimpleNamespace(model=Vector(()), layout=Flat(module), weigh=lambda weight: None)
    taking.weight = None
    with pytest.raises(WireError, match="worker 2 sent"):
        taking._take(GivenModel(Vector(()), 1.0, Vector(sent, worker(2))))
    assert int(module[0].num_batches_tracked) == 0, "nothing of it is taken"
    taking._take(GivenModel(Vector(()), 1.0, Vector([torch.tensor([7]), torch.tensor([8])], worker(2))))
    assert [int(layer.num_batches_tracked) for layer in module] == [7, 8]
