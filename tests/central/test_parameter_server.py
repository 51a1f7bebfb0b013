"""What tells bsp, ssp and asynchronous apart: who waits for whom, and what a gradient was computed on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from covey import catalog
from covey.central.server.shard import Params, Pull, Push, Shard
from covey.errors import PlanError
from covey.message import Address
from covey.synchronization import Board, Bounded, Everyone
from covey.synchronization.arrivals import Arrivals, Lacking
from covey.task import Task
from covey.vector import Vector
from tests.conftest import Golden
from tests.worlds import INSTANT, Recorder, mlp, paced, quadratic, run, server, sgd, slowed, worker

# -- bsp --------------------------------------------------------------------------------------------------------------


def test_bsp_takes_the_time_of_the_slowest_and_the_weights_of_any() -> None:
    """Ten times slower makes every step ten times longer, and changes no bit."""
    even = run(mlp(), "bsp", 4, steps=10, cluster=INSTANT)
    late = run(mlp(), "bsp", 4, steps=10, cluster=slowed(INSTANT, w2=10))
    assert even.outcome.seconds == pytest.approx(0.1)
    assert late.outcome.seconds == pytest.approx(1.0)
    assert all(torch.equal(even.scored[name], late.scored[name]) for name in even.scored)


def test_servers_that_hold_reads_back_themselves_ask_about_them_every_time() -> None:
    """Who decides more than the rule does cannot pass over those whom the rule has refused."""
    deciding = [kind for kind in _kinds(Shard) if {"park", "admits"} & vars(kind).keys() and kind is not Shard]
    assert len(deciding) >= 3 and not any(kind.only_rule for kind in deciding)
    assert Shard.only_rule


def _kinds(kind: type[Shard]) -> list[type[Shard]]:
    return [kind, *(found for below in kind.__subclasses__() for found in _kinds(below))]


def test_a_barrier_asks_about_a_read_only_when_the_answer_can_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ten thousand workers, to ask about all reads that wait whenever a message comes takes minutes."""
    asked, admits = Counter[int](), Bounded.admits

    def count(gate: Bounded, rank: int, board: Board) -> bool:
        asked[rank] += 1
        return admits(gate, rank, board)

    monkeypatch.setattr(Bounded, "admits", count)
    run(mlp(), "bsp", 20, steps=4, cluster=slowed(INSTANT, w1=3))
    assert 20 * 4 <= sum(asked.values()) <= 20 * 4 * 3


def test_who_lacks_a_gradient_is_found_as_they_come_and_workers_leave() -> None:
    """Compared with the rule itself, which looks at all that waits."""
    rng = Random(0)
    for _ in range(200):
        board, waiting = Board(dict.fromkeys(range(6), 0)), list[Push]()
        lacking = Lacking(waiting, board)
        for _ in range(20):
            if rng.random() < 0.7 and board.clocks:
                rank = rng.choice(list(board.clocks))
                waiting.append(Push(0, 0, 1, Vector(()), Vector(()), sender=worker(rank)))
            elif board.clocks:
                board.leave(rng.choice(list(board.clocks)))
            choice = Everyone().choose(Arrivals(waiting), board)
            assert lacking.somebody() == (choice is None and bool(waiting or board.clocks))
            if choice:
                waiting[:] = [push for place, push in enumerate(waiting) if place not in choice.used]
                lacking.forget()


def test_bsp_makes_one_update_a_step_and_none_is_stale() -> None:
    log = run(quadratic(), "bsp", 4, steps=6, cluster=slowed(w1=3)).log
    assert log.values("update") == [1] * 6
    assert log.values("staleness") == [0] * 24
    assert set(log.values("lead")) == {0}


def test_bsp_steps_on_the_mean_of_all_samples() -> None:
    """One step from w: w - lr (w - the mean of all four batches)."""
    task = quadratic(lr=0.5)
    world = run(task, "bsp", 4, steps=1)
    assert isinstance(task.data, tuple)
    seen = torch.cat([task.data[0][world.deal.indices(rank, 0)] for rank in range(4)])
    expected = torch.ones(5).double() - 0.5 * (torch.ones(5) - seen.mean(0))
    assert torch.allclose(world.scored["w"], expected, atol=1e-12)


# -- ssp --------------------------------------------------------------------------------------------------------------


def ticks(log: Recorder, workers: int) -> Iterable[tuple[Address, int]]:
    """How far each worker is ahead of the slowest right after each of its pushes has arrived."""
    clocks = Counter({worker(rank): 0 for rank in range(workers)})
    for event in log.deliveries:
        if isinstance(event.message, Push) and event.to == server(0):
            clocks[event.sender] += 1
            yield event.sender, clocks[event.sender] - min(clocks.values())


@pytest.mark.parametrize("bound", [0, 1, 2, 5])
def test_ssp_reads_reach_the_bound_and_ticks_one_more(bound: int) -> None:
    """The gate is on the read: a worker may push once more before it is held (Ho et al. 2013)."""
    log = run(quadratic(), f"ssp(bound={bound})", 3, steps=12, cluster=slowed(w0=20, w1=20)).log
    assert max(log.values("lead")) == bound
    assert max(lead for _, lead in ticks(log, 3)) == bound + 1


