"""
CoveyError            everything covey raises on purpose
  PlanError           the request cannot run as written           (what would work is in the message)
    UnknownMetric     the target names no metric of the task      (which there are)
  CheckpointError     a checkpoint does not fit, or is torn       (why)
    AnotherLeads      another launcher has this run               (who, and how to wait for it)
  LeadLost            another launcher may have this run by now   (why; what is kept)
  SaveError           the run is over, its model is not saved     (where and why; the result is in it)
  WireError           something that arrived was refused          (what and from whom)
  ShardError          a shard of the data cannot be trained on    (which one, and why)
  SumAbandoned        a secure sum cannot be opened               (how many clients are missing)
  RoleFailed          a role's own code raised                    (the user's traceback, once)
  PeerLost            a role stopped answering                    (which one, last heard when)
  Stalled             every role waits                            (who waits for what from whom)
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class CoveyError(Exception):
    """Everything covey raises on purpose."""

    def _render_traceback_(self) -> list[str]:
        """(IPython calls it) What a notebook shows of the error: no frames of covey's own; `%debug` has them all."""
        # It stands above the errors, so it is found by its name, and only where somebody wants to see it.
        lines: list[str] = import_module("covey.faults").users_lines(self)
        return lines


class PlanError(CoveyError):
    """The request cannot run as written; the message says what would work.

    >>> covey.fit("examples/digits.py", "bsp", workers=2, steps=0)
    Traceback (most recent call last):
    covey.errors.PlanError: steps=0: at least 1 is needed
    """


class UnknownMetric(PlanError):
    """The target names a metric that no score has; the message names those there are."""


class CheckpointError(CoveyError):
    """A checkpoint does not fit this run, or is torn."""


class AnotherLeads(CheckpointError):
    """Another launcher has this run: a second one waits, or is refused."""


class LeadLost(CoveyError):
    """This launcher can no longer be sure that it alone has its run: it stops, and writes nothing more."""


class SaveError(CoveyError):
    """The run is over, and its model could not be saved; `result` has its weights, and all else that came of it."""

    def __init__(self, message: str, result: Any) -> None:
        super().__init__(message)
        self.result = result  # an observe.result.Result


class WireError(CoveyError):
    """Something that arrived on a link was refused."""


class ShardError(CoveyError):
    """A shard of the data is damaged, truncated, changed or hostile: nothing of it is trained on."""


class SumAbandoned(CoveyError):
    """Too few clients are left to open a secure sum, or what they sent does not fit together: nothing is revealed."""


class RoleFailed(CoveyError):
    """A role's own code raised; the message holds the user's traceback."""


class PeerLost(CoveyError):
    """A role stopped answering; `who` did, where that is known."""

    def __init__(self, message: str, who: str = "") -> None:
        super().__init__(message)
        self.who = who


class Stalled(CoveyError):
    """Every role waits; the message says who waits for what from whom."""
