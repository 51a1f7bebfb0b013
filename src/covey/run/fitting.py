"""Train a task: check what was asked, and hand it to the engine of that name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from covey.errors import PlanError
from covey.observe.result import Result
from covey.run.clusters import CLUSTERS, check_terms, cluster, host_only, refusing
from covey.run.processes import local
from covey.run.request import Request, options, request
from covey.run.simulated import simulated
from covey.spec import parse_call, unknown
from covey.task import Task

HERE: Mapping[str, Callable[[Request], Result]] = {"local": local, "simulated": simulated}
ENGINES = (*HERE, *CLUSTERS)


def fit(task: Task | str, strategy: str = "bsp", workers: int = 2, **given: Any) -> Result:
    """Train a task (or "file.py:name") with a strategy on so many workers; `Options` lists what else may be asked.

    Where an engine starts this very program on every host, all but one of the processes only host roles: they do so
    in here, and end with `SystemExit` when the run is over.
    """
    chosen = options(given)
    engine = parse_call(chosen.engine)
    if engine.name not in ENGINES:
        raise unknown(chosen.engine, 0, "engine", engine.name, ENGINES)
    check_terms(chosen, engine.name)
    if engine.name in HERE and engine.settings:
        raise PlanError(f"the engine {engine.name} has no settings: write --engine {engine.name}")
    if engine.name in CLUSTERS and host_only(engine.name, task, chosen.rate):
        raise SystemExit(0)
    with refusing(engine.name):
        asked = request(task, strategy, workers, chosen)
    return HERE[engine.name](asked) if engine.name in HERE else cluster(asked, engine.name, engine.settings)
