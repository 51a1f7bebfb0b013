"""What is advised, in worlds where the answer is known."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from covey.advise import choose, conclude, predict
from covey.advise.candidates import candidates
from covey.advise.choose import _guessed, advise
from covey.advise.estimate import Estimate
from covey.advise.known import EARLY_BATCHES, STEP_ERROR, THUMB, UNPROVEN, Curve, Known
from covey.advise.predict import StepTime, samples_needed, slowest
from covey.advise.ranked import Advice
from covey.advise.situation import Situation, look, skew, time_batch
from covey.advise.trials.level import Level
from covey.advise.trials.trial import SimulatedTrials, TrialOutcome
from covey.advise.world import fastest, sized, slowness
from covey.catalog import resolve
from covey.errors import PlanError, RoleFailed
from covey.model.build import shards
from covey.simulate import BytesPerSecond, Cluster, from_flags
from covey.simulate.cluster_file import read
from covey.simulate.machines import Machine
from covey.task import Task, load_task

DIGITS = "examples/digits.py"
GROUPS = """
[[group]]
workers = 2
bandwidth = "25gbit"
price = 3
[[group]]
workers = 6
slow = 2
price = 1
[host."server 0"]
bandwidth = "10gbit"
"""


@pytest.fixture(scope="module")
def task() -> Task:
    return load_task(DIGITS)


def quick(task: Task, workers: int = 4, **flags: object) -> Advice:
    now = look(task, workers, from_flags(**flags))  # type: ignore[arg-type]
    return advise(task, DIGITS, now, until="accuracy>=0.9")


def said(advice: Advice, words: str) -> bool:
    return any(words in line for line in advice.findings)


def specs(advice: Advice) -> list[str]:
    return [choice.spec if choice.workers > 1 else "alone" for choice in advice.choices]


# -- formulas -----------------------------------------------------------------------------------------------------


def test_a_fast_network_is_no_bottleneck(task: Task) -> None:
    advice = quick(task, compute="50ms", bandwidth="10gbit")
    assert said(advice, "no bottleneck") and said(advice, "Compression does not pay")
    assert advice.sure == "a rough guess"


def test_where_latency_is_the_bottleneck_no_codec_is_called_for(task: Task) -> None:
    advice = quick(task, compute="1ms", bandwidth="10gbit", latency="5ms")
    assert said(advice, "its messages take that, not their bytes: exchange less often, or gossip")
    assert not said(advice, "compress, exchange less often")


def test_processes_of_one_machine_have_no_network(task: Task) -> None:
    now = replace(look(task, 4, from_flags(compute="1ms", bandwidth="1mbit")), one_machine=True)
    advice = advise(task, DIGITS, now)
    assert said(advice, "Exchange between processes is a bottleneck: exchanging 19.2 kB every step takes")


def test_a_slow_network_asks_for_fewer_messages(task: Task) -> None:
    advice = quick(task, compute="1ms", bandwidth="1mbit")
    assert said(advice, "is a bottleneck") and said(advice, "exchange less often")
    assert said(advice, "Compression pays")
    order = specs(advice)
    assert order.index("local_sgd(period=32)") < order.index("allreduce")
    assert order.index("alone") < order.index("allreduce")
    assert any(order.index(spec) < order.index("bsp") for spec in order if spec.startswith("bsp + "))


def test_one_worker_is_faster_where_all_wait_for_messages(task: Task) -> None:
    advice = quick(task, workers=2, compute="0.1ms", bandwidth="100kbit", latency="1s")
    assert specs(advice).index("alone") < specs(advice).index("bsp")


def test_a_slow_worker_speaks_against_waiting(task: Task) -> None:
    advice = quick(task, compute="20ms", slow=["3:8x"])
    assert said(advice, "waits for the slowest")
    by_spec = {choice.spec: choice for choice in advice.choices}
    assert any("nobody should wait" in risk for risk in by_spec["allreduce"].risks)
    assert "slow workers hold nobody up" in by_spec["gosgd"].reasons
    assert by_spec["gosgd"].relative < by_spec["allreduce"].relative


def test_staleness_is_told_where_many_push(task: Task) -> None:
    assert said(quick(task, workers=16), "Staleness would hurt")
    assert not said(quick(task, workers=2), "Staleness would hurt")


def test_what_must_be_is_kept_to(task: Task) -> None:
    now = look(task, 4, Cluster(), reproducible=True, once=True)
    kept = [candidate.strategy for candidate in candidates(task, now)]
    assert {strategy.taxonomy.scheduling for strategy in kept} == {"synchronous"}
    assert {strategy.description.samples for strategy in kept} == {"every sample once per epoch"}


def test_shared_memory_is_for_one_machine(task: Task) -> None:
    task = replace(task, optimizer=lambda params: torch.optim.SGD(params, lr=0.1))
    far = look(task, 2, Cluster())
    named = {candidate.strategy.name for candidate in candidates(task, far)}
    near = {candidate.strategy.name for candidate in candidates(task, replace(far, one_machine=True))}
    assert near - named == {"hogwild", "hogwild++"}


def test_every_candidate_has_a_step(task: Task) -> None:
    now = look(task, 8, from_flags(jitter=0.2, slow=["1:2x"]))
    for candidate in candidates(task, now):
        step = predict.step(candidate.strategy, now)
        assert 0 < step.seconds < math.inf and 0 <= step.exchange <= step.seconds, candidate.spec


@pytest.mark.parametrize("spec", ["allreduce", "bsp", "local_sgd(period=4)", "sliced", "easgd(period=4)", "gosgd"])
def test_formulas_are_near_the_virtual_engine(spec: str, task: Task) -> None:
    now = look(task, 4, from_flags(bandwidth="100mbit", compute="10ms"))
    candidate = next(one for one in candidates(task, now) if one.strategy.name == resolve(spec, 4).name)
    timed = SimulatedTrials(DIGITS, now, 0.001).timed(candidate)
    assert timed is not None
    assert predict.step(candidate.strategy, now).seconds == pytest.approx(timed.seconds, rel=0.25)


def test_a_target_without_a_direction_is_refused_at_once(task: Task) -> None:
    now = look(task, 2, from_flags(compute="5ms"))
    with pytest.raises(PlanError, match="'perplexity<=20'"):
        advise(task, DIGITS, now, until="perplexity:20")


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"evaluate": lambda model: {"f1": 0.5}}, PlanError, "names no metric .* There are: f1, loss"),
        ({"evaluate": lambda model: {"accuracy": 0.95}}, PlanError, "the initial weights meet it already"),
        ({"evaluate": lambda model: 1 / 0}, RoleFailed, "scorer 0 failed: ZeroDivisionError"),
    ],
)
def test_a_mistake_in_the_task_is_told_and_no_strategys_fault(
    task: Task, changes: dict[str, Any], error: type[Exception], words: str
) -> None:
    wrong = replace(task, **changes)
    trials = SimulatedTrials(wrong, look(wrong, 2, from_flags(compute="5ms")), pace=0.001)
    with pytest.raises(error, match=words):
        trials.level("accuracy>=0.9")


def test_with_a_share_of_a_core_a_worker_is_slow(task: Task) -> None:
    machines = tuple(Machine(cores=cores) for cores in (0.1, 0.4, 0.4, 2.0))
    cluster = replace(Cluster(), machines=machines, slowdowns={3: 2.0})
    assert slowness(cluster, 4) == pytest.approx([10, 2.5, 2.5, 2])
    assert slowness(cluster, 5) == pytest.approx([20, 2.5, 2.5, 2, 20])  # the fifth lives with the first
    alone, rank = fastest(cluster, 3)
    assert rank == 1 and slowness(alone, 1) == [2.5]
    assert look(task, 4, cluster).spread > 0.5  # so rules know that someone is waited for
    for jitter in (0.0, 0.05):
        assert slowest(look(task, 4, replace(cluster, jitter=jitter))) == pytest.approx(10 * cluster.compute, rel=0.1)
    assert look(task, 4, replace(cluster, machines=(), slowdowns={})).spread == 0


def test_the_link_of_a_server_is_that_of_its_machine(task: Task) -> None:
    """What headers take is not for numbers; and where machines are told, the server lives on one of them."""
    wide = replace(Cluster().link, bandwidth=BytesPerSecond(1e9), headers=1.0)
    assert look(task, 4, Cluster(link=wide)).server_rate(1) == 5e8
    named = Cluster(links={"server 0": wide, "master 0": replace(wide, headers=3.0)})
    assert (look(task, 4, named).server_rate(2), look(task, 4, named).server_rate(0)) == (5e8, 2.5e8)
    slow = replace(wide, bandwidth=BytesPerSecond(1e6), headers=0.0)
    machines = Cluster(link=wide, machines=(Machine(cores=4),) * 2, links={"node0": slow, "node1": slow})
    assert look(task, 4, machines).server_rate(1) == 1e6


def test_what_was_never_tried_must_be_better_than_what_was(task: Task) -> None:
    now = look(task, 4, from_flags())
    known = Known(now=now, rows=[_guessed(candidate, now) for candidate in candidates(task, now)])
    assert {known.doubt(row) for row in known.rows} == {1.0}, "where nothing was tried all are guesses"
    first = known.ordered()[0]
    for row in known.rows:
        row.timing = "formulas" if row is first else "virtual time"
    second = known.rows[0] if known.rows[0] is not first else known.rows[1]
    known.curves[second.candidate.mathematics] = Curve({0: TrialOutcome(samples=1000.0)})
    known.level = Level(task=task, until="accuracy>=0.9", scores=8, samples=1000.0, seconds=1.0)
    assert known.doubt(second) == 1.0 and known.doubt(first) == pytest.approx(UNPROVEN**2)
    known.level = replace(known.level, exact=False)
    assert known.doubt(first) == UNPROVEN, "a loss on the way proves little"


def test_a_loss_on_the_way_tells_strategies_apart_and_not_from_one_worker_alone(task: Task) -> None:
    """To a loss that comes early, all of several workers need many times the samples of one."""
    now = look(task, 4, from_flags())
    known = Known(now=now, rows=[_guessed(candidate, now) for candidate in candidates(task, now)])
    known.level = Level(task=task, until="loss<=1", scores=8, samples=1000.0, seconds=1.0, exact=False)
    known.alone = [float(EARLY_BATCHES * now.batch)]
    thumbs = {row.candidate.spec: known.samples(row).value for row in known.rows}
    good, usual, bad = (
        next(row for row in known.rows if row.candidate.spec == spec) for spec in ("gosgd", "allreduce", "local_sgd")
    )
    for row, times in ((good, 3.0), (usual, 6.0), (bad, 12.0)):
        known.curves[row.candidate.mathematics] = Curve({0: TrialOutcome(samples=times * known.alone[0] * row.factor)})
    weighed = {row.candidate.spec: known.samples(row).value / thumbs[row.candidate.spec] for row in known.rows}
    assert 0.5 < weighed["gosgd"] < 0.8 and 1.25 < weighed["local_sgd"] < 2
    assert weighed["allreduce"] == pytest.approx(1.0)
    other = next(row for row in known.rows if row.candidate.strategy.name == "easgd")
    assert known.samples(other) == Estimate(other.factor, THUMB), "of which nothing was trained"
    alike = next(row for row in known.rows if row.candidate.spec.startswith("local_sgd(period="))
    assert weighed[alike.candidate.spec] == pytest.approx(weighed["local_sgd"]), "as far as that says something of it"
    known.alone = [known.alone[0] / 4]
    assert weighed["gosgd"] < known.samples(good).value / thumbs["gosgd"] < 1, "what comes sooner tells less"
    known.curves.popitem(), known.curves.popitem()
    assert known.samples(good).value == pytest.approx(good.factor), "a loss of one alone says nothing"


def test_a_few_real_steps_do_not_outweigh_what_was_foreseen(task: Task) -> None:
    now = look(task, 4, from_flags())
    known = Known(now=now, rows=[_guessed(candidate, now) for candidate in candidates(task, now)][:3])
    first, second, third = known.rows
    for row in known.rows:
        row.step, row.timing = StepTime(seconds=0.1, exchange=0.0), "virtual time"
    first.real, second.real = [0.1], [0.12]
    ahead, behind, unmeasured = map(known.step, (first, second, third))
    assert 0.1 < ahead.value < unmeasured.value < behind.value < 0.12
    assert behind.error < unmeasured.error
    second.real = []
    assert known.step(first).value == 0.1, "the only one that was measured is what it was"
    assert known.step(first).error == pytest.approx(STEP_ERROR["real steps"]), "and counts once"


def test_what_rules_of_thumb_say_of_averages(task: Task) -> None:
    """As measured to 86 % on Fashion-MNIST with four workers."""
    layers = nn.Flatten(), nn.Linear(64, 1568), nn.ReLU(), nn.Linear(1568, 512), nn.ReLU(), nn.Linear(512, 10)
    now = look(replace(task, model=lambda: nn.Sequential(*layers)), 4, from_flags())

    def needed(spec: str) -> float:
        return samples_needed(resolve(spec, 4), now, 0.0)

    assert needed("bmuf(momentum=0.4, reset=false)") < needed("local_sgd") < needed("allreduce")
    assert needed("local_sgd") < needed("local_sgd(period=32)") < needed("gosgd") < needed("local_sgd(period=128)")
    assert needed("bmuf(period=4, momentum=0.4, reset=false)") > 1.4 * needed("bmuf(momentum=0.4, reset=false)")
    few, more = (needed(f"local_sgd + powersgd(rank={rank})") for rank in (4, 16))
    assert 1.1 * more < few and needed("allreduce + powersgd(rank=4)") == needed("allreduce + powersgd(rank=16)")


@pytest.mark.parametrize(("samples", "cost", "few"), [(20.0, 10.0, True), (20.0, 0.5, False), (1.0, 3.0, False)])
def test_what_is_surely_slower_than_one_worker_alone_is_not_trained_without_time_for_all(
    task: Task, samples: float, cost: float, few: bool
) -> None:
    now = look(task, 4, from_flags(compute="5ms", bandwidth="10gbit"))
    known = Known(now=now, rows=[_guessed(candidate, now) for candidate in candidates(task, now)], alone=[1000.0])
    known.level = Level(task=task, until="accuracy>=0.9", scores=8, samples=1000.0, seconds=1.0)
    for row in known.rows:
        row.timing = "virtual time"
    asked: list[str] = []

    def train(candidate: Any, *_: Any) -> TrialOutcome:
        asked.append(candidate.spec)
        trials.left -= cost
        return TrialOutcome(samples=1000.0 * samples)

    trials: Any = SimpleNamespace(
        late=False, left=100.0, limit=lambda *_: None, again=lambda *_: 1000.0, train=train
    )  # fmt: skip
    choose._train(known, trials, lambda _: None)
    assert (len(asked) == choose.FIRSTS) == few
    assert few or len(asked) > 2 * choose.FIRSTS


def test_of_those_that_share_a_curve_one_is_trained_in_each_turn(task: Task) -> None:
    """Another one would train with the same seed, and write its outcome over that of the first."""
    now = look(task, 4, from_flags(compute="5ms", bandwidth="10gbit"))
    rows = [_guessed(candidate, now) for candidate in candidates(task, now)]
    known = Known(now=now, rows=[row for row in rows if row.candidate.shares], alone=[1000.0])
    known.level = Level(task=task, until="accuracy>=0.9", scores=8, samples=1000.0, seconds=1.0)
    for row in known.rows:
        row.timing = "virtual time"
    asked: list[str] = []

    def train(candidate: Any, *_: Any) -> TrialOutcome:
        asked.append(candidate.mathematics)
        return TrialOutcome(samples=1000.0)

    trials: Any = SimpleNamespace(late=False, left=100.0, limit=lambda *_: None, again=lambda *_: 1000.0, train=train)
    choose._train(known, trials, lambda _: None)
    turns = Counter(asked)
    assert len(known.rows) > 5 and {*turns.values()} == {len(choose.HALVINGS)}
    assert turns == {name: len(curve.trials) for name, curve in known.curves.items()}


# -- what is known beforehand -----------------------------------------------------------------------------------------


def test_looking_at_a_task(task: Task) -> None:
    now = look(task, 4, Cluster())
    assert now.model == 4 * (64 * 64 + 64 + 640 + 10)
    assert now.state == now.model  # momentum
    assert not now.normalized and now.samples == 1437
    norm = replace(task, model=lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10)))
    assert look(norm, 4, Cluster()).normalized
    assert 0 < time_batch(task) < 5


def test_skewed_labels(task: Task) -> None:
    x = torch.zeros(1000, 1)
    assert skew(replace(task, data=(x, torch.arange(1000) % 10)), shards(replace(task, data=(x, x)), 2, 0)) < 0.1
    assert skew(replace(task, data=(x, torch.arange(1000))), shards(replace(task, data=(x, x)), 10, 0)) > 0.5
    assert skew(replace(task, data=(x, x)), shards(replace(task, data=(x, x)), 2, 0)) == 0


def test_a_cluster_keeps_its_proportions() -> None:
    world = sized(read(GROUPS), 4)
    assert world.workers == 4 and world.slowdowns == {1: 2, 2: 2, 3: 2} and sum(world.price.values()) == 6
    assert sized(read(GROUPS), 800).price[199] == 3 and sized(read(GROUPS), 800).price[200] == 1
    assert world.links["server 0"].bandwidth == 1.25e9
    assert world.link_of("worker 0").bandwidth > 3e9 > world.link_of("worker 1").bandwidth
    alone, rank = fastest(read(GROUPS), 8)
    assert (rank, alone.price, alone.slowdowns) == (0, {0: 3}, {0: 1.0})


def test_spread() -> None:
    now = Situation(workers=2, samples=1, batch=1, model=1, cluster=Cluster(slowdowns={1: 3.0}))
    assert now.spread == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("second", "basis", "sure", "why"),
    [
        (Estimate(1.02), "trained in virtual time", "a close call", "gossip may be as fast"),  # surely, and by little
        (Estimate(1.5, 0.4), "trained in virtual time", "a close call", "gossip may be as fast"),
        (Estimate(1.5, 0.01), "trained in virtual time", "quite sure", "the next best would take 50% longer"),
        (Estimate(1.5, 0.01), "timed in virtual time", "a rough guess", "samples to the target come from rules"),
    ],
)
def test_how_sure_it_is(second: Estimate, basis: str, sure: str, why: str) -> None:
    known: Any = SimpleNamespace(
        now=SimpleNamespace(measured=True), interrupted=False, late=False, disturbed=False,
        level=SimpleNamespace(exact=True),
    )  # fmt: skip
    first: Any = SimpleNamespace(basis=basis, timing="virtual time")
    other: Any = SimpleNamespace(spec="gossip", workers=4, missed=False)
    found = conclude._sure([(first, Estimate(1.0)), (other, second)], known)
    assert found[0] == sure and found[1].startswith(why)


def test_of_equally_fast_ones_what_the_survey_prefers_comes_first() -> None:
    now: Any = SimpleNamespace(spread=0.0, reproducible=False)

    def place(relative: float, family: str, missed: bool = False) -> tuple[Any, ...]:
        choice: Any = SimpleNamespace(missed=missed, relative=relative, family=family, step=0.1)
        return conclude._order(choice, now, 1.0)

    steady, loose = place(0.5, "central, synchronous"), place(0.5, "decentral, asynchronous")
    assert steady < loose < place(0.6, "central, synchronous") < place(0.1, "central, synchronous", missed=True)


def test_a_run_costs_its_hours_times_the_price_of_all_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_reasons", "_risks"):
        monkeypatch.setattr(conclude, name, lambda *_: [])
    one = Estimate(1.0)
    known: Any = SimpleNamespace(
        now=SimpleNamespace(workers=2, price=3.6), curve=lambda row: Curve(), missed=lambda row: False,
        relative=lambda row: one, step=lambda row: one, seconds=lambda row: Estimate(500.0),
    )  # fmt: skip
    row: Any = SimpleNamespace(
        candidate=SimpleNamespace(spec="bsp", strategy=resolve("bsp", 2)), timing="virtual time",
        step=SimpleNamespace(share=lambda: 0.1, staleness=0.0),
    )  # fmt: skip
    assert conclude._choice(row, known, {}).money == pytest.approx(0.5)
