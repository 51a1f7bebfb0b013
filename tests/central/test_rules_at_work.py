"""What tells the other rules of the family apart: who is waited for, what counts, what is corrected, who asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import covey
from covey.catalog import resolve
from covey.central.cached.cache import ParameterCopy, ReadParameters
from covey.central.server.compensation import Compensation
from covey.central.server.parameter_server import parameter_server
from covey.central.server.shard import Params, Push, ShardPolicy
from covey.errors import PlanError
from covey.exchange.codec import Codec, dense
from covey.simulate import BytesPerSecond, Link, Seconds
from covey.strategy import Strategy
from covey.synchronization import Board, Everyone, Gate, Gather, GatherChoice, Rule, Soft, WaitingGradient
from covey.vector import Vector
from tests.central.test_downpour import ramp
from tests.worlds import CLUSTER, INSTANT, middle, mlp, paced, quadratic, run, server, sgd, slowed

# -- backup workers ---------------------------------------------------------------------------------------------------


def test_quorum_takes_the_time_of_the_qth_fastest() -> None:
    """Workers of 10, 20, 30 and 1000 ms: three of four make a step of 30 ms."""
    world = run(quadratic(), "quorum(size=3)", 4, steps=5, cluster=slowed(INSTANT, w1=2, w2=3, w3=100))
    updates = [round(note.at, 6) for note in world.log.notes if note.kind == "update"][:5]
    assert updates == [0.03, 0.06, 0.09, 0.12, 0.15]


def test_a_late_gradient_never_changes_the_weights() -> None:
    """With the fourth worker so slow that all its gradients are late, the weights are those of the first three."""
    late = run(quadratic(), "quorum(size=3)", 4, steps=6, cluster=slowed(INSTANT, w3=5.5))
    dropped = sum(late.log.values("dropped"))
    assert dropped > 0
    assert set(late.log.values("staleness")) == {0}, "every gradient that counts is fresh"
    applied = len(late.log.values("staleness"))
    assert applied + dropped == 24, "a gradient is applied or dropped"


def test_quorum_of_all_is_bsp() -> None:
    ours, theirs = (run(mlp(), spec, 4, steps=10, cluster=slowed(w2=3)) for spec in ("quorum(size=4)", "bsp"))
    assert all(torch.equal(ours.scored[name], theirs.scored[name]) for name in theirs.scored)


def test_folding_late_gradients_in_drops_none() -> None:
    log = run(quadratic(), "quorum(size=3, late=fold)", 4, steps=6, cluster=slowed(INSTANT, w3=5.5)).log
    assert log.values("dropped") == []
    assert len(log.values("staleness")) == 24
    assert max(log.values("staleness")) > 0


def test_a_fast_worker_may_supply_two_of_tensorflows_gradients() -> None:
    """Workers of 10, 25 and 1000 ms, two gradients a step: the third one's token of a step is taken by the first."""
    cluster = slowed(INSTANT, w1=2.5, w2=100)
    twice = run(quadratic(), "tensorflow(size=2) over servers(count=1)", 3, steps=4, cluster=cluster).log
    once = run(quadratic(), "quorum(size=2)", 3, steps=4, cluster=cluster).log
    times = [[round(note.at, 6) for note in log.notes if note.kind == "update"][:2] for log in (twice, once)]
    assert times == [[0.025, 0.045], [0.025, 0.05]]
    pushed = [(sent.sender.rank, sent.message.version) for sent in twice.kinds(Push)]
    assert pushed[:5] == [(0, 0), (1, 0), (0, 1), (0, 1), (1, 1)], "the last of them is late"
    assert sum(twice.values("dropped")) > 0


# -- bounds that move -------------------------------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(st.lists(st.sampled_from([1.0, 2.0, 3.0, 7.0]), min_size=2, max_size=4), st.integers(0, 2), st.integers(0, 3))
def test_dssp_reads_stay_in_their_range(slow: list[float], low: int, extra: int) -> None:
    log = run(quadratic(), f"dssp(low={low}, extra={extra})", len(slow), steps=15, cluster=paced(slow, jitter=0.2)).log
    assert max(log.values("lead")) <= low + extra


