"""Real steps: measured on processes, halved, and what was foreseen of the others follows them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import covey
from covey.advise.candidates import ALONE, SYNCHRONOUS, Candidate, candidates
from covey.advise.choose import _guessed, advise
from covey.advise.conclude import conclude
from covey.advise.known import Curve, Known
from covey.advise.predict import StepTime, round_to_periods
from covey.advise.real_steps import FEWEST, FIRSTS, ROUNDS, SPEND, START, RealSteps, measure_best, to_spend
from covey.advise.situation import look
from covey.advise.trials.level import Level
from covey.advise.trials.trial import SPEND as SPENT_ON_TRIALS
from covey.advise.trials.trial import SimulatedTrials, TrialOutcome
from covey.catalog import resolve
from covey.errors import PlanError
from covey.observe.contention import Contention
from covey.observe.step_time import recorded_step
from covey.simulate import from_flags
from covey.task import load_task

DIGITS = "examples/digits.py"


def known(**flags: Any) -> Known:
    task = load_task(DIGITS)
    now = look(task, 2, from_flags(**flags))
    return Known(now=now, rows=[_guessed(candidate, now) for candidate in candidates(task, now)])


def trained(samples: float, **flags: Any) -> Known:
    """All took this many times the samples of one worker alone to the target, with three seeds."""
    found = known(**flags)
    found.level = Level(task=load_task(DIGITS), until="accuracy>=0.9", scores=8, samples=1000.0, seconds=1.0)
    found.alone = [1000.0] * 3
    for row in found.rows:
        found.curves[row.candidate.mathematics] = Curve({turn: TrialOutcome(samples * 1000.0) for turn in range(3)})
    return found


class Rigged(RealSteps):
    """Steps as long as it is told; remembers who was asked."""

    slow = 1.0

    def measure(self, spec: str, workers: int, steps: int, turn: int) -> float:
        asked.append((spec, workers, steps, turn))
        if spec == "gosgd":
            raise PlanError("it cannot run here\nat all")
        return (0.02 if workers == 1 else 0.03) * self.slow


asked: list[tuple[str, int, int, int]] = []


def test_the_best_eight_then_the_best_four_with_the_same_seeds() -> None:
    asked.clear()
    found = trained(1.3, compute="5ms")
    measure_best(found, Rigged(task=DIGITS, engine="local", workers=2), lambda _: None)
    for turn, (many, steps) in enumerate(ROUNDS):
        mine = [one for one in asked if one[3] == turn and one[1] == 2]
        assert len(mine) == many and {one[2] for one in mine} == {
            round_to_periods(resolve(one[0], 2), steps, 5) for one in mine
        }
        assert ("local_sgd", 1, steps, turn) in asked
    assert found.single().value == 0.02
    failed = [row for row in found.rows if row.failure]
    assert all(row.failure == "it cannot run here" and found.missed(row) for row in failed)


def test_who_is_surely_behind_is_not_measured_again() -> None:
    class Apart(Rigged):
        def measure(self, spec: str, workers: int, steps: int, turn: int) -> float:
            super().measure("one", workers, steps, turn)
            return 0.02 if workers == 1 or len([one for one in asked if one[1] == 2]) == 1 else 2.0

    asked.clear()
    measure_best(trained(1.0, compute="5ms"), Apart(task=DIGITS, engine="local", workers=2), lambda _: None)
    again = {turn for _, workers, _, turn in asked if workers == 2}
    assert again == {0}, "the first is far before the others, and before one worker alone"
    assert len([one for one in asked if one[1] == 2]) == FIRSTS, "others are as far behind, as far as can be foreseen"


def test_where_one_worker_alone_is_surely_faster_a_few_strategies_are_measured_once() -> None:
    asked.clear()
    found = trained(3.0, compute="5ms")
    measure_best(found, Rigged(task=DIGITS, engine="local", workers=2), lambda _: None)
    assert [turn for _, workers, _, turn in asked if workers == 1] == [0, 1], "all are compared with it"
    assert len([one for one in asked if one[1] == 2 and one[0] != "gosgd"]) == FIRSTS
    assert all(found.relative(row).interval[0] > 1 for row in found.rows if row.real)


def test_what_cannot_run_here_is_none_of_the_first_few() -> None:
    class Fails(Rigged):
        def measure(self, spec: str, workers: int, steps: int, turn: int) -> float:
            super().measure("one", workers, steps, turn)
            if workers == 2 and len([one for one in asked if one[1] == 2]) <= 2:
                raise PlanError("it cannot run here")
            return 0.02 if workers == 1 else 0.03

    asked.clear()
    measure_best(trained(3.0, compute="5ms"), Fails(task=DIGITS, engine="local", workers=2), lambda _: None)
    assert len([one for one in asked if one[1] == 2]) == 2 + FIRSTS


def test_the_only_rival_of_one_worker_alone_is_measured_again() -> None:
    class Close(Rigged):
        def measure(self, spec: str, workers: int, steps: int, turn: int) -> float:
            super().measure("one", workers, steps, turn)
            mine = [one for one in asked if one[1] == 2]
            return 0.02 if workers == 1 else 0.04 if turn or len(mine) == 1 else 2.0

    asked.clear()
    measure_best(trained(1.0, compute="5ms"), Close(task=DIGITS, engine="local", workers=2), lambda _: None)
    assert [one[3] for one in asked if one[1] == 2] == [0] * FIRSTS + [1, 2], "which of the two is first is not known"


def test_steps_are_not_measured_again_where_little_is_known_of_samples() -> None:
    asked.clear()
    found = known(compute="5ms")
    measure_best(found, Rigged(task=DIGITS, engine="local", workers=2), lambda _: None)
    assert {turn for _, workers, _, turn in asked if workers == 2} == {0}
    row = next(row for row in found.rows if row.real)
    before = found.relative(row).error
    row.real, found.alone_real = row.real * 9, found.alone_real * 9
    assert 0.9 * before < found.relative(row).error < before, "that would hardly have made the interval narrower"


def test_what_was_not_measured_follows_what_was() -> None:
    found = known(compute="5ms")
    first, other = found.rows[:2]
    before = found.step(other)
    first.real, first.timing = [3 * first.step.seconds] * 3, "real steps"
    assert found.step(other).value == pytest.approx(3 * before.value)
    assert found.step(first).error < before.error


def test_steps_that_other_programs_disturbed_are_less_sure() -> None:
    class Busy(Rigged):
        def measure(self, spec: str, workers: int, steps: int, turn: int) -> float:
            others = 1.9 if spec == "local_sgd" and busy else 0.0
            self.contention.append(Contention(cores=2, cpu=1.0, others=others, delay=0.9, pressure=None))
            return super().measure("one", workers, steps, turn)

    errors = []
    for busy in (False, True):
        found = trained(1.3, compute="5ms")
        measure_best(found, Busy(task=DIGITS, engine="local", workers=2), lambda _: None)
        errors.append(found.single().error)
        assert found.disturbed == busy
        least = min(found.step(row).error for row in found.rows if not row.real)
        assert least >= found.single().error, "what is foreseen from real steps is no surer than they are"
        assert ("other programs used the cores" in conclude(found, DIGITS, None, "").why_sure) == busy
    assert errors[1] > 3 * errors[0]


def test_one_worker_alone_can_have_synchronized_batch_norm() -> None:
    class Together(Rigged):
        def measure(self, spec: str, workers: int, steps: int, turn: int) -> float:
            if spec == ALONE:
                raise PlanError("nn.SyncBatchNorm has no meaning here")
            return super().measure(spec, workers, steps, turn)

    asked.clear()
    found = known(compute="5ms")
    measure_best(found, Together(task=DIGITS, engine="local", workers=2), lambda _: None)
    assert found.alone_real and (SYNCHRONOUS, 1) in {(spec, workers) for spec, workers, *_ in asked}


def test_real_steps_say_how_far_off_others_are() -> None:
    found = known(compute="5ms")
    rows, other = found.rows[:3], found.rows[3]
    before = found.step(other).error
    for row, factor in zip(rows, (0.5, 1.0, 2.0), strict=True):
        row.real = [factor * row.step.seconds]
    assert found.step(other).error > 2 * before, "steps took from half to twice as long as foreseen"
    for row in rows:
        row.real = [3 * row.step.seconds]
    assert found.step(other).error < before, "all took three times as long"


def test_slow_steps_are_fewer() -> None:
    asked.clear()
    real = type("Slow", (Rigged,), {"slow": 30.0})(task=DIGITS, engine="local", workers=2)
    measure_best(known(compute="900ms"), real, lambda _: None)
    assert all(FEWEST - 1 <= steps < 60 for _, _, steps, _ in asked)  # 9: one period of four after five
    assert min(steps for _, _, steps, _ in asked) < 20


def test_what_is_surely_slower_is_not_measured_where_its_steps_take_long() -> None:
    """The first few are measured in any case, unless that takes longer than a run should."""
    names = "allreduce", "dpsgd", "malt", "ssp", "quorum"

    class AsForeseen(Rigged):
        def measure(self, spec: str, workers: int, steps: int, turn: int) -> float:
            super().measure(spec, workers, steps, turn)
            return 0.05 if spec in (ALONE, "allreduce") else 0.05 + exchange

    for exchange, many in ((1.0, FIRSTS), (10.0, 1)):
        asked.clear()
        found = trained(1.0, compute="50ms")
        found.rows = [row for row in found.rows if row.candidate.spec in names]
        for row in found.rows:
            slow = 0.0 if row.candidate.spec == "allreduce" else exchange
            row.step = StepTime(seconds=0.05 + slow, exchange=slow)
        measure_best(found, AsForeseen(task=DIGITS, engine="local", workers=2), lambda _: None)
        assert len({spec for spec, workers, *_ in asked if workers == 2}) == many


@pytest.mark.parametrize(("spec", "steps"), [("allreduce", 30), ("local_sgd(period=8)", 29), ("bmuf(period=32)", 37)])
def test_of_periods_only_whole_ones_are_measured(spec: str, steps: int) -> None:
    """Thirty steps of `bmuf(period=32)` would have no exchange at all; the first five steps do not count."""
    asked.clear()
    found = known(compute="5ms")
    found.rows = [_guessed(Candidate(spec=spec, strategy=resolve(spec, 2)), found.now)]
    measure_best(found, Rigged(task=DIGITS, engine="local", workers=2), lambda _: None)
    assert next(many for name, _, many, turn in asked if name == spec and turn == 0) == steps


def test_a_long_period_is_measured_once_whole() -> None:
    assert round_to_periods(resolve("bmuf(period=32)", 2), 10, 5) == 37


def test_each_turn_has_a_seed_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = list[int]()

    def fit(*_: Any, **options: Any) -> Any:
        seeds.append(options["seed"])
        raise PlanError("it was only asked")

    monkeypatch.setattr("covey.advise.real_steps.fit", fit)
    for turn in range(3):
        with pytest.raises(PlanError):
            RealSteps(task=DIGITS, engine="local", workers=2, seed=5).measure("bsp", 2, 30, turn)
    assert seeds == [5, 6, 7]


def test_starting_processes_takes_time_of_the_minute_too() -> None:
    now = look(load_task(DIGITS), 2, from_flags(compute="1us"))
    assert to_spend(now) == pytest.approx(START * (len(ROUNDS) + sum(many for many, _ in ROUNDS)), abs=0.01)


def test_a_calibrated_cluster_says_how_far_off_steps_are() -> None:
    found = known(compute="5ms")
    row = found.rows[0]
    row.timing = "virtual time"
    usual = found.step(row).error
    found.now = replace(found.now, cluster=replace(found.now.cluster, error=3 * usual))
    assert found.step(row).error == 3 * usual
    row.timing = "formulas"
    assert found.step(row).error != 3 * usual, "that was said of virtual time"


def test_one_late_run_of_two_is_not_most() -> None:
    late, there = TrialOutcome(late=True), TrialOutcome(samples=9.0)
    assert not Curve({0: late, 1: there}).missed and Curve({0: late, 1: late, 2: there}).missed


def test_a_period_that_takes_too_long_is_not_measured() -> None:
    asked.clear()
    found = known(compute="900ms")
    found.rows = [_guessed(Candidate(spec="bmuf(period=32)", strategy=resolve("bmuf(period=32)", 2)), found.now)]
    told: list[str] = []
    measure_best(found, Rigged(task=DIGITS, engine="local", workers=2), told.append)
    assert {name for name, *_ in asked} <= {ALONE} and not found.rows[0].real
    assert "not measuring bmuf(period=32): one period of its exchange takes too long" in told


def test_all_runs_together_compute_no_longer_than_what_is_to_spend() -> None:
    asked.clear()
    measure_best(trained(1.3, compute="50ms"), Rigged(task=DIGITS, engine="local", workers=2), lambda _: None)
    assert {turn for *_, turn in asked} == {0, 1}
    assert 0.95 * SPEND <= sum(0.05 * workers * steps for _, workers, steps, _ in asked if workers > 1) <= 1.05 * SPEND


def test_what_real_steps_take_is_not_spent_on_trials() -> None:
    task = load_task(DIGITS)
    now = look(task, 2, from_flags(compute="20ms"))
    trials = SimulatedTrials(task, now, 0.02, until=0.0)
    advise(task, DIGITS, now, trials=trials, real=Rigged(task=DIGITS, engine="local", workers=2, until=0.0))
    assert trials.spend == SPENT_ON_TRIALS - to_spend(now) and SPEND < to_spend(now) < SPENT_ON_TRIALS


def test_a_recording_tells_the_steps_of_the_mean_worker() -> None:
    cluster = from_flags(compute="10ms", slow=["1:3x"])
    result = covey.fit(DIGITS, "gosgd", 2, engine="simulated", cluster=cluster, steps=30, scores=0, traced=True)
    assert result.recording is not None
    assert recorded_step(result.recording) == pytest.approx(2 / (1 / 0.01 + 1 / 0.03), rel=0.05)
    assert all("accuracy" not in row for row in result.history)


def test_real_steps_on_processes_are_not_scored() -> None:
    steps = RealSteps(task=DIGITS, engine="local", workers=2)
    assert 0 < steps.measure("allreduce", 2, 12, 0) < 5
    result = covey.fit(DIGITS, "allreduce", 2, steps=4, scores=0, runs=False)
    assert result.history == []
    with pytest.raises(PlanError, match="scores=0 asks for none"):
        covey.fit(DIGITS, "bsp", 2, until="accuracy>=0.5", scores=0)
