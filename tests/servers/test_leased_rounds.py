"""Global sums whose workers come and go: the model is a replay of the batches that were accepted, each of them once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import covey
from covey.data.leases import Lease, Ledger
from covey.data.shards import Shards
from covey.errors import CoveyError, PeerLost
from covey.membership import Departed, Incarnation, Joined
from covey.model import build
from covey.program import Memory
from covey.servers import packed_state
from covey.servers.leased_rounds import FADE, LeasedRounds
from covey.servers.round_messages import SeatMarks
from covey.simulate import BytesPerSecond, Cluster, Link, Seconds
from tests.worlds import mlp, sgd, worker

STEPS, SEATS = 4, 3
SAMPLES = SEATS * STEPS * 8
UNEVEN = Cluster(compute=Seconds(0.01), jitter=0.3)
SLOW = Cluster(compute=Seconds(0.01), jitter=0.3, link=Link(bandwidth=BytesPerSecond(1e5), latency=Seconds(0.002)))
EFFECTS = 60  # a worker has fewer, in the steps of which anything depends
MOMENTUM = 0.9  # where each worker has the optimizer's state of some slices only
SLICED = ("sliced", "caffeonspark")
Round = dict[int, list[Lease]]  # of each worker, in the order in which it did them
History = list[Round]


@pytest.fixture
def accepted(monkeypatch: pytest.MonkeyPatch) -> list[History]:
    """The rounds that each worker has done, or taken over from others: in the order in which programs ended."""
    found: list[History] = []
    settle, given, take, part = (
        LeasedRounds._settle, LeasedRounds._given, LeasedRounds._take, LeasedRounds.part_from_all
    )  # fmt: skip

    def history(self: Any) -> list[Any]:
        return self.__dict__.setdefault("history", [])

    def settling(self: Any, end: int) -> None:
        held = {rank: [lease for step, lease in sorted(held.items()) if step < end]
                for rank, held in enumerate(self.ledger.held) if held}  # fmt: skip
        history(self).append(held)
        settle(self, end)

    def taking(self: Any, state: dict[str, Any], done: int) -> None:
        take(self, state, done)
        self.history = [{rank: [Lease(*lease) for lease in leases] for rank, leases in one.items()}
                        for one in state["history"]]  # fmt: skip

    async def parting(self: Any) -> bool:
        over = await part(self)
        if over:
            found.append(history(self))
        return over

    monkeypatch.setattr(LeasedRounds, "_settle", settling)
    monkeypatch.setattr(LeasedRounds, "_given", lambda self: {**given(self), "history": history(self)})
    monkeypatch.setattr(LeasedRounds, "_take", taking)
    monkeypatch.setattr(LeasedRounds, "part_from_all", parting)
    return found


def run(strategy: str, faults: str = "", workers: int | str = "1:3", **given: Any) -> covey.Result:
    return covey.fit(
        strategy=strategy, workers=workers, engine="simulated", faults=faults or None, runs=False,
        **{"task": mlp(sgd(momentum=MOMENTUM if strategy in SLICED else 0.0)), "steps": STEPS, "cluster": UNEVEN}
        | given,
    )  # fmt: skip


class Replay:
    """One model and a plain loop over what was accepted."""

    def __init__(self) -> None:
        self.task = mlp()
        assert isinstance(self.task.data, tuple)
        self.deal, self.module = Shards(len(self.task.data[0]), SEATS, 8), build.model(self.task, 0)

    def gradient(self, at: Tensor, *leases: Lease) -> Tensor:
        assert isinstance(self.task.data, tuple)
        nn.utils.vector_to_parameters(at.clone(), self.module.parameters())
        picked = torch.cat([self.deal.indices(*lease) for lease in leases])
        loss = self.task.forward(self.module, tuple(column[picked] for column in self.task.data))
        return torch.cat([one.flatten() for one in torch.autograd.grad(loss, list(self.module.parameters()))])

    @property
    def start(self) -> Tensor:
        return nn.utils.parameters_to_vector(self.module.parameters()).detach().clone()

    def mean(self, at: Tensor, one: Round) -> Tensor:
        """The mean of the models of all that trained in this round, each alone."""
        models = []
        for leases in one.values():
            model = at.clone()
            for lease in leases:
                model -= 0.1 * self.gradient(model, lease)
            models.append(model)
        return torch.stack(models).mean(0)


def summed(history: History) -> Tensor:
    """`allreduce`: each round is one step on the mean gradient of all of its samples."""
    replay = Replay()
    flat = replay.start
    for one in history:
        if leases := [lease for each in one.values() for lease in each]:
            flat -= 0.1 * replay.gradient(flat, *leases)
    return flat


def sliced(history: History) -> Tensor:
    """The same with momentum, as one optimizer has it for all slices."""
    replay = Replay()
    flat = nn.Parameter(replay.start)
    optimizer = torch.optim.SGD([flat], lr=0.1, momentum=MOMENTUM)
    for one in history:
        if leases := [lease for each in one.values() for lease in each]:
            flat.grad = replay.gradient(flat.detach(), *leases)
            optimizer.step()
    return flat.detach()


def averaged(history: History) -> Tensor:
    """`local_sgd`."""
    replay = Replay()
    flat = replay.start
    for one in history:
        flat = replay.mean(flat, one) if one else flat
    return flat


def filtered(history: History) -> Tensor:
    """`bmuf(momentum=0.5)`: Chen & Huo 2016."""
    replay = Replay()
    flat, moving = replay.start, torch.zeros_like(replay.start)
    for one in history:
        if one:
            moving = 0.5 * moving + replay.mean(flat, one) - flat
            flat = flat + moving
    return flat


def stepped(history: History) -> Tensor:
    """`diloco`: PyTorch's SGD with Nesterov momentum, on minus the mean change."""
    replay = Replay()
    outer = nn.Parameter(replay.start)
    optimizer = torch.optim.SGD([outer], lr=0.7, momentum=0.9, nesterov=True)
    for one in history:
        if one:
            outer.grad = outer.detach() - replay.mean(outer.detach(), one)
            optimizer.step()
    return outer.detach()


