"""Workers that wait for each other's shares of every step, of which one is lost: nobody waits for what cannot come."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from covey.decentral.gossip.push_sum import PushedShares, PushShare
from covey.decentral.peer_membership import GivenModel, PeerMembership
from covey.decentral.step_shares import ShareStanding, StepShares
from covey.errors import PeerLost
from covey.message import Address
from covey.model.replica import Replica
from covey.program import Memory
from covey.vector import Vector
from tests.killing import STEPS, Finished
from tests.worlds import CLUSTER, INSTANT, Recorder, mlp, quadratic, run, sgd, slowed, spread, worker

SPECS = ["dpsgd", "sgp", "sgp(overlap=1)", "malt(share=model, barrier=true) over ring", "malt(bound=1)"]


@pytest.mark.parametrize("every", [12, pytest.param(2, marks=pytest.mark.full)])
@pytest.mark.parametrize("spec", SPECS)
def test_two_neighbours_are_lost_at_once_or_a_new_incarnation_soon_again(spec: str, every: int) -> None:
    """In a ring of four, at pairs of effects that lie near each other; on a slow network messages are under way."""
    whole = Finished(spec, workers=4)
    for number, first in enumerate(range(1, whole.effects, every)):
        for second in range(max(0, first - 4), first + 5, every // 2):
            given: Any = {"workers": 4, "cluster": (CLUSTER, INSTANT)[number % 2]}
            found = Finished(spec, [first], also={worker(2): [second]}, **given)
            assert found.outcome.samples == whole.outcome.samples, f"killed at effects {first} and {second}"
            again = Finished(spec, [first, first + 1 + second % 5], **given)
            assert again.outcome.samples == whole.outcome.samples, f"killed at {first} and {1 + second % 5} later"
            assert all(tensor.isfinite().all() for one in (found, again) for tensor in one.weights.values())


@pytest.mark.parametrize("spec", SPECS)
def test_when_all_are_lost_at_once_the_run_cannot_go_on(spec: str) -> None:
    with pytest.raises(PeerLost, match="lost, and no other worker had the model"):
        Finished(spec, [5], also={worker(0): [5]}, workers=2, cluster=INSTANT)


def test_a_new_worker_of_dpsgd_does_each_step_once_and_mixes_without_what_was_lost() -> None:
    """A gradient of a step that the lost one had begun is computed again; of all other steps once."""
    whole = Finished("dpsgd", workers=4, cluster=slowed(w2=3))
    mixed = 0
    for at in range(0, whole.effects, 2):
        found = Finished("dpsgd", [at], workers=4, cluster=slowed(w2=3), watch=(log := Recorder()))
        assert len([one for one in log.computes if one[2] == worker(1)]) in (STEPS, STEPS + 1), f"killed at {at}"
        assert all(len([one for one in log.computes if one[2] == worker(rank)]) == STEPS for rank in (0, 2, 3))
        assert found.outcome.tallies[worker(1)].notes["lost models"] == 1
        mixed += whole.outcome.seconds == found.outcome.seconds
    assert mixed, "a worker that is not the slowest may be lost without a delay for anybody"


@pytest.mark.parametrize("spec", SPECS)
def test_equal_models_that_do_not_learn_stay_as_they_are_whoever_is_lost(spec: str) -> None:
    """The shares of a mean add up to 1, also where a neighbour's does not come."""
    task = mlp(sgd(lr=0.0))
    whole = Finished(spec, workers=4, task=task, cluster=slowed(w2=3))
    for at in range(0, whole.effects, 3):
        found = Finished(spec, [at], workers=4, task=task, cluster=slowed(w2=3))
        for name, tensor in whole.weights.items():
            assert torch.allclose(found.weights[name], tensor, rtol=1e-12), f"killed at {at}"


class Mass:
    """What push-sum moves about: x and y of each share, from when it leaves its sender to when it is taken in."""

    def __init__(self) -> None:
        self.start = self.early = torch.zeros(6, dtype=torch.float64)
        self.out: dict[int, tuple[Tensor, Vector]] = {}  # shares that were given, and not taken in
        self.donated: list[Tensor] = []
        self.unpaid: dict[int, Tensor] = {}  # what a worker has given in this step, and still counts as its own

    def begin(self, replicas: dict[Address, Replica]) -> None:
        spread()(replicas)
        self.start = sum((mass(one.flat.parts[0], 1.0) for one in replicas.values()), torch.zeros(6))

    @contextmanager
    def watched(self) -> Iterator[None]:
        give, take_in, weigh = PushedShares.give, PushedShares.take_in, Replica.weigh
        given, take = PeerMembership._given, PeerMembership._take

        def giving(shares: PushedShares, peer: int, weight: float) -> Vector:
            share = give(shares, peer, weight)
            moved = torch.cat([share.parts[0], torch.tensor([weight])])
            self.out[share.parts[0].data_ptr()] = moved, share  # kept, so that no other gets its place in memory
            self.unpaid[id(shares.replica)] = self.unpaid.get(id(shares.replica), torch.zeros(6)) + moved
            return share

        def taking_in(shares: PushedShares, kept: float, pushes: list[PushShare], total: float) -> None:
            for push in pushes:
                del self.out[push.share.parts[0].data_ptr()]  # once only
            take_in(shares, kept, pushes, total)

        def weighing(replica: Replica, weight: float) -> None:
            paid = self.unpaid.pop(id(replica), torch.zeros(6))
            self.early = self.early + (paid if weight == 0 else torch.zeros(6))  # it died before it counted less
            weigh(replica, weight)

        def donating(peers: PeerMembership) -> GivenModel:
            found = given(peers)
            self.donated.append(mass(found.model.parts[0], found.weight))
            return found

        def taking(peers: PeerMembership, found: GivenModel) -> None:
            here = mass(found.model.parts[0], found.weight)
            self.donated = [one for one in self.donated if not torch.equal(one, here)]
            take(peers, found)

        with pytest.MonkeyPatch.context() as patch:
            for kind, name, act in [
                (PushedShares, "give", giving), (PushedShares, "take_in", taking_in), (Replica, "weigh", weighing),
                (PeerMembership, "_given", donating), (PeerMembership, "_take", taking),
            ]:  # fmt: skip
                patch.setattr(kind, name, act)
            yield