def test_ssp_holds_the_fast_worker_exactly_while_the_slow_one_is_too_far_behind() -> None:
    """Worker 1 does a step in 10 ms and worker 0 in 100: with bound 2 it reads at 0, 10 and 20, and then waits."""
    log = run(quadratic(), "ssp(bound=2)", 2, steps=5, cluster=slowed(INSTANT, w0=10)).log
    reads = [round(sent.at, 6) for sent in log.kinds(Params) if sent.to == worker(1)]
    assert reads == [0, 0.01, 0.02, 0.1, 0.2]  # each read after the third follows a push of worker 0
    asks = [round(sent.at, 6) for sent in log.kinds(Pull) if sent.sender == worker(1)]
    assert asks == [0, 0.01, 0.02, 0.03, 0.11]


def test_ssp_never_holds_the_slowest() -> None:
    log = run(quadratic(), "ssp(bound=1)", 3, steps=6, cluster=slowed(INSTANT, w0=4, w1=2)).log
    assert not [wait for wait in log.waits if wait.who == worker(0)]
    assert [wait for wait in log.waits if wait.who == worker(2)]


def test_a_worker_that_has_left_holds_nobody() -> None:
    """Of 9 samples worker 0 has 5 batches, the others 4 or less: they end, and it goes on alone."""
    task = quadratic(samples=9, batch_size=1)
    world = run(task, "ssp(bound=0)", 2, epochs=1, cluster=slowed(INSTANT, w0=3))
    assert world.outcome.samples == 9
    assert world.outcome.seconds == pytest.approx(0.15)


@settings(max_examples=25, deadline=None)
@given(
    bound=st.integers(0, 4),
    slow=st.lists(st.floats(0.1, 10.0), min_size=1, max_size=5),
    jitter=st.sampled_from([0.0, 0.5, 2.0]),
    servers=st.integers(1, 3),
    seed=st.integers(0, 100),
)
def test_no_read_is_answered_beyond_the_bound(
    bound: int, slow: list[float], jitter: float, servers: int, seed: int
) -> None:
    cluster = paced(slow, jitter)
    task = quadratic(samples=4 * len(slow))
    world = run(task, f"ssp(bound={bound})", len(slow), servers=servers, steps=9, cluster=cluster, seed=seed)
    assert max(world.log.values("lead")) <= bound
    assert max(lead for _, lead in ticks(world.log, len(slow))) <= bound + 1
    assert len(world.log.kinds(Params)) == 9 * len(slow) * servers
    for rank in range(servers):  # what the notes say is what the answers were
        assert checked_reads(world.log, server(rank), len(slow)) <= bound


def checked_reads(log: Recorder, who: Address, workers: int) -> int:
    """The largest lead at which this server answered, from its messages alone."""
    clocks = Counter({worker(rank): 0 for rank in range(workers)})
    events = sorted(
        [(event.at, 0, n, event) for n, event in enumerate(log.deliveries) if event.to == who]
        + [(event.at, 1, n, event) for n, event in enumerate(log.sends) if event.sender == who],
        key=lambda item: item[:3],
    )
    largest = 0
    for _, _, _, event in events:
        if isinstance(event.message, Push):
            clocks[event.sender] += 1
        elif isinstance(event.message, Params):
            assert event.message.step == clocks[event.to], "a pull was answered before the push of the step before"
            largest = max(largest, clocks[event.to] - min(clocks.values()))
    return largest


# -- asynchronous -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 7])
def test_asynchronous_workers_of_equal_speed_are_stale_by_all_the_others(workers: int) -> None:
    log = run(quadratic(), "asynchronous", workers, steps=8, cluster=INSTANT).log
    ages = log.values("staleness")
    assert ages[:workers] == list(range(workers))  # the first gradients were all taken at version 0
    assert ages[workers:] == [workers - 1] * (7 * workers)


def test_asynchronous_drops_no_gradient_and_holds_nobody() -> None:
    world = run(quadratic(), "asynchronous", 4, steps=8, cluster=slowed(INSTANT, w0=9, w1=3))
    assert len(world.log.kinds(Push)) == len(world.log.values("update")) == 32
    assert not [wait for wait in world.log.waits if wait.who.role == "worker"]
    assert world.outcome.seconds == pytest.approx(8 * 0.09)
    assert max(world.log.values("lead")) == 8 - 1


@settings(max_examples=15, deadline=None)
@given(slow=st.lists(st.floats(0.1, 10.0), min_size=1, max_size=5), seed=st.integers(0, 100))
def test_every_gradient_is_applied_once_whatever_the_speeds(slow: list[float], seed: int) -> None:
    cluster = paced(slow, jitter=0.5)
    log = run(quadratic(), "asynchronous", len(slow), steps=6, cluster=cluster, seed=seed).log
    assert len(log.values("update")) == len(log.values("staleness")) == 6 * len(slow)
    # each update ages every gradient under way by one, so that nothing is older than all others have pushed
    assert max(log.values("staleness")) <= 6 * (len(slow) - 1)