KINDS: dict[str, Callable[[History], Tensor]] = {
    "allreduce": summed, "allreduce(pattern=halving)": summed, "local_sgd(period=2)": averaged,
    "local_sgd(period=1, growth=2)": averaged, "bmuf(period=3, momentum=0.5)": filtered, "diloco(period=2)": stepped,
    "sliced": sliced, "caffeonspark": sliced,
}  # fmt: skip


def check(result: covey.Result, strategy: str, accepted: list[History]) -> None:
    """All that ended together have the same past, in which each batch counts once, and the model is its replay."""
    history = accepted[0]
    assert all(other == history for other in accepted), "who ends has accepted the same"
    counted = Counter(lease for one in history for leases in one.values() for lease in leases)
    assert counted == Counter(Lease(seat, number) for seat in range(SEATS) for number in range(STEPS))
    assert result.samples == SAMPLES
    names = [name for name, _ in build.model(mlp(), 0).named_parameters()]
    found = torch.cat([result.weights[name].flatten() for name in names])
    torch.testing.assert_close(found, KINDS[strategy](history), rtol=1e-12, atol=1e-12)
    accepted.clear()


@pytest.mark.parametrize("strategy", KINDS)
def test_where_nobody_goes_a_range_is_its_largest_number(strategy: str, accepted: list[History]) -> None:
    task = mlp(sgd(momentum=0.9))
    ranged, fixed = (run(strategy, workers=workers, task=task) for workers in ("2:3", 3))
    assert len(accepted) == 3 and ranged.samples == fixed.samples == SAMPLES
    for name, there in fixed.weights.items():
        same = torch.equal if strategy.startswith(("allreduce", *SLICED)) else torch.allclose
        assert same(ranged.weights[name], there)


