"""What short runs of real strategies teach: here the real machine is a cluster whose truth is known."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import exp, log
from typing import Any

import pytest

import covey
from covey.calibrate.rehearsal import (
    BRIEF,
    LEAST,
    THOROUGH,
    TO_WORKERS,
    WITH_SERVER,
    RehearsalTerms,
    corrected,
    delayed,
    foreseen,
    real_step,
    rehearsed,
    woken,
)
from covey.observe.contention import Contention
from covey.observe.result import Result
from covey.simulate import Cluster, CpuTime, Handling, Link, Machine, Seconds, load, written
from covey.task import Task, load_task

DIGITS = "examples/digits.py"
SPECS = (WITH_SERVER, TO_WORKERS, "asynchronous", "local_sgd(period=4)")
TOLL = CpuTime(each=Seconds(2e-4))
HERE = Cluster(
    compute=Seconds(2e-3), handling=Handling(send=TOLL, receive=TOLL), machines=(Machine(cores=2),),
    local=Link(latency=Seconds(1e-4), cpu=TOLL),
)  # fmt: skip
LAB = Cluster(
    compute=Seconds(2e-3), handling=Handling(send=TOLL, receive=TOLL), link=Link(cpu=TOLL),
    machines=tuple(Machine(cores=1) for _ in range(3)),
)  # fmt: skip


@pytest.fixture(scope="module")
def task() -> Task:
    return load_task(DIGITS)


def steps(task: Task, cluster: Cluster) -> dict[str, float]:
    return {spec: foreseen(task, spec, cluster) or 0.0 for spec in SPECS}


def test_cores_that_are_in_use_make_a_server_wait(task: Task) -> None:
    with_server, alone = (foreseen(task, spec, woken(HERE, 1e-3)) for spec in ("bsp", "asynchronous"))
    assert with_server and alone
    assert with_server > 1.1 * (foreseen(task, "bsp", HERE) or 0.0)
    assert foreseen(task, "bsp", woken(replace(HERE, machines=(Machine(cores=64),)), 1e-3)) == pytest.approx(
        foreseen(task, "bsp", replace(HERE, machines=(Machine(cores=64),)))
    )


@pytest.mark.parametrize(
    ("told", "truth"),
    [(HERE, delayed(woken(HERE, 8e-4), 3e-4)), (LAB, delayed(LAB, 1e-3))],
    ids=["servers that share cores", "worker to worker"],
)
def test_what_parts_do_not_tell_is_learned_from_whole_strategies(told: Cluster, truth: Cluster, task: Task) -> None:
    real, before = steps(task, truth), steps(task, told)
    found = corrected(told, real, partial(foreseen, task))
    after = steps(task, found)
    for spec in (WITH_SERVER, TO_WORKERS):
        assert abs(log(after[spec] / real[spec])) < 0.04, spec
    off = [max(abs(log(seen[spec] / real[spec])) for spec in SPECS) for seen in (before, after)]
    assert off[1] < off[0] / 2 and off[0] > 0.1
    assert LEAST <= found.error < 0.1


def test_how_far_off_others_are_is_told(task: Task) -> None:
    real = steps(task, HERE)
    off = corrected(HERE, {**real, "asynchronous": real["asynchronous"] * exp(0.4)}, partial(foreseen, task))
    assert off.error == pytest.approx(0.2, rel=0.1) and corrected(HERE, {}, partial(foreseen, task)) == HERE


def test_what_was_fitted_does_not_say_how_far_off_others_are(task: Task) -> None:
    real = steps(task, delayed(woken(HERE, 8e-4), 3e-4))
    fitted = corrected(HERE, {spec: real[spec] for spec in (WITH_SERVER, TO_WORKERS)}, partial(foreseen, task))
    assert fitted.machines[0].wake > 0 and fitted.error == HERE.error


def test_what_was_learned_is_in_the_file(tmp_path) -> None:  # type: ignore[no-untyped-def]
    cluster = replace(woken(HERE, 8e-4), error=0.07)
    (tmp_path / "cluster.toml").write_text(written(cluster))
    again = load(tmp_path / "cluster.toml")
    assert again.machines[0].wake == pytest.approx(8e-4) and again.error == pytest.approx(0.07)


def test_a_strategy_that_cannot_train_the_task_is_left_out(task: Task) -> None:
    assert real_step(task, "local_sgd(period=0)", "local", 1, None) is None
    assert foreseen(task, "local_sgd(period=0)", HERE) is None


def test_runs_that_other_programs_disturbed_teach_nothing(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*given: Any, **options: Any) -> Result:
        options["engine"], _ = "simulated", options.pop("threads", None)
        result = covey.fit(*given, **options)
        if not options.get("timing_only"):
            result.contention = Contention(cores=2, cpu=1.0, others=1.9 if disturbed else 0.0, delay=0.9, pressure=None)
        return result

    monkeypatch.setattr("covey.calibrate.rehearsal.fit", busy)
    said: list[str] = []
    disturbed = True
    assert rehearsed(HERE, task, task, "local", 1, said.append) == HERE and "other programs" in said[-1]
    disturbed = False
    assert real_step(task, "bsp", "local", 1, 0.2) is not None


@pytest.mark.parametrize(("disturbed", "terms", "runs"), [
    (0, THOROUGH, 3), (0, BRIEF, 1), (1, BRIEF, 2), (9, BRIEF, 2),
])  # fmt: skip
def test_runs_that_were_left_alone_are_enough(
    disturbed: int, terms: RehearsalTerms, runs: int, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[int] = []

    def noted(*given: Any, **options: Any) -> Result:
        options["engine"], _ = "simulated", options.pop("threads", None)
        result = covey.fit(*given, **options)
        others = 1.9 if len(seeds) < disturbed else 0.0
        result.contention = Contention(cores=2, cpu=1.0, others=others, delay=0.9, pressure=None)
        seeds.append(options["seed"])
        return result

    monkeypatch.setattr("covey.calibrate.rehearsal.fit", noted)
    assert (real_step(task, "bsp", "local", 1, 0.2, terms) is None) == (disturbed >= runs)
    assert seeds == list(range(runs))
