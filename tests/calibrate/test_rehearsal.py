"""What short runs of real strategies teach: here the real machine is a cluster whose truth is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import exp, log
from typing import Any

import pytest

import covey
from covey.calibrate.fitting import ClusterCorrection, ClusterFit
from covey.calibrate.rehearsal import (
    BRIEF,
    FEWEST,
    LATE,
    LEAST,
    LOAD,
    SERVERS,
    SPEED,
    STEPS,
    TELLING,
    THOROUGH,
    WORKERS_ALONE,
    RealRuns,
    RehearsalTerms,
    corrected,
    corrections,
    delayed,
    foreseen,
    loaded,
    rehearsed,
    slowed,
    wholly,
    widened,
    woken,
)
from covey.errors import PlanError
from covey.observe.contention import Contention
from covey.observe.result import Result
from covey.observe.step_time import recorded_step
from covey.simulate import Bytes, BytesPerSecond, Cluster, CpuTime, Handling, Link, Machine, Seconds, load, written
from covey.task import Task, load_task

DIGITS = "examples/digits.py"
SPECS = (*SERVERS, *WORKERS_ALONE)
HELD_OUT = ("ssp(bound=3)", "gosgd(probability=0.25)")
TOLL = CpuTime(each=Seconds(2e-4))
HERE = Cluster(
    compute=Seconds(2e-3), handling=Handling(send=TOLL, receive=TOLL), machines=(Machine(cores=2),),
    local=Link(latency=Seconds(1e-4), cpu=TOLL),
)  # fmt: skip
LAB = Cluster(
    compute=Seconds(2e-3), handling=Handling(send=TOLL, receive=TOLL), link=Link(cpu=TOLL),
    machines=tuple(Machine(cores=1) for _ in range(3)),
)  # fmt: skip
SLOW = replace(LAB, link=Link(cpu=TOLL, bandwidth=BytesPerSecond(1e6)), sharing="tcp", window=Bytes(500))


@pytest.fixture(scope="module")
def task() -> Task:
    return load_task(DIGITS)


def steps(task: Task, cluster: Cluster, specs: tuple[str, ...] = SPECS) -> dict[str, float]:
    return {spec: foreseen(task, spec, cluster) or 0.0 for spec in specs}


def off(one: dict[str, float], other: dict[str, float]) -> float:
    """By how much the logarithms differ, at most."""
    return max(abs(log(one[spec] / other[spec])) for spec in one)


def test_cores_that_are_in_use_make_a_server_wait(task: Task) -> None:
    with_server, alone = (foreseen(task, spec, woken(HERE, 2.0)) for spec in ("bsp", "asynchronous"))
    assert with_server and alone
    assert with_server > 1.1 * (foreseen(task, "bsp", HERE) or 0.0)
    assert foreseen(task, "bsp", woken(replace(HERE, machines=(Machine(cores=64),)), 2.0)) == pytest.approx(
        foreseen(task, "bsp", replace(HERE, machines=(Machine(cores=64),)))
    )


@pytest.mark.parametrize(
    ("told", "truth"),
    [
        (HERE, delayed(woken(HERE, 1.6), 0.6)),
        (LAB, delayed(LAB, 2.0)),
        (LAB, loaded(slowed(LAB, 2.0), 1.0)),
        (SLOW, widened(SLOW, 2.5)),
    ],
    ids=["servers that share cores", "late messages", "a slower machine", "equal parts of a slow link"],
)
def test_strategies_that_were_not_run_are_foreseen_better(told: Cluster, truth: Cluster, task: Task) -> None:
    real = steps(task, truth, HELD_OUT)
    found = corrected(told, steps(task, truth), partial(foreseen, task))
    before, after = (off(steps(task, cluster, HELD_OUT), real) for cluster in (told, found))
    assert before > 0.1 and after < before / 2 and after < 0.12
    assert LEAST <= found.error < 0.2


def test_how_far_off_others_are_is_told(task: Task) -> None:
    """A step that nothing explains: each of the others is foreseen well, but this one is not."""
    real = steps(task, HERE)
    odd = {**real, "dpsgd over ring": real["dpsgd over ring"] * exp(0.6)}
    exact, unsure = (corrected(HERE, found, partial(foreseen, task)) for found in (real, odd))
    assert exact.error == LEAST and 0.6 / len(SPECS) < unsure.error < 0.4
    assert corrected(HERE, {}, partial(foreseen, task)) == HERE


def test_a_few_strategies_do_not_say_how_far_off_others_are(task: Task) -> None:
    real = steps(task, delayed(woken(HERE, 1.6), 0.6), (SERVERS[0], WORKERS_ALONE[0]))
    found = corrected(HERE, real, partial(foreseen, task))
    assert found.machines[0].wake > 0 and found.error == HERE.error


def linear(rates: dict[str, float]) -> Callable[[str, Cluster], float]:
    """Steps whose logarithm grows by a rate with the latency, in units of `LATE`."""
    return lambda spec, cluster: exp(rates[spec] * cluster.link.latency / LATE)


def test_a_correction_is_as_large_as_what_it_explains_is_worth() -> None:
    """One strategy with a noise of 0.07, and a prior of 1: by hand 0.1 * 0.14 / (0.1 ** 2 + 0.07 ** 2)."""
    near = replace(LAB, link=replace(LAB.link, latency=Seconds(0)))
    found, _ = ClusterFit(
        near, [ClusterCorrection(delayed, least=0.0)], {"one": exp(0.14)}, linear({"one": 0.1})
    ).solved()
    assert found.link.latency / LATE == pytest.approx(0.1 * 0.14 / (0.1**2 + 0.07**2), rel=1e-3)
    found, _ = ClusterFit(
        near, [ClusterCorrection(delayed, least=0.0)], {"one": exp(-0.14)}, linear({"one": 0.1})
    ).solved()
    assert found.link.latency == 0, "what can only add cannot make a step shorter"


def test_a_strategy_is_off_by_what_the_others_do_not_tell_of_it() -> None:
    near = replace(LAB, link=replace(LAB.link, latency=Seconds(0)))
    rates, real = {"one": 0.5, "like it": 0.5}, {"one": exp(0.5), "like it": exp(0.8)}
    _, apart = ClusterFit(near, [ClusterCorrection(delayed, least=0.0)], real, linear(rates)).solved()
    weight = 0.5**2 / (0.5**2 + 0.07**2)
    assert apart == pytest.approx({"one": 0.5 - 0.8 * weight, "like it": 0.8 - 0.5 * weight}, abs=0.01)


@pytest.mark.parametrize("many", [TELLING - 1, TELLING])
def test_four_strategies_say_how_far_off_others_are(many: int) -> None:
    near = replace(LAB, link=replace(LAB.link, latency=Seconds(0)))
    rates = {f"s{number}": 0.0 for number in range(many)}
    real = dict.fromkeys(rates, 1.0) | {"s0": exp(0.4)}
    found = corrected(near, real, linear(rates))
    assert found.error == (pytest.approx(0.2) if many == TELLING else 0.0), "the root of the mean square, of 0.4 in 4"


def test_each_correction_changes_all_that_it_speaks_of() -> None:
    tolls = Handling(send=TOLL, receive=TOLL, sums=TOLL, step=Seconds(1e-3), report=Seconds(1e-5))
    plain = replace(HERE, handling=tolls, update=Seconds(1e-9), links={"node1": Link()}, machines=LAB.machines)
    slow, dear, late = slowed(plain, 1.0), loaded(plain, 1.0), delayed(plain, 2.0)
    assert {slow.compute / plain.compute, slow.update / plain.update, slow.handling.step / tolls.step} == {exp(SPEED)}
    for toll in (dear.handling.send, dear.handling.receive, dear.handling.sums):
        assert toll.each == exp(LOAD) * TOLL.each
    assert dear.handling.report == tolls.report and slow.handling.send == TOLL
    assert late.link.latency - plain.link.latency == pytest.approx(2 * LATE)
    assert late.links["node1"].latency == late.link.latency, "hosts with links of their own, too"


def test_nobody_waits_less_than_not_at_all() -> None:
    for cluster in (HERE, LAB, SLOW):
        signs = {one.change: one.least for one in corrections(cluster)}
        assert all(signs[change] == 0.0 for change in (delayed, woken) if change in signs)
    assert len(corrections(HERE)) == len(corrections(SLOW)) == 4 and len(corrections(LAB)) == 3


def test_the_median_of_real_runs_counts(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(runs: RealRuns, *_: Any) -> None:
        runs.found.append((0.1, 0.3, 0.2)[runs.turns])
        runs.turns += 1

    known = list[Any]()
    monkeypatch.setattr(RealRuns, "run", run)
    monkeypatch.setattr("covey.calibrate.rehearsal.foreseen", lambda *_: 0.1)
    monkeypatch.setattr("covey.calibrate.rehearsal.corrected", lambda cluster, real, measure: known.append(real))
    rehearsed(HERE, task, task, "local", 1, lambda text: None, RehearsalTerms(specs=("bsp",)))
    assert known == [{"bsp": 0.2}]


def test_real_runs_compute_as_the_task_will(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[dict[str, Any]]()

    def fit(*_: Any, **options: Any) -> Any:
        asked.append(options)
        raise PlanError("it was only asked")

    monkeypatch.setattr("covey.calibrate.rehearsal.fit", fit)
    RealRuns("bsp", None, THOROUGH).run(task, "local", 3)
    assert (asked[0]["threads"], asked[0]["engine"], asked[0]["scores"]) == (3, "local", 0)


@pytest.mark.parametrize("steps", [FEWEST, 17, STEPS])
def test_runs_have_whole_periods_however_many_steps(steps: int, task: Task) -> None:
    """A step of 2 ms and an exchange of 40 in every fourth: short real runs are foreseen by long ones."""
    assert wholly(steps) == steps == wholly(steps + 1)
    far = replace(LAB, handling=Handling(), link=Link(latency=Seconds(0.02)))
    found = covey.fit(
        task, "local_sgd(period=4)", 2, engine="simulated", cluster=far, steps=steps, timing_only=True, traced=True
    )
    assert found.recording and recorded_step(found.recording) == pytest.approx(
        foreseen(task, "local_sgd(period=4)", far), rel=1e-3
    )


def test_what_was_learned_is_in_the_file(tmp_path) -> None:  # type: ignore[no-untyped-def]
    cluster = replace(widened(woken(HERE, 1.6), 1.0), error=0.07, sharing="tcp")
    (tmp_path / "cluster.toml").write_text(written(cluster))
    again = load(tmp_path / "cluster.toml")
    assert again.machines[0].wake == pytest.approx(8e-4) and again.error == pytest.approx(0.07)
    assert again.window == cluster.window > HERE.window


def test_windows_never_vanish() -> None:
    assert widened(replace(SLOW, window=Bytes(1)), -3.0).window == 1


def test_a_strategy_that_cannot_train_the_task_is_left_out(task: Task) -> None:
    runs = RealRuns("local_sgd(period=0)", None, THOROUGH)
    runs.run(task, "local", 1)
    assert runs.over and not runs.found
    assert foreseen(task, "local_sgd(period=0)", HERE) is None


def contended(monkeypatch: pytest.MonkeyPatch, disturbed: Callable[[int], bool]) -> list[tuple[str, int, int]]:
    """Real runs in virtual time, beside other programs or not; the strategy, the seed and the steps of each."""
    made: list[tuple[str, int, int]] = []

    def noted(*given: Any, **options: Any) -> Result:
        options["engine"], _ = "simulated", options.pop("threads", None)
        result = covey.fit(*given, **options)
        if not options.get("timing_only"):
            others = 1.9 if disturbed(len(made)) else 0.0
            result.contention = Contention(cores=2, cpu=1.0, others=others, delay=0.9, pressure=None)
            made.append((given[1], options["seed"], options["steps"]))
        return result

    monkeypatch.setattr("covey.calibrate.rehearsal.fit", noted)
    return made


def test_runs_that_other_programs_disturbed_teach_nothing(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    contended(monkeypatch, lambda number: True)
    said: list[str] = []
    assert rehearsed(HERE, task, task, "local", 1, said.append) == HERE and "other programs" in said[-1]


def test_strategies_take_turns(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    made = contended(monkeypatch, lambda number: False)
    terms = RehearsalTerms(turns=2, specs=("bsp", "allreduce"))
    assert rehearsed(HERE, task, task, "local", 1, lambda text: None, terms) != HERE
    assert [run[:2] for run in made] == [("bsp", 0), ("allreduce", 0), ("bsp", 1), ("allreduce", 1)]


@pytest.mark.parametrize(("disturbed", "terms", "runs"), [
    (0, THOROUGH, 3), (0, BRIEF, 1), (1, BRIEF, 2), (9, BRIEF, 2),
])  # fmt: skip
def test_runs_that_were_left_alone_are_enough(
    disturbed: int, terms: RehearsalTerms, runs: int, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = contended(monkeypatch, lambda number: number < disturbed)
    found = RealRuns("bsp", 0.2, terms)
    while not found.over:
        found.run(task, "local", 1)
    assert [seed for _, seed, _ in made] == list(range(runs)) and bool(found.found) == (disturbed < runs)


def test_slow_steps_are_few_and_run_once(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    made = contended(monkeypatch, lambda number: False)
    for expected, longest in ((0.001, 3.0), (0.1, 3.0), (9.0, 0.001)):
        found = RealRuns("bsp", expected, RehearsalTerms(longest=longest))
        while not found.over:
            found.run(task, "local", 1)
    assert [steps for _, _, steps in made] == [STEPS] * 3 + [29] * 3 + [FEWEST]