FAULTS = [
    "leave worker 1#{n}",
    "leave worker 0#{n}",
    "kill worker 1#{n} for 7ms",
    "leave worker 1#{n}; join worker 1@28ms",
    "leave worker 2#{n}; join worker 2@{m}ms; leave worker 0@{l}ms",
    "join worker 2@{m}ms; leave worker 0#{n}; join worker 0@{l}ms",
    "kill worker 0#{n} for 12ms; leave worker 1@{m}ms",
    "leave worker 1#{n}; leave worker 2@{l}ms",
]


RARE = ("allreduce(pattern=halving)", "local_sgd(period=1, growth=2)", "caffeonspark")


@pytest.mark.parametrize("faults", FAULTS)
@pytest.mark.parametrize(
    "strategy", [pytest.param(one, marks=[pytest.mark.full] if one in RARE else []) for one in KINDS]
)
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.full) for part in range(1, 15))])
def test_at_whatever_effect_somebody_goes_the_model_is_a_replay(
    accepted: list[History], strategy: str, faults: str, part: int
) -> None:
    for number in range(part + 1, EFFECTS, 15):
        plan = faults.format(n=number, m=number + 3, l=number + 7)
        try:
            result = run(strategy, plan)
        except PeerLost as lost:
            if "kill" not in plan or "no other worker had the model" not in str(lost):
                raise
            accepted.clear()
            continue
        assert not result.notes.get("lost optimizer states") or plan.count("kill") + plan.count("leave") > 1
        if not result.notes.get("lost optimizer states"):
            check(result, strategy, accepted)
        accepted.clear()


def test_who_comes_takes_part_from_the_next_round_on(accepted: list[History]) -> None:
    result = run("allreduce", "join worker 2@15ms; leave worker 0@35ms")
    sizes = [sorted(one) for one in accepted[0] if one]
    assert [0, 1] in sizes and [0, 1, 2] in sizes and [1, 2] in sizes, sizes
    assert isinstance(result.membership, list)
    told = [(event.event, event.who, event.workers) for event in result.membership]
    assert told == [("join", "worker 2", 3), ("leave", "worker 0", 2)]
    check(result, "allreduce", accepted)


def test_batches_of_empty_seats_are_done_in_their_turn(accepted: list[History]) -> None:
    """No worker is more than a batch ahead of those that nobody has done yet."""
    run("allreduce", "leave worker 1#3", steps=5)
    for place, one in enumerate(accepted[0]):
        numbers = [lease.number for leases in one.values() for lease in leases]
        later = [lease.number for rest in accepted[0][place + 1 :] for leases in rest.values() for lease in leases]
        assert max(numbers, default=0) <= min(later, default=9) + 1


def test_the_model_of_another_worker_is_the_runs_when_the_first_one_is_gone(accepted: list[History]) -> None:
    for strategy in ("allreduce", "bmuf(period=3, momentum=0.5)"):
        result = run(strategy, "leave worker 0@12ms; leave worker 1@25ms")
        assert all(sorted(one) == [2] for one in accepted[0][-1:])
        check(result, strategy, accepted)


@pytest.mark.parametrize("strategy", [*KINDS, "malt(barrier=true)"])
def test_a_worker_that_is_alone_hears_of_those_that_come(strategy: str, accepted: list[History]) -> None:
    """The first worker was alone when the others came, and goes without notice when they have been there for rounds."""
    faults = "leave worker 1@11ms; leave worker 2@12ms; join worker 2@21ms; join worker 1@50ms; leave worker 0@90ms"
    run(strategy, faults, steps=8)
    counted = Counter(lease for one in accepted[0] for leases in one.values() for lease in leases)
    assert counted == Counter(Lease(seat, number) for seat in range(SEATS) for number in range(8))
    sizes = [sorted(one) for one in accepted[0] if one]
    assert [0] in sizes and [0, 2] in sizes and [1, 2] in sizes, sizes
    accepted.clear()


def test_the_worker_that_had_the_model_is_named_when_it_goes_before_anybody_has_a_copy() -> None:
    with pytest.raises(PeerLost, match="worker 0 was lost, and no other worker had the model"):
        run("allreduce", "leave worker 1@11ms; leave worker 2@12ms; join worker 2@21ms; leave worker 0@22ms")


