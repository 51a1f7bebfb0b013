"""Does a strategy do on an engine what it does in virtual time?"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from covey.check import trial_task
from covey.check.trial_task import EVEN, UNEVEN
from covey.observe.result import Result
from covey.run import fit

WORKERS, STEPS = 2, 12
TASK = f"{Path(trial_task.__file__)}:TRIAL"
APART = 1e-9  # how far the weights may be apart: engines may add up in another order


def alike_on(engine: str, spec: str) -> str:
    """It trains there; where the speeds of workers do not change the weights, to the weights of virtual time."""
    found = fit(TASK, spec, WORKERS, engine=engine, steps=STEPS, threads=1, runs=False)
    virtual = partial(fit, TASK, spec, WORKERS, engine="simulated", steps=STEPS, runs=False)
    even, uneven = virtual(cluster=EVEN), virtual(cluster=UNEVEN)
    if found.samples != even.samples:
        return f"{found.samples} samples were trained on, and {even.samples} in virtual time"
    if not all(value.isfinite().all() for value in found.weights.values()):
        return "the weights are not finite"
    if _apart(even, uneven) == 0 and (far := _apart(even, found)) > APART:
        return (
            f"the weights are {far:.2g} away from those of virtual time, which no worker's speed changes: do roles "
            "share a variable? Each has a process of its own here"
        )
    return ""


def _apart(one: Result, other: Result) -> float:
    return max(float((one.weights[name] - other.weights[name]).abs().max()) for name in one.weights)