def test_dssp_goes_beyond_its_low_bound_where_that_saves_waiting_and_ssp_does_not() -> None:
    cluster = slowed(INSTANT, w1=3)
    moving = run(quadratic(), "dssp(low=1, extra=4)", 2, steps=20, cluster=cluster).log.values("lead")
    assert 1 < max(moving) <= 5
    assert max(run(quadratic(), "ssp(bound=1)", 2, steps=20, cluster=cluster).log.values("lead")) == 1


def test_dssp_without_extra_is_ssp() -> None:
    cluster = slowed(w1=3)
    ours, theirs = (run(mlp(), spec, 3, steps=12, cluster=cluster) for spec in ("dssp(low=2, extra=0)", "ssp(bound=2)"))
    assert ours.trace == theirs.trace


# -- what an old gradient counts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damping", "counts"),
    [("none", lambda age: 0.25), ("inverse", lambda age: 1 / max(1, age)), ("dynamic", lambda age: 1 / (1 + age))],
)
def test_what_a_gradient_of_each_age_counts(damping: str, counts: Callable[[int], float]) -> None:
    """Follow the server by hand: w - lr counts(age) (what was read - the batch's mean), push by push."""
    task = quadratic(lr=0.1)
    world = run(task, f"asynchronous(damping={damping})", 4, steps=6, cluster=slowed(INSTANT, w2=2.5))
    pushes = [event.message for event in world.log.deliveries if isinstance(event.message, Push)]
    versions, ages = [torch.ones(5).double()], []
    for version, push in enumerate(pushes):
        ages.append(version - push.version)
        grad = versions[push.version] - middle(task, world.deal, push.sender.rank, push.step)
        versions.append(versions[-1] - 0.1 * counts(ages[-1]) * grad)
    assert ages == world.log.values("staleness") and max(ages) > 3
    assert torch.allclose(world.scored["w"], versions[-1], atol=1e-12)


def test_softsync_applies_mixed_versions_together() -> None:
    log = run(quadratic(), "softsync(groups=2)", 4, steps=6, cluster=slowed(INSTANT, w0=3, w1=2)).log
    updates, gradients = len(log.values("update")), len(log.values("staleness"))
    assert gradients == 24 and updates >= 12
    assert len(set(log.values("staleness"))) > 1, "gradients of several versions"


@pytest.mark.parametrize(("workers", "groups", "size"), [(5, 2, 2), (8, 3, 2), (4, 3, 1), (5, 1, 5)])
def test_softsync_waits_for_workers_over_groups_rounded_down(workers: int, groups: int, size: int) -> None:
    """Zhang, Gupta et al. 2016: floor(n / groups) gradients make an update, also where groups do not divide n."""
    speeds = {f"w{rank}": 1 + rank / 7 for rank in range(workers)}
    log = run(quadratic(), f"softsync(groups={groups})", workers, steps=5, cluster=slowed(INSTANT, **speeds)).log
    kinds = [note.kind for note in log.notes if note.kind in ("staleness", "update")]
    sizes = [len(one.split()) for one in " ".join(kinds).split("update")[:-1]]
    assert len(sizes) >= 4 and set(sizes[:4]) == {size} and sum(sizes) == 5 * workers


def test_softsync_of_as_many_groups_as_workers_applies_each() -> None:
    ours, theirs = (
        run(mlp(), spec, 3, steps=8, cluster=slowed(w1=2))
        for spec in ("softsync(groups=3, damping=none)", "asynchronous(weight=1)")
    )
    assert all(torch.equal(ours.scored[name], theirs.scored[name]) for name in theirs.scored)