def mass(numbers: Tensor, weight: float) -> Tensor:
    """x and y."""
    return torch.cat([numbers * weight, torch.tensor([weight], dtype=torch.float64)])


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    ("spec", "cluster"),
    [("sgp", CLUSTER), ("sgp(overlap=2)", slowed(w2=2)), ("sgp over exponential", INSTANT)],
)
def test_the_mass_of_a_lost_worker_is_lost_and_no_other(spec: str, cluster: Any, every: int) -> None:
    """Killed at every effect: x and y of all are those of the beginning, less what the lost one had or was sent."""
    given: Any = {"workers": 4, "cluster": cluster, "task": quadratic(lr=0.0)}
    whole = Finished(spec, **given)
    for at in range(0, whole.effects, every):
        moves = Mass()
        with moves.watched():
            found = Finished(spec, [at], before=moves.begin, **given)
        have = sum((mass(one.flat.parts[0], one.shown.weight) for one in found.replicas.values()), torch.zeros(6))
        lost = sum((mass(numbers, weight) for _, numbers, weight in found.lost), torch.zeros(6)) - moves.early
        loose = sum([one for one, _ in moves.out.values()], torch.zeros(6)) + sum(moves.donated, torch.zeros(6))
        assert torch.allclose(have, moves.start - lost - loose, atol=1e-12), f"killed at effect {at}"
        weights = [one.shown.weight for one in found.replicas.values()]
        assert weights.count(0) <= (at > whole.effects - 5), "one that is lost when all others have ended gets none"
        assert found.outcome.tallies[worker(1)].notes["lost shares"] == 1


def test_malt_with_a_barrier_where_all_hear_all_ends_with_the_weights_of_a_run_that_lost_nobody() -> None:
    task = mlp(sgd(momentum=0.9))
    rigid = run(task, "malt(barrier=true)", 3, steps=STEPS).scored
    whole = Finished("malt(barrier=true)", task=task)
    for at in range(0, whole.effects - 1, 2):
        found = Finished("malt(barrier=true)", [at], task=task)
        assert all(torch.allclose(found.weights[name], rigid[name], atol=1e-12) for name in rigid), f"effect {at}"
        assert found.outcome.samples == whole.outcome.samples


# -- by hand -----------------------------------------------------------------------------------------------------------


def shares(**known: Any) -> Any:
    """The shares of a worker that hears two others, with what it knows of them."""
    made: Any = object.__new__(StepShares)
    sent = list[Any]()

    async def nothing(*_: Any) -> None: ...

    async def broadcast(to: Any, word: Any) -> None:
        sent.append(word)

    async def adopt() -> bool:
        return True

    made.node = SimpleNamespace(incarnation=SimpleNamespace(enters=True, step=1), broadcast=broadcast)
    made.peers, made.elastic, made.replica = SimpleNamespace(adopt=adopt, others=[1, 2]), True, None
    made.look, made.sent_words, made._next = nothing, sent, Memory(5)
    for name, value in known.items():
        setattr(made, name, value)
    return made


def ended(program: Any) -> Any:
    with pytest.raises(StopIteration) as end:
        program.send(None)
    return end.value.value


def test_an_old_share_is_not_given_again() -> None:
    found = shares(_came={1: {3: "old", 5: "new"}}, _newest={1: 5}, _begins={1: 0})
    assert ended(found.since(1, newest=3, due=4)) == (["new"], 5) and found._came == {1: {}}


def test_a_new_incarnation_does_the_last_step_again_that_its_predecessor_may_not_have_sent_to_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def begin(*_: Any) -> None: ...

    monkeypatch.setattr("covey.decentral.step_shares.begin", begin)
    found = shares(_lacked={1: 4, 2: 3})
    assert ended(found.enter()) and found.next == 3 and found.sent_words == [ShareStanding(3, 0)]


@pytest.mark.parametrize(("held", "begin"), [({}, 5), ({1: "share"}, 4)])
def test_a_new_incarnation_waits_for_the_share_that_went_to_the_lost_one(held: dict[int, str], begin: int) -> None:
    found = shares(_held=held, _lacked={}, _newest={1: 7})
    ended(found._tell_restarted(1))
    assert found.sent_words == [ShareStanding(begin, 8), *held.values()]
