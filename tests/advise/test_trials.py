"""Trials in virtual time: to the target or to a loss on the way, once for each mathematics, within a CPU budget."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import covey
from covey.advise.candidates import Candidate, candidates
from covey.advise.choose import advise
from covey.advise.pace import BatchPace
from covey.advise.real_steps import RealSteps
from covey.advise.situation import look
from covey.advise.trials.level import Level, samples_to
from covey.advise.trials.trial import SCORES, Limit, SimulatedTrials, TrialOutcome
from covey.catalog import STRATEGIES, resolve
from covey.errors import CoveyError
from covey.observe.referee import TargetReached
from covey.observe.result import Result
from covey.simulate import Cluster, Seconds, from_flags
from covey.simulate.machines import Machine
from covey.strategy import MEAN_GRADIENT
from covey.task import Task, load_task
from tests.worlds import alone, mlp, run, sgd

DIGITS = "examples/digits.py"


@pytest.fixture(scope="module")
def task() -> Task:
    return load_task(DIGITS)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few strategies, and fewer with a second seed."""
    monkeypatch.setattr("covey.advise.choose.HALVINGS", (4, 2))
    monkeypatch.setattr("covey.advise.choose.TIMED", 6)


def watched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, dict[str, Any]]]:
    """What is trained: SPEC, workers and options."""
    seen: list[tuple[str, int, dict[str, Any]]] = []

    def fit(task: Task | str, spec: str, workers: int, **options: Any) -> Result:
        if "until" in options:
            seen.append((spec, workers, options))
        return covey.fit(task, spec, workers, **options)

    monkeypatch.setattr("covey.advise.trials.trial.fit", fit)
    return seen


def level(task: Task, samples: float = 1000.0, seconds: float = 100.0) -> Level:
    return Level(task=task, until="accuracy>=0.9", scores=SCORES, samples=samples, seconds=seconds)


@pytest.mark.usefixtures("few")
def test_the_advised_is_the_best_of_those_that_were_trained(task: Task) -> None:
    now = look(task, 3, from_flags(bandwidth="10mbit", compute="5ms"))
    advice = advise(task, DIGITS, now, until="accuracy>=0.85", trials=SimulatedTrials(DIGITS, now, pace=0.001))
    trained = [choice for choice in advice.choices if choice.basis == "trained in virtual time"]
    assert len(trained) >= 3 and advice.choices[0] in trained and advice.trained_to == ""
    assert advice.choices[0].relative == min(choice.relative for choice in trained if not choice.missed)
    single = next(choice for choice in advice.choices if choice.workers == 1)
    assert single.relative == 1.0 and single.seconds is not None
    first = advice.choices[0]
    assert first.seconds_interval and first.seconds_interval[0] < (first.seconds or 0.0) < first.seconds_interval[1]
    world = now.world(first.spec) if first.workers > 1 else Cluster(compute=Seconds(0.005))
    again = covey.fit(
        DIGITS, first.spec, first.workers, engine="simulated", until="accuracy>=0.85", scores=SCORES, cluster=world
    )
    assert again.reached is not None
    assert first.seconds_interval[0] < again.reached.seconds < 1.2 * first.seconds_interval[1]


