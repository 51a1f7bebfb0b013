"""Train a task: check what was asked, and hand it to the engine of that name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from covey.errors import PlanError
from covey.observe.result import Result
from covey.run.local import local
from covey.run.request import Request, options, request
from covey.run.simulated import simulated
from covey.spec import parse_call, unknown
from covey.task import Task

ENGINES: Mapping[str, Callable[[Request], Result]] = {"local": local, "simulated": simulated}


def fit(task: Task | str, strategy: str = "bsp", workers: int = 2, **given: Any) -> Result:
    """Train a task (or "file.py:name") with a strategy on so many workers; `Options` lists what else may be asked."""
    asked = request(task, strategy, workers, options(given))
    engine = parse_call(asked.options.engine)
    if engine.name not in ENGINES:
        raise unknown(asked.options.engine, 0, "engine", engine.name, ENGINES)
    if engine.settings:
        raise PlanError(f"the engine {engine.name} has no settings: write --engine {engine.name}")
    return ENGINES[engine.name](asked)