@pytest.mark.parametrize("spec", ["softsync(damping=none)", "quorum(size=1, late=fold)"])
def test_a_gradient_that_waits_is_what_it_was_when_pushed(spec: str) -> None:
    """Its worker goes on meanwhile, and computes the next one into the same memory."""
    task = quadratic(lr=0.1, samples=96)
    world = run(task, spec, 3, steps=6, cluster=slowed(INSTANT, w1=3, w2=2))
    pushes = [event.message for event in world.log.deliveries if isinstance(event.message, Push)]
    ages = world.log.values("staleness")
    sizes, updates = [], iter([note for note in world.log.notes if note.kind in ("staleness", "update")])
    for note in updates:
        sizes.append(1)
        while next(updates).kind == "staleness":
            sizes[-1] += 1
        assert note.kind == "staleness"
    assert len(ages) == len(pushes) == 18 and max(sizes) > 1
    versions = [torch.ones(5).double()]
    for size in sizes:
        used, pushes = pushes[:size], pushes[size:]
        grads = [versions[push.version] - middle(task, world.deal, push.sender.rank, push.step) for push in used]
        versions.append(versions[-1] - 0.1 * sum(grads, torch.zeros(5).double()) / size)
    assert torch.allclose(world.scored["w"], versions[-1], atol=1e-12)


# -- delay compensation -----------------------------------------------------------------------------------------------


def vector(*numbers: float) -> Vector:
    return Vector([torch.tensor(numbers, dtype=torch.float64)])


def test_compensation_uses_what_this_worker_was_given() -> None:
    """grad + strength grad^2 (now - given): each worker has its own `given` (Zheng et al. 2017, eq. 10)."""
    fix = Compensation(strength=0.5)
    fix.gave(0, vector(1.0, 1.0))
    fix.gave(1, vector(3.0, 3.0))
    now, grad = vector(4.0, 5.0), vector(2.0, -1.0)
    assert fix.correct(0, grad, now).parts[0].tolist() == [2 + 0.5 * 4 * 3, -1 + 0.5 * 1 * 4]
    assert fix.correct(1, grad, now).parts[0].tolist() == [2 + 0.5 * 4 * 1, -1 + 0.5 * 1 * 2]


def test_compensation_is_exact_for_a_quadratic() -> None:
    """With strength grad^2 equal to the curvature, the corrected gradient is the one at the newest weights."""
    fix, curvature, then, now = Compensation(strength=2 / 9), 2.0, 1.5, 4.0
    fix.gave(0, vector(then))
    grad = curvature * then  # 3: strength * 9 = 2
    assert fix.correct(0, vector(grad), vector(now)).parts[0].item() == pytest.approx(curvature * now)


def test_adaptive_compensation_does_not_scale_with_the_gradient() -> None:
    def relative(scale: float, adaptive: bool) -> float:
        fix = Compensation(strength=0.1, adaptive=adaptive)
        fix.gave(0, vector(0.0))
        grad = vector(3.0 * scale)
        return (fix.correct(0, grad, vector(1.0)).parts[0].item() - 3.0 * scale) / (3.0 * scale)

    assert relative(10, True) == pytest.approx(relative(1, True), rel=1e-6)
    assert relative(10, False) == pytest.approx(10 * relative(1, False))


def test_adaptive_compensation_remembers_the_squares_of_earlier_gradients() -> None:
    """ms = 0.95 ms + 0.05 g^2 from 0, then g + 2 / sqrt(ms + 1e-7) g^2 (now - given), gradient after gradient."""
    fix, squares = Compensation(strength=2.0, adaptive=True), 0.0
    fix.gave(0, vector(1.0))
    for grad in (3.0, -0.5, 2.0):
        squares = 0.95 * squares + 0.05 * grad**2
        expected = grad + 2 / (squares + 1e-7) ** 0.5 * grad**2 * (1.25 - 1.0)
        assert fix.correct(0, vector(grad), vector(1.25)).parts[0].item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("adaptive", [False, True])
