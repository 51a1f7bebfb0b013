"""Sentences of one advice never contradict one another, whatever the situation: each is from one value."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from io import StringIO
from random import Random
from typing import Any

import msgspec
import pytest
from rich.console import Console

from covey.advise import findings
from covey.advise.candidates import candidates
from covey.advise.choose import advise
from covey.advise.conclude import conclude
from covey.advise.findings import COMPRESSED, EVERY_STEP, IDLE
from covey.advise.known import CandidateRow, Known
from covey.advise.predict import StepTime, step
from covey.advise.ranked import Advice, RankedStrategy
from covey.advise.rules import BUSY
from covey.advise.situation import Situation, look, time_transform
from covey.advise.trials.trial import SimulatedTrials
from covey.cli.tables.advice import print_advice
from covey.simulate import Cluster, Machine, Seconds, from_flags
from covey.task import Task, load_task
from tests.worlds import mlp

DIGITS = "examples/digits.py"
NETWORK = re.compile(r"The network is (no|hardly a|a) bottleneck: .* takes ([0-9]+)% of it")
PLAN = "exchange less often, or gossip"


@pytest.fixture(scope="module")
def task() -> Task:
    return load_task(DIGITS)


def situation(task: Task, seed: int) -> Situation:
    """Any links, any speed, some slow."""
    chance = Random(seed)
    slow = [f"0:{chance.choice((2, 5))}x"] if chance.random() < 0.3 else []
    flags = {
        "bandwidth": f"{10 ** chance.uniform(-1, 4):.4g}mbit", "compute": f"{10 ** chance.uniform(-1, 3):.4g}ms",
        "latency": f"{10 ** chance.uniform(-3, 2):.4g}ms", "jitter": chance.choice((0.0, 0.3)),
    }  # fmt: skip
    return look(task, chance.choice((2, 3, 4, 8)), from_flags(slow=slow, **flags))  # type: ignore[arg-type]


def check(advice: Advice) -> None:
    rows = {choice.spec: choice for choice in advice.choices if choice.workers > 1}
    share = min(rows[spec].exchange for spec in EVERY_STEP if spec in rows)
    ((state, told),) = [found for line in advice.findings for found in NETWORK.findall(line)]
    assert told == f"{share:.0%}".removesuffix("%")
    assert state == ("a" if share > 1 - BUSY else "no" if share < IDLE else "hardly a")
    assert any(PLAN in line for line in advice.findings) == (share > 1 - BUSY)
    for plain in COMPRESSED:
        _check_codec(advice, plain)
    alone = next(choice for choice in advice.choices if choice.workers == 1)
    best = next(choice for choice in advice.choices if choice.workers > 1)
    assert any("alone is faster" in line for line in advice.findings) == (alone.relative <= best.relative)
    old = [float(age) for line in advice.findings for age in re.findall(r"about ([0-9]+) updates old", line)]
    for age in old:
        assert any(f"about {age:.0f} updates old" in risk for choice in rows.values() for risk in choice.risks)


def _check_codec(advice: Advice, plain: str) -> None:
    """The summary, the line of the strategy without its codec and of that with it, and their steps agree."""
    rows = {choice.spec: choice for choice in advice.choices if choice.workers > 1}
    said = [line for line in advice.findings if f"'{plain} + " in line]
    if plain not in rows or not said:
        return
    pays, spec = "Compression pays" in said[0], said[0].split("'")[1]
    assert any("no codec pays" in reason for reason in rows[plain].reasons) == (not pays)
    assert any(reason.startswith("with + ") for reason in rows[plain].reasons) == pays
    if spec in rows and rows[spec].timing == rows[plain].timing:
        gain = 1 - rows[spec].step / rows[plain].step
        assert f"{abs(gain):.0%} {'shorter' if gain > 0 else 'longer'}" in said[0]
        assert gain > 0 or not pays


@pytest.mark.parametrize("seed", range(12))
def test_sentences_agree_in_any_situation(seed: int, task: Task) -> None:
    check(advise(task, DIGITS, situation(task, seed)))


@pytest.mark.parametrize("seed", range(40))
def test_sentences_agree_when_steps_were_timed_otherwise_than_formulas_say(seed: int, task: Task) -> None:
    """Any time for any step: what was measured need not agree with formulas, but sentences with one another."""
    known, chance = _known(task, seed % 4), Random(seed)
    for row in known.rows:
        seconds = row.step.seconds * 10 ** chance.uniform(-0.5, 0.5)
        row.step = StepTime(seconds=seconds, exchange=chance.random() * seconds, staleness=row.step.staleness)
        row.timing = chance.choice(("formulas", "virtual time"))
    check(conclude(known, DIGITS, None, ""))


_KNOWN: dict[int, Known] = {}


def _known(task: Task, seed: int) -> Known:
    from covey.advise.choose import _guessed

    if seed not in _KNOWN:
        now = situation(task, seed)
        _KNOWN[seed] = Known(now=now, rows=[_guessed(candidate, now) for candidate in candidates(task, now)])
    kept = _KNOWN[seed]
    rows = [CandidateRow(candidate=row.candidate, step=row.step, factor=row.factor) for row in kept.rows]
    return replace(kept, rows=rows)


ROW = RankedStrategy(
    spec="bsp", workers=1, step=0.1, timing="formulas", exchange=0.0, relative=1.0, relative_interval=(1.0, 1.0),
    basis="formulas", family="central, synchronous", command="covey run x.py --strategy bsp",
)  # fmt: skip


def limited(compute: float, prepare: float, workers: int, **more: Any) -> Situation:
    return Situation(
        workers=workers, samples=100, batch=10, model=1000, prepare=prepare,
        cluster=Cluster(compute=Seconds(compute), prepare=Seconds(prepare)), **more,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("compute", "prepare", "exchange", "workers", "preparers", "words"),
    [
        (0.010, 0.030, 0.0, 1, 0, "3 preparers would give 4.0x"),
        (0.010, 0.010, 0.0, 2, 0, "2 preparers would give 2.0x"),
        (0.010, 0.030, 0.2, 1, 0, "2 preparers would give 2.5x"),  # 10 ms of exchange stay
        (0.010, 0.030, 0.0, 1, 1, "3 preparers would give 3.0x"),
        (0.010, 0.030, 0.0, 1, 3, ""),
        (0.010, 0.030, 0.8, 1, 0, ""),  # the network takes longer
        (0.010, 0.0, 0.0, 1, 0, ""),
    ],
)
def test_it_tells_where_data_limits(
    compute: float, prepare: float, exchange: float, workers: int, preparers: int, words: str
) -> None:
    said = list(findings._data([ROW], limited(compute, prepare, workers, preparers=preparers), exchange))
    assert [words in line for line in said] == [True] * bool(words)
    many = words.split(maxsplit=1)[0] if words else ""
    assert all(line.endswith(f": covey run x.py --strategy bsp --preparers {many}.") for line in said)


def test_preparers_need_cores_too() -> None:
    now = limited(0.010, 0.030, 1, one_machine=True)
    two = replace(now, cluster=replace(now.cluster, machines=(Machine(cores=2.0),)))
    (said,) = findings._data([ROW], two, 0.0)
    assert "2 preparers would give 2.0x" in said
    one = replace(now, cluster=replace(now.cluster, machines=(Machine(cores=1.0),)))
    assert not list(findings._data([ROW], one, 0.0))


def slow_to_transform(sample: Any) -> Any:
    until = time.thread_time() + 0.001
    while time.thread_time() < until:
        pass
    return sample


def test_a_batch_that_was_measured_held_its_transform() -> None:
    task, world = mlp(transform=slow_to_transform), Cluster(compute=Seconds(0.1))
    own, described = look(task, 2, world, measured=True), look(task, 2, world)
    helped = look(replace(task, preparers=2), 2, world, measured=True)
    assert 0.008 <= own.prepare == own.cluster.prepare < 0.1
    assert own.compute == pytest.approx(0.1) and described.compute == pytest.approx(0.1 + described.prepare)
    assert helped.compute == pytest.approx(0.1 - helped.prepare) and helped.prepared_every == helped.prepare
    said = look(task, 2, replace(world, prepare=Seconds(0.5)), measured=True)
    assert said.prepare == 0.5 and said.compute == 0.6


@pytest.mark.parametrize("count", [0, 1, 2, 8])
def test_formulas_and_virtual_time_agree_on_preparers(count: int) -> None:
    task = mlp(samples=400, transform=slow_to_transform, preparers=count)
    now = look(task, 2, Cluster(compute=Seconds(0.01), prepare=Seconds(0.03)))
    candidate = next(one for one in candidates(task, now) if one.spec == "allreduce")
    formula, timed = step(candidate.strategy, now), SimulatedTrials(task, now, 0.01).timed(candidate)
    assert timed and timed.seconds == pytest.approx(formula.seconds, rel=0.25)  # few steps: the first are ahead
    if count == 1:
        assert timed.exchange == formula.exchange == 0.0


def test_a_transform_is_timed_in_cpu_seconds() -> None:
    def dear(sample: Any) -> Any:
        until = time.thread_time() + 0.001
        while time.thread_time() < until:
            pass
        return sample

    assert time_transform(mlp()) == 0
    assert 0.008 <= time_transform(mlp(transform=dear)) < 1  # batches of 8


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "--workers 4"),
        ({"until": "accuracy>=0.9"}, f"--workers 4 --until 'accuracy>=0.9' --scores {findings.SCORES}"),
        ({"epochs": 3}, "--workers 4 --epochs 3"),
        ({"spot": True, "epochs": 3}, "--workers 2:4 --on-failure continue --epochs 3"),
        ({"spot": True, "least": 1}, "--workers 1:4 --on-failure continue"),
        ({"spot": True, "workers": 1}, "--workers 1 --checkpoint kept --on-failure restart"),
        ({"spot": True, "like": "--engine ray"}, "--workers 4 --checkpoint kept --on-failure restart --engine ray"),
        ({"spot": True, "like": "--plugin a.py"}, "--workers 2:4 --on-failure continue --plugin a.py"),
    ],
)
def test_the_command_says_all_that_the_trials_assumed(given: dict[str, Any], words: str) -> None:
    asked = {"workers": 4, "until": None, "like": "", **given}
    assert findings.command("x.py", "bsp", **asked) == f"covey run x.py --strategy bsp {words}"


@pytest.mark.parametrize(("interval", "words"), [((0.9, 1.2), "900 ms-1.2 s"), ((1.1, 1.2), "1.1-1.2 s")])
def test_both_ends_of_an_interval_have_a_unit_where_these_differ(interval: tuple[float, float], words: str) -> None:
    timed = msgspec.structs.replace(ROW, seconds=1.0, seconds_interval=interval)
    found = Advice(
        task=DIGITS, workers=2, until="accuracy>=0.9", choices=[timed], findings=[], sure="raced", why_sure="",
        compute=0.01, model=1000,
    )  # fmt: skip
    printed = Console(width=200, file=StringIO())
    print_advice(printed, found, limited(0.01, 0.0, 2), top=1)
    assert f" {words} " in printed.file.getvalue()  # type: ignore[attr-defined]