def test_a_run_whose_workers_are_all_lost_ends_by_name() -> None:
    with pytest.raises(PeerLost, match="worker 0 was lost, and no other worker had the model"):
        run("allreduce", "leave worker 1@11ms; leave worker 2@12ms; kill worker 0@20ms")


def test_a_worker_that_dies_again_and_again_leaves_and_the_others_go_on(accepted: list[History]) -> None:
    result = run("allreduce", "kill worker 1#9 for 1ms; kill worker 1#10", max_failures=1)
    assert isinstance(result.membership, list)
    assert [event.event for event in result.membership] == ["rebirth", "leave"]
    check(result, "allreduce", accepted)


@pytest.mark.parametrize("strategy", ["allreduce", "local_sgd(period=3)", "bmuf(period=3)"])
def test_a_run_that_is_told_to_end_does_so_while_somebody_goes(strategy: str) -> None:
    """A target is reached in the middle of a period; who comes or goes then keeps nobody."""
    task = mlp(sgd(), evaluate=lambda model: {"loss": 1.0})
    for number in range(1, 40, 5):
        faults = f"leave worker 1@{number}ms; join worker 1@{number + 9}ms"
        result = run(strategy, faults, task=task, until="loss<=2", scores=4, confirm=3)
        assert result.stopped == "target"


def test_idle_workers_get_the_outcome(accepted: list[History]) -> None:
    """Seats have unequally many batches: at the end some have none, and hold the model all the same."""
    task = mlp(sgd(momentum=0.9), samples=97, batch_size=8)  # 5, 4 and 4 batches an epoch
    for strategy in ("allreduce", "local_sgd(period=3)"):
        ranged, fixed = (
            run(strategy, workers=workers, task=task, steps=None, epochs=2) for workers in ("2:3", 3)
        )  # fmt: skip
        assert ranged.samples == fixed.samples == 2 * 97
        assert all(other == accepted[0] for other in accepted) and sorted(accepted[0][-1]) == [0]
        if strategy == "allreduce":
            assert all(torch.equal(ranged.weights[name], there) for name, there in fixed.weights.items())
        accepted.clear()


def test_who_comes_has_a_batch_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has to give it the outcome of the round in which it came: that is as large as all that it was given."""
    waited: list[str] = []
    hand_out = LeasedRounds.hand_out

    async def handing(self: LeasedRounds) -> None:
        waited.extend(str(who) for who in self.peers if who not in self.group and self.ledger.left)
        await hand_out(self)

    monkeypatch.setattr(LeasedRounds, "hand_out", handing)
    for moment in range(15, 45, 3):
        run("allreduce", f"leave worker 1@11ms; join worker 1@{moment}ms", steps=12)
    assert waited == []


@pytest.mark.parametrize("strategy", ["allreduce", "sliced"])
def test_who_comes_has_an_optimizer_of_its_own(
    strategy: str, accepted: list[History], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was lent is copied before it is written, also where all workers share one memory."""
    monkeypatch.setattr(packed_state, "LARGE", 8)
    task = mlp(sgd(momentum=MOMENTUM))
    for moment in range(15, 45, 3):
        result = run(strategy, f"leave worker 1@11ms; join worker 1@{moment}ms", task=task)
        check(result, "sliced", accepted)