def test_a_server_compensates_for_what_it_gave_this_worker_last(adaptive: bool) -> None:
    """Follow the server by hand: each push is corrected by how far the weights are from those its worker read."""
    task = quadratic(lr=0.1)
    spec = f"dc_asgd(strength=0.7, adaptive={str(adaptive).lower()})"
    world = run(task, spec, 3, steps=5, cluster=slowed(INSTANT, w1=2.5, w2=1.3))
    pushes = [event.message for event in world.log.deliveries if isinstance(event.message, Push)]
    versions, squares = [torch.ones(5).double()], torch.zeros(5).double()
    for push in pushes:
        given = versions[push.version]
        grad = given - middle(task, world.deal, push.sender.rank, push.step)
        squares = 0.95 * squares + 0.05 * grad**2
        strength = 0.7 / (squares + 1e-7).sqrt() if adaptive else 0.7
        versions.append(versions[-1] - 0.1 / 3 * (grad + strength * grad**2 * (versions[-1] - given)))
    assert max(world.log.values("staleness")) > 2
    assert torch.allclose(world.scored["w"], versions[-1], atol=1e-12)


def test_no_compensation_is_asynchronous() -> None:
    cluster = slowed(w1=3)
    ours, theirs = (run(mlp(), spec, 3, steps=8, cluster=cluster) for spec in ("dc_asgd(strength=0)", "asynchronous"))
    assert all(torch.allclose(ours.scored[name], theirs.scored[name], atol=1e-14) for name in theirs.scored)
    other = run(mlp(), "dc_asgd(strength=5)", 3, steps=8, cluster=cluster)
    assert not all(torch.allclose(other.scored[name], theirs.scored[name]) for name in theirs.scored)


# -- momentum ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "explicit"), [(1, 0.5), (2, 0.0), (4, -0.25)])
def test_asynchrony_adds_momentum_that_the_optimizer_gives_back(workers: int, explicit: float) -> None:
    """mu = wanted - (1 - 1/n), also below zero (Mitliagkas et al. 2016)."""
    world = run(mlp(sgd(0.1, momentum=0.3)), "asynchronous(momentum=0.5)", workers, steps=2)
    assert world.replicas[server(0)].optimizer.param_groups[0]["momentum"] == pytest.approx(explicit)


def test_momentum_below_zero_holds_back_what_was_done_before() -> None:
    """v = -0.3 v + g with g = 1: 1, 0.7, 0.79, on alternating sides of 1/1.3."""
    task = replace(ramp(0.1), optimizer=sgd(0.1, momentum=0.3))
    assert run(task, "asynchronous(momentum=-0.3)", 1, steps=3).scored["w"].tolist() == pytest.approx([-0.249] * 2)


def test_an_optimizer_without_momentum_is_refused() -> None:
    task = replace(mlp(), optimizer=torch.optim.Adam)
    with pytest.raises(PlanError, match="no momentum to set"):
        run(task, "asynchronous(momentum=0.5)", 2, steps=2)


# -- copies at the workers --------------------------------------------------------------------------------------------


def test_petuum_reads_only_when_its_copy_is_too_old() -> None:
    """In lockstep a copy serves bound + 1 steps."""
    log = run(quadratic(), "petuum(bound=3)", 3, steps=16, cluster=INSTANT).log
    assert len(log.kinds(ReadParameters)) == len(log.kinds(ParameterCopy))
    assert 3 * 16 // 4 <= len(log.kinds(ReadParameters)) <= 3 * 16 // 3, "about every bound + 1 steps, not every step"
    assert max(log.values("staleness")) == 3


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(["petuum", "essp"]), st.lists(st.sampled_from([1.0, 2.0, 5.0]), min_size=2, max_size=4),
    st.integers(0, 3), st.integers(1, 2),
)  # fmt: skip
def test_a_copy_is_never_older_than_the_bound(name: str, slow: list[float], bound: int, servers: int) -> None:
    log = run(
        quadratic(), f"{name}(bound={bound})", len(slow), steps=12, servers=servers, cluster=paced(slow, jitter=0.3)
    ).log
    assert max(log.values("staleness")) <= bound


