"""When is the training good enough?  `accuracy>=0.9`, `loss<=0.1`, or `accuracy:0.9` for shells."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from covey.errors import PlanError

Op = Literal[">=", "<="]

_TARGET = re.compile(r"\s*(?P<metric>[A-Za-z_][\w./-]*)\s*(?:(?P<op>>=|<=|:)\s*(?P<value>\S+)\s*)?")


@dataclass(frozen=True, slots=True)
class Target:
    """A metric, and the value it has to reach."""

    metric: str
    value: float
    op: Op = ">="

    def reached(self, value: float) -> bool:
        """Is this value of the metric good enough?  (nan never is)"""
        return value >= self.value if self.op == ">=" else value <= self.value

    def __str__(self) -> str:
        return f"{self.metric}{self.op}{self.value!r}"


def parse_target(text: str) -> Target:
    """Read a target as a person types it."""
    match = _TARGET.fullmatch(text)
    if match is None:
        raise PlanError(f"cannot read the target {text!r}; write accuracy>=0.9, loss<=0.1 or accuracy:0.9")
    metric, op, value = match["metric"], match["op"], match["value"]
    if op is None:
        raise PlanError(_redirected(metric))
    return Target(metric, _number(value, text), _op(metric, op))


def _op(metric: str, op: str) -> Op:
    if op == ":":
        # `loss:0.1` can only mean "at most": the colon stands for whichever direction is better.
        return "<=" if "loss" in metric.lower() or "error" in metric.lower() else ">="
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
