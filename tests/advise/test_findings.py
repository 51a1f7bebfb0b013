"""Sentences of one advice never contradict one another, whatever the situation: each is from one value."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from covey.advise import findings
from covey.advise.choose import advise
from covey.advise.conclude import conclude
from covey.advise.findings import COMPRESSED, EVERY_STEP, IDLE
from covey.advise.known import CandidateRow, Known
from covey.advise.predict import StepTime
from covey.advise.ranked import Advice
from covey.advise.rules import BUSY
from covey.advise.situation import Situation, look, time_transform
from covey.simulate import Cluster, Seconds, from_flags
from covey.task import Task, load_task
from tests.worlds import mlp

DIGITS = "examples/digits.py"
NETWORK = re.compile(r"The network is (no|hardly a|a) bottleneck: .* takes ([0-9]+)% of it")
PLAN = "compress, exchange less often, or gossip"


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
    from covey.advise.candidates import candidates
    from covey.advise.choose import _guessed

    if seed not in _KNOWN:
        now = situation(task, seed)
        _KNOWN[seed] = Known(now=now, rows=[_guessed(candidate, now) for candidate in candidates(task, now)])
    kept = _KNOWN[seed]
    rows = [CandidateRow(candidate=row.candidate, step=row.step, factor=row.factor) for row in kept.rows]
    return replace(kept, rows=rows)


@pytest.mark.parametrize(
    ("compute", "prepare", "exchange", "workers", "measured", "words"),
    [
        (0.010, 0.030, 0.0, 1, False, "3 preparers would give 4.0x"),
        (0.040, 0.030, 0.0, 1, True, "3 preparers would give 4.0x"),  # a batch that was measured holds its transform
        (0.010, 0.010, 0.0, 2, False, "2 preparers would give 2.0x"),
        (0.010, 0.030, 0.5, 1, False, "3 preparers would give 2.5x"),  # 10 ms of exchange stay
        (0.010, 0.030, 0.8, 1, False, ""),  # the network takes longer
        (0.010, 0.0, 0.0, 1, False, ""),
    ],
)
def test_it_tells_where_data_limits(
    compute: float, prepare: float, exchange: float, workers: int, measured: bool, words: str
) -> None:
    now = Situation(
        workers=workers, samples=100, batch=10, model=1000, cluster=Cluster(compute=Seconds(compute)), prepare=prepare,
        measured=measured,
    )  # fmt: skip
    said = list(findings._data(now, exchange))
    assert [words in line for line in said] == [True] * bool(words)


def test_a_transform_is_timed_in_cpu_seconds() -> None:
    def dear(sample: Any) -> Any:
        until = time.thread_time() + 0.001
        while time.thread_time() < until:
            pass
        return sample

    assert time_transform(mlp()) == 0
    assert 0.008 <= time_transform(mlp(transform=dear)) < 1  # batches of 8