def test_essp_asks_once_and_is_then_told() -> None:
    """After the first touch no read is sent: the server gives new parameters whenever the slowest has ticked."""
    log = run(quadratic(), "essp(bound=2)", 3, steps=12, cluster=slowed(w0=2)).log
    assert len(log.kinds(ReadParameters)) == 3
    assert len(log.kinds(ParameterCopy)) > 12


def test_essp_reads_fresher_copies_than_petuum() -> None:
    ages = {
        name: run(quadratic(), f"{name}(bound=4)", 4, steps=30, cluster=slowed(w0=1.5)).log.values("staleness")
        for name in ("petuum", "essp")
    }
    assert sum(ages["essp"]) < sum(ages["petuum"])


@pytest.mark.parametrize("name", ["petuum", "essp"])
def test_a_worker_sees_its_own_changes(name: str) -> None:
    """Alone, with any bound, a copy that holds all of one's own changes is plain SGD."""
    task = mlp()
    ours = run(task, f"{name}(bound=5)", 1, steps=12)
    theirs = run(task, "bsp", 1, steps=12)
    assert all(torch.allclose(ours.scored[key], theirs.scored[key], atol=1e-12) for key in theirs.scored)


@pytest.mark.parametrize("name", ["petuum", "essp"])
def test_bound_0_is_bsp_with_plain_sgd(name: str) -> None:
    ours, theirs = (run(mlp(), spec, 4, steps=10, cluster=slowed(w1=3)) for spec in (f"{name}(bound=0)", "bsp"))
    assert all(torch.allclose(ours.scored[key], theirs.scored[key], atol=1e-12) for key in theirs.scored)


# -- layouts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bsp", "asynchronous", "ssp", "petuum"])
def test_colocated_servers_spare_the_bytes_that_stay_at_home(name: str) -> None:
    """2 (n-1)/n of the model per worker and step, and the weights of dedicated servers (plain SGD, equal speeds)."""
    task = quadratic(size=12)
    together = covey.fit(task, f"{name} over colocated", 3, engine="simulated", steps=8)
    apart = covey.fit(task, name, 3, servers=3, engine="simulated", steps=8)
    assert together.servers == 3
    assert together.traffic.by_role["worker->server"] * 3 == apart.traffic.by_role["worker->server"] * 2
    at_home = {f"worker {rank}->server {rank}" for rank in range(3)}
    assert not any(size for link, size in together.traffic.by_link.items() if link in at_home)


def test_each_server_updates_after_one_push_of_every_worker_whatever_the_others_do() -> None:
    """MXNet's dist_sync: the barrier is per key; server 0 is a step ahead while pushes to server 1 still travel."""
    slow = Link(bandwidth=BytesPerSecond(1e5), latency=Seconds(0.0))
    world = run(quadratic(size=250), "bsp", 2, servers=2, steps=4, cluster=replace(CLUSTER, links={"server 1": slow}))
    parts = [event for event in world.log.sends if isinstance(event.message, Params) and event.message.step == 1]
    pushed = [event.at for event in world.log.deliveries if isinstance(event.message, Push) and event.to == server(1)]
    given = {index: min(event.at for event in parts if event.sender == server(index)) for index in range(2)}
    assert given[0] < sorted(pushed)[1] <= given[1]
    one = run(quadratic(size=250), "bsp", 2, steps=4)
    assert torch.equal(world.scored["w"], one.scored["w"]), "and it is one step on a batch twice as large"


def test_colocated_bsp_ends_at_the_weights_of_one_server() -> None:
    task = mlp(sgd(0.1, momentum=0.9))
    ours, theirs = (run(task, spec, 3, steps=9, cluster=slowed(w1=2)) for spec in ("bsp over colocated", "bsp"))
    assert all(torch.allclose(ours.scored[key], theirs.scored[key], atol=1e-12) for key in theirs.scored)


