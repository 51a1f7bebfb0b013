"""A race of the best few: who runs, and what its verdict does to the advice."""

from __future__ import annotations

import pytest

from covey.advise.choose import advise
from covey.advise.finalists import MOST, conclude_race, finalists, race
from covey.advise.ranked import Advice
from covey.advise.situation import look
from covey.compare import Comparison
from covey.errors import PlanError
from covey.simulate import from_flags
from covey.task import load_task

DIGITS = "examples/digits.py"


@pytest.fixture
def advice() -> Advice:
    task = load_task(DIGITS)
    return advise(task, DIGITS, look(task, 2, from_flags(compute="5ms")), until="accuracy>=0.5")


def test_those_run_that_may_be_the_best(advice: Advice) -> None:
    many = [choice for choice in advice.choices if choice.workers > 1]
    assert finalists(advice) == [choice.spec for choice in many[:MOST]]  # formulas can tell none of them apart
    for place, choice in enumerate(many):
        choice.relative_interval = (place + 0.5, place + 0.9)
    assert finalists(advice) == [choice.spec for choice in many[:2]]
    many[1].missed = True
    assert finalists(advice) == [many[0].spec, many[2].spec]


def test_what_wins_comes_first(advice: Advice) -> None:
    third = [choice.spec for choice in advice.choices if choice.workers > 1][2]
    whole = Comparison(task=DIGITS, workers=2, engine="local", until=advice.until, verdict="it is first", winner=third)
    conclude_race(advice, whole)
    assert advice.choices[0].spec == third and advice.choices[0].workers == 2
    assert (advice.sure, advice.why_sure) == ("raced", "it is first")
    assert advice.race is not None and advice.race.winner == third and not advice.interrupted


def test_a_race_that_was_interrupted_changes_no_order_and_says_so(advice: Advice) -> None:
    before = [choice.spec for choice in advice.choices]
    whole = Comparison(task=DIGITS, workers=2, engine="local", until=advice.until, interrupted=True)
    whole.verdict = "No verdict: it was interrupted after 1 seed"
    conclude_race(advice, whole)
    assert [choice.spec for choice in advice.choices] == before and advice.interrupted
    assert advice.sure == "a rough guess" and "interrupted after 1 seed" in advice.why_sure


def test_a_race_in_virtual_time(advice: Advice) -> None:
    whole = race(advice, DIGITS, "simulated", cluster=from_flags(compute="5ms"))
    assert {run.spec for run in whole.outcomes} == set(finalists(advice)) or advice.sure == "raced"
    assert advice.race is not None and advice.race.verdict == whole.verdict
    assert advice.why_sure.endswith((whole.verdict, f"({whole.verdict})"))


def test_a_race_needs_a_target(advice: Advice) -> None:
    advice.until = None
    with pytest.raises(PlanError, match="--until"):
        race(advice, DIGITS, "local")