def test_one_curve_holds_for_all_strategies_of_one_mathematics(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watched(monkeypatch)
    monkeypatch.setattr("covey.advise.choose.HALVINGS", (16,))
    now = look(task, 3, from_flags(bandwidth="100gbit", compute="20ms"))
    advice = advise(task, DIGITS, now, until="accuracy>=0.85", trials=SimulatedTrials(task, now, pace=0.001))
    together = {name for name, entry in STRATEGIES.items() if entry.mathematics == MEAN_GRADIENT}
    assert {"bsp", "allreduce", "sliced", "p3"} <= together
    trained = {spec for spec, workers, _ in seen if workers > 1}
    assert len(trained & together) == 1
    rows = {choice.spec: choice for choice in advice.choices if choice.spec in together and choice.workers > 1}
    assert len(rows) > 5 and len({row.basis for row in rows.values()}) == 1
    assert len({round(row.relative / row.step, 9) for row in rows.values()}) == 1  # they differ by their steps alone


@pytest.mark.parametrize("name", [name for name, entry in STRATEGIES.items() if entry.mathematics == MEAN_GRADIENT])
def test_what_shares_a_curve_makes_the_same_updates(name: str) -> None:
    task = mlp(sgd(0.1, momentum=0.9), samples=128)
    reference = alone(task, steps=10, batch_size=32)
    found = run(task, STRATEGIES[name].example or name, 4, steps=10).scored
    for part, tensor in found.items():
        torch.testing.assert_close(tensor, reference[part], atol=1e-5, rtol=0)


def test_every_setting_that_is_tried_can_be_read_and_differs_from_the_usual_one() -> None:
    from covey.catalog import resolve

    for name, entry in STRATEGIES.items():
        specs = [resolve(spec, 4).text for spec in (entry.example or name, *entry.tries)]
        assert len(set(specs)) == len(specs), name


def test_the_best_of_the_race_for_accuracy_is_a_candidate(task: Task) -> None:
    slow = look(task, 4, from_flags(bandwidth="1mbit", compute="20ms"))
    fast = look(task, 4, from_flags(bandwidth="10gbit", compute="20ms"))
    blocks = "bmuf(momentum=0.4, reset=false)"
    assert {blocks, "adpsgd", "local_sgd(period=128)"} <= {one.spec for one in candidates(task, fast)}
    assert any(one.spec.startswith(f"{blocks} + powersgd") for one in candidates(task, slow))


@pytest.mark.usefixtures("few")
def test_a_task_that_takes_too_long_is_compared_by_a_loss_on_the_way(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    seen = watched(monkeypatch)
    now = look(task, 3, from_flags(compute="5ms"))
    trials = SimulatedTrials(task, now, pace=1.0)  # as if a batch took this machine a second
    advice = advise(task, DIGITS, now, until="accuracy>=0.99", trials=trials)
    assert advice.trained_to.startswith("loss<=") and advice.trained_to in advice.why_sure
    assert all(choice.seconds is None for choice in advice.choices)
    assert advice.until == "accuracy>=0.99" and "accuracy>=0.99" in advice.choices[0].command
    assert all(options["until"].startswith("loss<=") and options["steps"] < 60 for _, _, options in seen)
    assert any(choice.basis == "trained in virtual time" for choice in advice.choices if choice.workers > 1)


@pytest.mark.usefixtures("few")
def test_trials_end_when_their_cpu_time_is_spent(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watched(monkeypatch)
    now = look(task, 3, from_flags(compute="5ms"))
    trials = SimulatedTrials(task, now, pace=0.001, spend=0.01)
    advise(task, DIGITS, now, until="accuracy>=0.8", trials=trials)
    assert len([spec for spec, workers, _ in seen if workers > 1]) == 3


@pytest.mark.parametrize("many", [0, 3])
def test_no_trial_begins_when_its_time_is_over(many: int, task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, begun = watched(monkeypatch), list[str]()
    now = look(task, 2, from_flags(compute="5ms"))
    asked = count()
    monkeypatch.setattr(SimulatedTrials, "late", property(lambda trials: next(asked) >= many))
    trials = SimulatedTrials(task, now, 0.001)
    advice = advise(task, DIGITS, now, until="accuracy>=0.9", trials=trials, told=begun.append)
    assert [line.partition(" ")[0] for line in begun] == ["timing"] * many and not seen
    assert "--within ended the search" in advice.why_sure and advice.choices, "there is advice all the same"


def test_time_is_over_when_the_clock_says_so(task: Task) -> None:
    now = look(task, 2, from_flags(compute="5ms"))
    assert SimulatedTrials(task, now, 0.001, until=time.monotonic()).late
    assert not SimulatedTrials(task, now, 0.001, until=time.monotonic() + 60).late
    assert not SimulatedTrials(task, now, 0.001).late
    assert RealSteps(task=DIGITS, engine="local", workers=2, until=time.monotonic()).late


@pytest.mark.full
def test_a_minute_of_cpu_is_enough_for_fashion_mnist() -> None:
    from covey.advise.situation import time_batch

    begin = time.process_time()
    name = "examples/fashion.py"
    fashion = load_task(name)
    now = look(fashion, 4, from_flags(bandwidth="100mbit", compute="150ms"))
    trials = SimulatedTrials(fashion, now, time_batch(fashion))
    advice = advise(fashion, name, now, until="accuracy>=0.86", trials=trials)
    assert advice.choices[0].workers == 4 and advice.choices[0].basis == "trained in virtual time"
    assert time.process_time() - begin < 66


def test_who_falls_behind_is_left_there(task: Task) -> None:
    now = look(task, 4, from_flags(compute="10ms"))
    trials, single = SimulatedTrials(DIGITS, now, 0.001), level(task, samples=60_000.0)
    assert trials.limit(single, None, step=0.5) == Limit(400, 200.0, fair=True)  # twice as long as one worker alone
    assert trials.limit(single, 10.0, step=0.5) == Limit(26, 13.0, fair=True)  # a third longer than the best so far
    machines = tuple(Machine(cores=cores) for cores in (1.0, 1.0, 1.0, 0.25))
    uneven = SimulatedTrials(DIGITS, replace(now, cluster=replace(now.cluster, machines=machines)), 0.001)
    assert uneven.limit(single, 10.0, step=0.5) == Limit(32, pytest.approx(13.0), fair=True)  # the fast ones do more
    short = trials.limit(level(task, samples=1280.0), 10.0, step=1e-3)
    assert short.fair is False and short.steps == 30  # three times the samples of one worker alone, and no more


def test_what_a_slow_worker_does_alone_in_the_end_does_not_count(task: Task) -> None:
    """It has as many steps to do as the others, and there is a last score when it has done them."""
    machines = tuple(Machine(cores=cores) for cores in (1.0, 1.0, 0.1))
    now = look(task, 3, replace(from_flags(compute="5ms"), machines=machines))
    trials = SimulatedTrials(DIGITS, now, pace=0.001)
    candidate = next(one for one in candidates(task, now) if one.spec == "easgd")
    result = covey.fit(DIGITS, "easgd", 3, engine="simulated", cluster=now.world("easgd"), steps=40, scores=SCORES)
    until = f"accuracy>={max(row['accuracy'] for row in result.history)}"
    aim, others = replace(level(task), until=until), 40 * 0.005
    assert math.isfinite(trials.train(candidate, aim, Limit(40, math.inf, fair=True)).samples)
    assert trials.train(candidate, aim, Limit(40, others, fair=True)) == TrialOutcome(tried=others, late=True)
    on_the_way = replace(aim, exact=False)
    found = trials.train(candidate, on_the_way, Limit(40, others, fair=True))
    assert math.isfinite(found.samples) and not found.late, "a loss on the way says little of who is late"
    short = trials.train(candidate, on_the_way, Limit(3, math.inf, fair=True))
    assert short.samples >= 3 * now.batch and short.tried > 0 and not short.late, "at least as many as were tried"


@pytest.mark.usefixtures("few")
def test_finalists_have_equal_seeds(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watched(monkeypatch)
    now = look(task, 2, from_flags(compute="5ms"))
    advice = advise(task, DIGITS, now, until="accuracy>=0.8", trials=SimulatedTrials(task, now, 0.001, seed=7))
    seeds: dict[tuple[str, int], list[int]] = {}
    for spec, workers, options in seen:
        seeds.setdefault((spec, workers), []).append(options["seed"])
    again = [spec for spec, used in seeds.items() if used == [7, 8]]
    assert len(again) == 3 and ("local_sgd", 1) in again  # two strategies, and one worker alone
    assert max(choice.seeds for choice in advice.choices) == 2


def test_a_target_is_found_where_none_was_given(task: Task) -> None:
    now = look(task, 2, Cluster())
    reached, until = SimulatedTrials(DIGITS, now, pace=0.001).level(None)
    assert until is not None and until.startswith("loss<=") and reached.exact and reached.seconds > 0


def test_one_worker_alone_can_have_synchronized_batch_norm(task: Task) -> None:
    """With a target and without; nn.SyncBatchNorm asks for a strategy whose workers step together."""

    def model() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.SyncBatchNorm(16), nn.Linear(16, 10))

    normalized = replace(task, model=model)
    trials = SimulatedTrials(normalized, look(normalized, 2, from_flags(compute="5ms")), pace=0.001)
    for until in (None, "accuracy>=0.5"):
        assert trials.level(until)[0].samples > 0


def below_zero(task: Task) -> Task:
    """Its losses are negative, as those of densities are."""
    return replace(task, loss=lambda output, y: nn.functional.cross_entropy(output, y) - 10, evaluate=None)


@pytest.mark.parametrize("pace", [0.001, 1.0])
def test_losses_may_be_negative(task: Task, pace: float) -> None:
    trials = SimulatedTrials(below_zero(task), look(task, 2, from_flags(compute="5ms")), pace)
    level, _ = trials.level(None)
    assert level.samples > 0 and level.until.startswith("loss<=-") and level.exact == (pace < 1)


def test_a_worker_that_does_not_learn_is_named_as_that(task: Task) -> None:
    """Not as a target that nobody gave."""
    broken = replace(task, loss=lambda output, y: nn.functional.cross_entropy(output, y) * float("nan"), evaluate=None)
    trials = SimulatedTrials(broken, look(task, 2, from_flags(compute="5ms")), pace=0.001)
    with pytest.raises(CoveyError, match="nan"):
        trials.level(None)


def test_initial_weights_that_are_at_the_level_say_nothing(task: Task) -> None:
    """Those of another seed may be there already: the advice goes on without that run."""
    now = look(task, 2, from_flags(compute="5ms"))
    trials = SimulatedTrials(task, now, pace=0.001)
    for exact in (True, False):
        aim = replace(level(task), until="accuracy>=0.001", exact=exact)
        found = trials.train(next(iter(candidates(task, now))), aim, Limit(40, math.inf, fair=True), turn=1)
        assert found == TrialOutcome() and not math.isfinite(found.samples) and not found.late


@pytest.mark.usefixtures("few")
def test_ctrl_c_leaves_what_is_known_by_then(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> Callable[..., Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(SimulatedTrials, "train", interrupted)
    now = look(task, 2, from_flags(compute="5ms"))
    advice = advise(task, DIGITS, now, until="accuracy>=0.8", trials=SimulatedTrials(task, now, 0.001))
    assert advice.interrupted and "interrupted" in advice.why_sure and len(advice.choices) > 20


def test_samples_to_a_target_lie_between_two_scores_in_proportion() -> None:
    """From 0.2 after 100 samples to 0.6 after 300: 0.5 was met after 250, and 0.1 before the first score was."""
    scores = [{"samples": 100, "accuracy": 0.2}, {"samples": 300, "accuracy": 0.6}, {"samples": 300}]
    found = []
    for target, samples in ((0.5, 300), (0.6, 300), (0.1, 100)):
        result: Any = SimpleNamespace(reached=TargetReached("accuracy", target, 1.0, samples), history=scores)
        found.append(samples_to(result))
    assert found == [pytest.approx(250), 300, 100]
    nothing: Any = SimpleNamespace(reached=None, history=scores)
    assert samples_to(nothing) == math.inf


@pytest.mark.parametrize("period", [4, 32, 48, 128])
def test_a_timed_run_has_an_exchange_for_each_period(period: int) -> None:
    """On a slow link a step takes its own time, and its share of the exchange."""
    spec = f"local_sgd(period={period})"
    now = look(load_task(DIGITS), 2, from_flags(compute="2ms", bandwidth="1mbit"))
    timed = SimulatedTrials(DIGITS, now, 0.001).timed(Candidate(spec=spec, strategy=resolve(spec, 2)))
    pace = BatchPace()
    covey.fit(
        DIGITS, spec, 2, engine="simulated", cluster=now.cluster, timing_only=True, steps=1 + 8 * period,
        instruments=[pace], runs=False,
    )  # fmt: skip
    assert timed is not None and timed.seconds == pytest.approx(pace.step(), rel=0.02) and timed.seconds > 0.0021
