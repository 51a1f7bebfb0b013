"""The rounds of a federated run (Bonawitz et al. 2019) as state machines without a clock of their own.

    selection       clients check in; `goal` of them are accepted, more than are needed
    configuration   the accepted ones get the model
    reporting       the first `target` reports count; with fewer than `enough` at the deadline the round is abandoned
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from covey.errors import PlanError

SelectionState = Literal["open", "ready", "failed"]
ReportingState = Literal["open", "committed", "abandoned"]
Verdict = Literal["counted", "extra", "twice", "uninvited"]
"""A report counts; comes after the round has enough; comes again; or is of one who was not chosen."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundTerms:
    """What a round needs, and how long it waits.

    Args:
        target: The reports that a round is made of.
        goal: The clients that are accepted: more than `target`, as some drop out.
        enough: The fewest reports with which a round counts.
        selection: Seconds after which selection ends.
        reporting: Seconds after which reporting ends.
        overlap: Whether clients of the next round are selected while this one waits for reports.
    """

    target: int
    goal: int
    enough: int
    selection: float = 60.0
    reporting: float = 600.0
    overlap: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.enough <= self.target <= self.goal:
            raise PlanError(
                f"a round of {self.target} reports out of {self.goal} clients, of which {self.enough} are enough: at "
                "least 1 must be enough, at most as many as the round has reports, and these at most its clients"
            )
        if not (0 < self.selection < math.inf and 0 < self.reporting < math.inf):
            raise PlanError("the time limits of selection and of reporting must be more than 0")

    @staticmethod
    def of(
        clients: int, target: int, over: float = 1.3, least: float = 0.8, selection: float = 60.0,
        reporting: float = 600.0, overlap: bool = True,
    ) -> RoundTerms:  # fmt: skip
        """The terms for a population: `over` times the target are accepted, and `least` of it is enough."""
        if not 1 <= target <= clients:
            raise PlanError(f"rounds of {target} clients: use 1 to {clients}, as many as there are")
        if over < 1 or not 0 < least <= 1:
            raise PlanError(f"over {over:g} must be 1 or more, and least {least:g} more than 0 and at most 1")
        goal = min(clients, rounded_up(over * target))
        enough = max(1, rounded_up(least * target))
        return RoundTerms(
            target=target, goal=goal, enough=enough, selection=selection, reporting=reporting, overlap=overlap
        )


def rounded_up(value: float) -> int:
    """The next whole number; what a product of decimals is too much does not count."""
    return math.ceil(value - 1e-9)


class Selection:
    """Who takes part in a round: those who check in first, until there are `goal` of them or time is over.

    Its time limit begins with `start`; clients may be accepted before, while another round is under way.
    """

    def __init__(self, terms: RoundTerms) -> None:
        self.terms = terms
        self.accepted: dict[int, None] = {}  # in the order in which they came
        self.deadline: float | None = None

    def start(self, now: float) -> None:
        """It is this round's turn."""
        self.deadline = now + self.terms.selection

    def check_in(self, client: int) -> bool:
        """Whether the client is accepted: it then waits for the model."""
        if len(self.accepted) >= self.terms.goal and client not in self.accepted:
            return False
        self.accepted[client] = None
        return True

    def lost(self, client: int) -> None:
        """A client went away; another may have its place."""
        self.accepted.pop(client, None)

    def state(self, now: float) -> SelectionState:
        """Whether to go on, configure those who are accepted, or give the round up."""
        if self.deadline is None:
            return "open"
        if len(self.accepted) >= self.terms.goal:
            return "ready"
        if now < self.deadline:
            return "open"
        return "ready" if len(self.accepted) >= self.terms.enough else "failed"


class Reporting:
    """Whose reports make up a round; it ends early when nobody is left to wait for."""

    def __init__(self, terms: RoundTerms, chosen: Iterable[int], began: float) -> None:
        self.terms = terms
        self.awaited = dict.fromkeys(chosen)
        self.counted: dict[int, None] = {}
        self.dropped = 0  # clients that went away without a report
        self.deadline = began + terms.reporting

    def report(self, client: int) -> Verdict:
        """What becomes of a report."""
        if client in self.counted:
            return "twice"
        if client not in self.awaited:
            return "uninvited"
        del self.awaited[client]
        if len(self.counted) >= self.terms.target:
            return "extra"
        self.counted[client] = None
        return "counted"

    def lost(self, client: int) -> None:
        """A client went away, or its report was refused: nobody waits for it."""
        if client in self.awaited:
            del self.awaited[client]
            self.dropped += 1

    def state(self, now: float) -> ReportingState:
        """Whether to go on, commit what was reported, or leave the model as it was."""
        reports, hoped = len(self.counted), len(self.counted) + len(self.awaited)
        if reports >= self.terms.target:
            return "committed"
        if now < self.deadline and self.awaited and hoped >= self.terms.enough:
            return "open"
        return "committed" if reports >= self.terms.enough else "abandoned"