def test_one_that_comes_late_over_a_slow_link_ends_like_the_others(
    accepted: list[History], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that comes when hardly a batch is left reads what it was lent while the others do that one."""
    monkeypatch.setattr(packed_state, "LARGE", 8)
    task = mlp(sgd(momentum=MOMENTUM))
    for moment in range(15, 75, 2):
        result = run(
            "allreduce", f"leave worker 1@11ms; leave worker 2@12ms; join worker 2@{moment}ms", task=task, cluster=SLOW
        )
        check(result, "sliced", accepted)


# -- planted mistakes --------------------------------------------------------------------------------------------------


def plant_off_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that was given back is dealt as the one after it."""
    take = Ledger.take

    def next_one(self: Ledger, worker: int, step: int) -> Lease | None:
        before = deepcopy(self.returned)
        lease = take(self, worker, step)
        if lease in before:
            lease = self.held[worker][step] = Lease(lease.seat, min(lease.number + 1, STEPS - 1))
        return lease

    monkeypatch.setattr(Ledger, "take", next_one)


def plant_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a worker had is forgotten with it."""

    def leave(self: Ledger, worker: int, known: Any) -> None:
        self.held[worker].clear()
        self.empty.add(worker)

    monkeypatch.setattr(Ledger, "leave", leave)


def plant_own_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is behind keeps its own list."""
    monkeypatch.setattr(Ledger, "restore", lambda self, state: None)


def plant_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The furthest does not win: all go back to the last."""
    catch_up = LeasedRounds._catch_up

    async def back(self: Any, standings: dict[int, tuple[int, bool]]) -> None:
        least = min(standings.values())
        await catch_up(self, dict.fromkeys(standings, least))

    monkeypatch.setattr(LeasedRounds, "_catch_up", back)


def plant_untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken sum is repeated with what it left."""
    forget = LeasedRounds._forget

    def keeping(self: Any) -> None:
        self._touched = []
        forget(self)

    monkeypatch.setattr(LeasedRounds, "_forget", keeping)


@pytest.mark.parametrize("plant", [plant_off_by_one, plant_lost, plant_own_list, plant_nearest, plant_untouched])
def test_planted_mistakes_are_found(accepted: list[History], monkeypatch: pytest.MonkeyPatch, plant: Any) -> None:
    plant(monkeypatch)
    broken = 0
    for number in range(2, 30, 2):
        try:
            check(run("allreduce", f"leave worker 1#{number}; join worker 1@{number + 5}ms"), "allreduce", accepted)
        except (AssertionError, CoveyError, KeyError):
            broken += 1
            accepted.clear()
    assert broken


# -- who is there ------------------------------------------------------------------------------------------------------


def test_a_word_of_others_that_somebody_is_gone_is_waited_for_from_the_engine() -> None:
    node: Any = SimpleNamespace(rank=0, workers=3, incarnation=Incarnation())
    seats = SeatMarks(node)
    assert seats.sure and seats.know((0, 3, 0)) and not seats.know((0, 3, 0))
    assert seats.empty == {1} and not seats.sure, "its own engine has yet to break a round off"
    seats.hear(Departed(1, sender=worker(1)))
    assert seats.sure and seats.empty == {1}
    seats.hear(Joined(2, sender=worker(1)))
    assert seats.sure and seats.empty == set() and seats.marks == (0, 4, 0)
    seats.hear(Departed(1, sender=worker(1)))
    assert seats.empty == set(), "what is known only grows"


# -- by hand -----------------------------------------------------------------------------------------------------------


def by_hand() -> tuple[Any, list[float]]:
    """The first of two workers with a batch each; and the weights that its model was given."""
    weights = list[float]()

    async def nothing(*_: Any) -> None: ...

    made: Any = object.__new__(type("OfTwo", (LeasedRounds,), {"peers": [worker(1)]}))
    made.ledger = Ledger([1, 1], [1, 1], lambda seat, step: 8)
    entering = SimpleNamespace(enters=True)
    made.node = SimpleNamespace(rank=0, address=worker(0), step=0, incarnation=entering, note=nothing)
    made._done, made.end, made.meet, made._news = Memory(0), 0, nothing, lambda: False
    made._copies, made._all = [], ((), [], ())
    made.replica = SimpleNamespace(weigh=weights.append)
    made.state = SimpleNamespace(alike=False, counts=True, settle=lambda: None)
    return made, weights


def ended(program: Any) -> Any:
    with pytest.raises(StopIteration) as end:
        program.send(None)
    return end.value.value


def test_all_get_their_first_batch_before_anybody_gets_a_second() -> None:
    """The last two batches are those of a seat that is empty."""
    rounds, _ = by_hand()
    rounds.ledger = Ledger([0, 0, 2], [2, 2, 2], lambda seat, step: 8)
    rounds.ledger.empty.add(2)
    assert rounds.begin(2) and [list(held) for held in rounds.ledger.held] == [[0], [0], []]
    assert (rounds.samples, rounds.settled) == (16, 0), "those of the round under way are not done yet"


def test_where_models_differ_each_is_scored_from_when_it_is_one_of_the_others() -> None:
    rounds, weights = by_hand()
    rounds.node.rank = 1
    assert ended(rounds.begin_here()) and weights == [0.0, 1.0]
    rounds.state.alike = True
    rounds._weigh()
    assert weights[-1] == FADE, "of equal ones the first is shown"


@pytest.mark.parametrize(("stopped", "end"), [(False, 5), (True, 3)])
def test_the_steps_of_a_stopped_round_that_were_not_done_are_not_settled(stopped: bool, end: int) -> None:
    rounds, _ = by_hand()
    rounds.node.step, rounds.end = 3, 5

    async def concluded(act: Any, end: int) -> int:
        return end

    rounds._concluded = concluded
    assert ended(rounds.conclude(None, stopped=stopped)) == end


def read_by_another(awaited: list[str]) -> Any:
    """The first of two workers, whose state the other one still reads; what the first awaits is noted."""
    rounds, _ = by_hand()

    async def receive(kind: type, **given: Any) -> object:
        awaited.append(f"{kind.__name__} of {given['sender']}")
        return kind

    rounds.node.receive, rounds.node.address, rounds.node.workers = receive, worker(0), 2
    rounds._reading, rounds.open = [worker(1)], False
    return rounds


def test_what_others_read_is_not_changed_before_they_have_read_it() -> None:
    """The sum changes what they read: where they have no batch, nothing else keeps it waiting for them."""
    awaited = list[str]()
    rounds = read_by_another(awaited)
    rounds.ledger = Ledger([1, 0], [1, 0], lambda seat, step: 8)
    assert rounds.begin(1) and rounds.active == (worker(0),), "the reader has no batch"

    async def act(group: Any) -> None:
        awaited.append("the sum")

    assert ended(rounds.conclude(act)) and awaited == ["PeerReady of worker 1", "the sum"]
    assert rounds._reading == []


def test_nobody_ends_whose_state_is_still_read() -> None:
    awaited = list[str]()
    rounds = read_by_another(awaited)
    rounds.node.broadcast, rounds.seats, rounds.ended = rounds.node.note, SimpleNamespace(marks=(0, 0)), set()
    assert ended(rounds.part_from_all()) and awaited == ["PeerReady of worker 1"]


def test_batches_of_a_round_that_was_cut_short_are_given_out_again() -> None:
    """Two workers were given four batches of 8 samples each, and have done two of them."""
    ledger = Ledger([6, 6], [6, 6], lambda seat, number: 8)
    for step in range(4):
        assert ledger.take(0, step) and ledger.take(1, step)
    rounds: Any = SimpleNamespace(node=SimpleNamespace(workers=2), ledger=ledger, _done=SimpleNamespace(value=0))
    LeasedRounds._settle(rounds, 2)
    assert ledger.done == [16, 16] and rounds._done.value == rounds.end == 2
    again = {ledger.take(rank, step) for step in (2, 3) for rank in (0, 1)}
    assert again == {Lease(seat, number) for seat in (0, 1) for number in (2, 3)}


def test_one_that_ends_is_no_peer_any_more_though_no_seat_changed() -> None:
    made: Any = object.__new__(LeasedRounds)
    made.node, made.ended = SimpleNamespace(rank=0, workers=3), set[int]()
    made.seats, made._peers = SimpleNamespace(marks=(0, 0, 0), empty=set[int]()), (((), 0), ())
    assert made.peers == (worker(1), worker(2)) and made.peers is made.peers
    made.ended.add(2)
    assert made.peers == (worker(1),)
    made.seats = SimpleNamespace(marks=(0, 1, 0), empty={1})
    assert made.peers == ()