def test_a_wire_of_fewer_bits_sends_fewer_bytes() -> None:
    task = quadratic(size=64, dtype=torch.float32)
    sizes = {
        codec: covey.fit(task, f"bsp{codec}", 2, engine="simulated", steps=5).traffic.by_role["worker->server"]
        for codec in ("", " + bf16", " + truncated", " + twobit(threshold=0.1)")
    }
    whole = 2 * 5 * 64 * 4
    assert list(sizes.values()) == [whole, whole // 2, whole // 2, whole // 16]


# -- rules that covey does not know -----------------------------------------------------------------------------------


class InStep(Gate):
    """A barrier of somebody else's, which tells what it is."""

    holds_by = "steps"
    groups = True
    lends = True  # type: ignore[assignment]  # a property may be a plain value

    def admits(self, rank: int, board: Board) -> bool:
        return board.clocks[rank] == board.slowest


class OfAll(Gather):
    everyone = True
    groups = True

    def choose(self, waiting: Sequence[WaitingGradient], board: Board) -> GatherChoice | None:
        return Everyone().choose(waiting, board)


class Silent(Gate):
    """One that tells nothing of itself."""

    def admits(self, rank: int, board: Board) -> bool:
        return True


@dataclass(frozen=True, kw_only=True)
class Outside:
    def strategy(self, workers: int, codec: Codec = dense) -> Strategy:
        return parameter_server("outside", "synchronous", ShardPolicy(Rule(InStep(), OfAll()), codec), {})


def test_a_rule_from_outside_gets_what_its_traits_say() -> None:
    """A barrier is bsp, whoever wrote it: what is lent, who clips, who may stand for a group."""
    theirs, bsp = Outside().strategy(4), resolve("bsp", 4)
    assert (theirs.terms, theirs.description, theirs.taxonomy) == (bsp.terms, bsp.description, bsp.taxonomy)
    assert theirs.servers.grouped is not None and Rule(InStep(), OfAll()).lends
    traces = [run(mlp(), one, 4, steps=4, cluster=slowed(w2=3)).trace for one in ("bsp", Outside())]
    assert traces[0] == traces[1]


def test_a_rule_that_says_nothing_of_itself_lends_nothing_and_has_no_proxies() -> None:
    quiet = Rule(Silent(), Soft(2))
    assert not quiet.lends and not quiet.groups
    assert parameter_server("mine", "asynchronous", ShardPolicy(quiet), {}).servers.grouped is None


@dataclass(frozen=True)
class Fresh(Gather):
    """Drops what is older than `oldest` updates, without an update of its own."""

    oldest: int
    averages = False
    empty: bool = False

    def choose(self, waiting: Sequence[WaitingGradient], board: Board) -> GatherChoice | None:
        if not waiting:
            return None
        if board.version - waiting[0].version > self.oldest:
            return GatherChoice([], [], dropped=[] if self.empty else [0])
        return GatherChoice([0], [waiting[0].samples], scale=1 / 3)


@dataclass(frozen=True, kw_only=True)
class Limited:
    empty: bool = False

    def strategy(self, workers: int, codec: Codec = dense) -> Strategy:
        keeping = ShardPolicy(Rule(Silent(), Fresh(0, self.empty)), codec)
        return parameter_server("limited", "asynchronous", keeping, {"empty": self.empty})


def test_a_rule_may_drop_gradients_without_an_update() -> None:
    log = run(quadratic(), Limited(), 3, steps=6, cluster=slowed(INSTANT, w1=1.7, w2=5.5)).log
    assert set(log.values("staleness")) == {0} and sum(log.values("dropped")) > 0
    assert len(log.values("staleness")) + sum(log.values("dropped")) == 18


def test_a_choice_of_nothing_is_named() -> None:
    with pytest.raises(PlanError, match=r"Fresh\.choose gave a choice without a gradient"):
        run(quadratic(), Limited(empty=True), 3, steps=6, cluster=slowed(INSTANT, w1=1.7, w2=5.5))


def test_a_dropped_gradient_is_noted_once_however_many_servers_drop_it() -> None:
    one, two = (
        run(quadratic(), "quorum(size=2)", 3, steps=6, servers=servers, cluster=slowed(INSTANT, w2=3)).log
        for servers in (1, 2)
    )
    assert sum(two.values("dropped")) == sum(one.values("dropped")) > 0
