"""Runs of divided models, and how far their weights are from those of whole ones."""

from __future__ import annotations

from typing import Any

import covey
from covey.observe.result import Result


def run(given: covey.Task, spec: str, workers: int, **more: Any) -> Result:
    usual: dict[str, Any] = {"engine": "simulated", "steps": 6, "runs": False}
    return covey.fit(given, spec, workers, **{**usual, **more})


def apart(one: Result, other: Result) -> float:
    """The largest difference of a number, over the largest number of its tensor."""
    floats = [name for name, tensor in other.weights.items() if tensor.is_floating_point()]
    return max(float((one.weights[n] - other.weights[n]).abs().max() / other.weights[n].abs().max()) for n in floats)
