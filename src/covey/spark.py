"""Training on the rows of a Spark DataFrame or RDD, where they are: `covey.spark.fit(df, task, "sparknet", …)`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from covey import catalog
from covey.errors import PlanError
from covey.observe.result import Result
from covey.run.clusters import at, module
from covey.run.options import check, options
from covey.run.request import request
from covey.task import Task


def fit(
    data: Any, task: Task | str, strategy: str = "sparknet", *, workers: int | None = None,
    features: Sequence[str] = (), label: str = "", **given: Any,
) -> Result:  # fmt: skip
    """Train a task on the rows of a DataFrame (its columns `features` and `label`), or on an RDD of tuples (x, y).

    Each worker's data are the rows of one partition, and stay on its executor; `workers` is the number of partitions,
    unless it is given, and then the data are brought into so many. What the task has as data is not used.
    """
    module("spark")  # says what to install
    from covey.engines.spark import SparkPlaces
    from covey.engines.spark.table import table

    if "engine" in given:
        raise PlanError("covey.spark.fit has no option 'engine': the Spark of the data is the engine")
    asked = options({**given, "engine": "spark"})
    check(asked, "spark")
    if "worker" in asked.place:
        raise PlanError(f"place={asked.place!r}: workers live where their rows are; other roles can be placed")
    with table(data, workers, tuple(features), label, partial(catalog.resolve, strategy)) as rows:
        wanted = request(task, strategy, len(rows.rows.counts), asked, rows.rows)
        return at(wanted, SparkPlaces(len(rows.rows.counts), table=rows))