def test_each_push_counts_a_share() -> None:
    """Two pushes on the same weights: w - lr/2 (g0 + g1), as one step with the mean gradient."""
    task = quadratic(lr=0.5)
    shared = run(task, "asynchronous", 2, steps=1).scored["w"]
    together = run(task, "bsp", 2, steps=1).scored["w"]
    assert torch.allclose(shared, together, atol=1e-12)
    whole = run(task, "asynchronous(weight=1)", 2, steps=1).scored["w"]
    assert torch.allclose(whole - torch.ones(5), 2 * (together - torch.ones(5)), atol=1e-12)


def test_a_gradient_is_taken_at_the_weights_that_were_read() -> None:
    """The slow worker's push uses w0, though the server has moved twice since."""
    task = quadratic(lr=0.5)
    world = run(task, "asynchronous(weight=1)", 2, steps=2, cluster=slowed(INSTANT, w1=3))
    assert isinstance(task.data, tuple)

    def mean(rank: int, step: int) -> torch.Tensor:
        assert isinstance(task.data, tuple)
        return task.data[0][world.deal.indices(rank, step)].mean(0)

    start = w = torch.ones(5).double()
    w = w - 0.5 * (w - mean(0, 0))
    w = w - 0.5 * (w - mean(0, 1))
    read = w = w - 0.5 * (start - mean(1, 0))
    w = w - 0.5 * (read - mean(1, 1))
    assert torch.allclose(world.scored["w"], w, atol=1e-12)
    assert world.log.values("staleness") == [0, 0, 2, 0]


# -- several servers --------------------------------------------------------------------------------------------------


class Lamb(torch.optim.SGD):
    """Stands for layer-wise optimizers: it asks for the norm of a whole parameter."""

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    with torch.no_grad():
                        p.add_(p.grad / (p.grad.norm() + 1), alpha=-group["lr"])


def test_layer_wise_optimizers_get_whole_parameters_on_any_number_of_servers() -> None:
    task = mlp(lambda pairs: Lamb(pairs, lr=0.1))
    one, two, four = (run(task, "bsp", 2, servers=count, steps=5).scored for count in (1, 2, 4))
    for name, tensor in one.items():
        assert torch.equal(tensor, two[name]) and torch.equal(tensor, four[name])


def test_more_servers_than_whole_parameters_are_refused() -> None:
    with pytest.raises(PlanError, match="whole parameters.*only 4 for 5 servers"):
        run(mlp(lambda pairs: Lamb(pairs, lr=0.1)), "bsp", 2, servers=5, steps=1)


@pytest.mark.parametrize("servers", [1, 2, 3, 5])
def test_groups_by_name_keep_their_settings_on_every_server(servers: int) -> None:
    def by_name(pairs: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        given = list(pairs)
        weights = [p for name, p in given if name.endswith("weight")]
        biases = [p for name, p in given if name.endswith("bias")]
        groups = [{"params": weights, "lr": 0.1, "weight_decay": 0.1}, {"params": biases, "lr": 0.0}]
        return torch.optim.SGD([group for group in groups if group["params"]], lr=1.0)

    task = mlp(by_name)
    torch.manual_seed(0)
    start = task.model().state_dict()
    scored = run(task, "bsp", 2, servers=servers, steps=4).scored
    plain = run(task, "bsp", 2, servers=1, steps=4).scored
    for name, tensor in scored.items():
        assert torch.equal(tensor, start[name]) == name.endswith("bias")
        assert torch.allclose(tensor, plain[name], atol=1e-12)


def test_servers_hold_what_the_optimizer_needs_and_workers_nothing() -> None:
    world = run(mlp(sgd(momentum=0.9)), "bsp", 2, servers=2, steps=2)
    assert all(not replica.optimizer.state for replica in world.workers())
    kept = [
        state["momentum_buffer"].numel()
        for index in range(2)
        for state in world.replicas[server(index)].optimizer.state.values()
    ]
    assert sum(kept) == world.replicas[worker(0)].flat.numel


@pytest.mark.parametrize(
    ("spec", "words"),
    [("ssp(bound=-1)", "0 or more"), ("ssp(weight=0)", "must be more than 0"), ("asynchronous(weight=-1)", "1/3")],
)
def test_settings_that_cannot_work_are_refused(spec: str, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        catalog.resolve(spec, 3)


# -- pictures ---------------------------------------------------------------------------------------------------------


def thousand_bytes(samples: int = 64) -> Task:
    return quadratic(size=250, samples=samples, dtype=torch.float32)


def test_picture_of_ssp_holding_back_a_worker_four_times_as_fast(golden: Golden) -> None:
    golden("traces/ssp_bound_2.txt", run(thousand_bytes(), "ssp(bound=2)", 2, steps=5, cluster=slowed(w0=4)).trace)


def test_picture_of_bsp_with_a_slow_worker(golden: Golden) -> None:
    golden("traces/bsp_one_slow.txt", run(thousand_bytes(), "bsp", 3, steps=2, cluster=slowed(w1=3)).trace)
