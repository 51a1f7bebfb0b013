"""When is the training good enough?  `accuracy>=0.9`, `loss<=0.1`, or `accuracy:0.9` for shells.

A colon stands for the direction in which the metric gets better: that of its name (accuracy, loss, error) or that which
the task declares. A metric with neither needs an operator.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from covey.errors import PlanError

Op = Literal[">=", "<="]
Better = Literal["higher", "lower"]

OPS: Mapping[Better, Op] = {"higher": ">=", "lower": "<="}
KNOWN: Mapping[str, Better] = {"accuracy": "higher", "loss": "lower", "error": "lower"}
"""By how a word of the metric's name ends: `top5_accuracy`, `val/loss`, `logloss`."""

_TARGET = re.compile(r"\s*(?P<metric>[A-Za-z_][\w./-]*)\s*(?:(?P<op>>=|<=|:)\s*(?P<value>\S+)\s*)?")


@dataclass(frozen=True, slots=True)
class Target:
    """A metric, and the value it has to reach."""

    metric: str
    value: float
    op: Op | None = ">="  # None: a colon, of a metric whose name does not tell

    def reached(self, value: float) -> bool:
        """Is this value of the metric good enough?  (nan never is)"""
        assert self.op is not None, f"nobody has said in which direction {self.metric} gets better"
        return value >= self.value if self.op == ">=" else value <= self.value

    def __str__(self) -> str:
        return f"{self.metric}{self.op or ':'}{self.value!r}"


def parse_target(text: str, better: Mapping[str, Better] | None = None) -> Target:
    """Read a target as a person types it.

    `better` is what the task declares; with it, a target whose direction nobody has said is refused.
    """
    match = _TARGET.fullmatch(text)
    if match is None:
        raise PlanError(f"cannot read the target {text!r}; write accuracy>=0.9, loss<=0.1 or accuracy:0.9")
    metric, op, value = match["metric"], match["op"], match["value"]
    if op is None:
        raise PlanError(_redirected(metric))
    target = Target(metric, _number(value, text), _op(metric, op, better or {}))
    if target.op is None and better is not None:
        raise PlanError(_undirected(metric, value))
    return target


def direction(metric: str, better: Mapping[str, Better]) -> Better | None:
    """In which direction a metric gets better, as it is declared or as its name tells; None where neither does."""
    if metric in better:
        return better[metric]
    words = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", metric).lower())
    told = {way for end, way in KNOWN.items() if any(word.endswith(end) for word in words)}
    return told.pop() if len(told) == 1 else None


def _op(metric: str, op: str, better: Mapping[str, Better]) -> Op | None:
    if op == ":":
        way = direction(metric, better)
        return OPS[way] if way else None
    return ">=" if op == ">=" else "<="


def _number(value: str, text: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise PlanError(f"the target {text!r} needs a number, not {value!r}; write for example accuracy>=0.9")
    return number


def _redirected(metric: str) -> str:
    return (
        f"the target {metric!r} has no value. An unquoted >=0.9 is a redirection to the shell: quote it, "
        f"'{metric}>=0.9', or write {metric}:0.9 (and remove the file '=0.9' if the shell created one here)"
    )


def _undirected(metric: str, value: str) -> str:
    return (
        f"the target {metric}:{value}: is more of {metric!r} better, or less? Write '{metric}<={value}' or "
        f"'{metric}>={value}', or declare it in the task: Task(…, better={{{metric!r}: 'lower'}})"
    )
