"""Which of the first ones is it, for real? A race of those that may be the best (covey.compare)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from covey.advise.ranked import Advice, RaceResult, RankedStrategy
from covey.advise.trials.trial import SCORES
from covey.compare import Comparison, compare
from covey.errors import PlanError

MOST = 4  # strategies of a race


def finalists(advice: Advice) -> list[str]:
    """The first of the list, and the next that may be as fast, at least two."""
    able = [choice for choice in advice.choices if choice.workers > 1 and not choice.missed]
    first = able[0].relative_interval[1] if able else 0.0
    near = [choice for place, choice in enumerate(able) if place < 2 or choice.relative_interval[0] <= first]
    return [choice.spec for choice in near[:MOST]]


def race(
    advice: Advice, task: str, engine: str, *, within: str | None = None, seed: int = 0, epochs: int | None = None,
    told: Callable[[str], None] = lambda _: None, **further: Any,
) -> Comparison:  # fmt: skip
    """Run the finalists with equal seeds until one is surely first, and write into the advice what came of it."""
    if advice.until is None:
        raise PlanError("--race needs a target that strategies can reach first: give --until, such as accuracy:0.9")
    specs = finalists(advice)
    if len(specs) < 2:
        raise PlanError("--race needs two strategies that can run here, and there is one: run it with covey run")
    told(f"racing {', '.join(specs)}")
    whole = compare(
        task, ",".join(specs), advice.workers, until=advice.until, within=within, seed=seed, engine=engine,
        epochs=epochs, scores=SCORES, told=told, **further,
    )  # fmt: skip
    conclude_race(advice, whole)
    return whole


def conclude_race(advice: Advice, whole: Comparison) -> None:
    """Put first what was first; one that was interrupted or undecided says so, and changes no order."""
    advice.race = RaceResult(
        verdict=whole.verdict, winner=whole.winner, tied=list(whole.tied), strategies=list(whole.strategies),
        interrupted=whole.interrupted,
    )  # fmt: skip
    advice.interrupted = advice.interrupted or whole.interrupted
    best = [whole.winner] if whole.winner else list(whole.tied)
    if not best:
        advice.why_sure += f"; the race was not decided ({whole.verdict})"
        return
    advice.choices.sort(key=lambda choice: _place(choice, best))
    advice.sure, advice.why_sure = "raced", whole.verdict


def _place(choice: RankedStrategy, best: list[str]) -> int:
    return best.index(choice.spec) if choice.workers > 1 and choice.spec in best else len(best)
