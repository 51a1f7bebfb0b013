"""Training on the rows of a Spark DataFrame or RDD, where they are: `covey.spark.fit(df, task, "sparknet", …)`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from covey import catalog
from covey.engines.entries.spark import SparkEngine
from covey.errors import PlanError
from covey.observe.result import Result
from covey.run.clusters import at
from covey.run.fitting import heard
from covey.run.options import check, options
from covey.run.request import request
from covey.task import Task

__all__ = ["fit"]


def fit(
    data: Any, task: Task | str, strategy: str = "sparknet", *, workers: int | None = None,
    features: Sequence[str] = (), label: str = "", **given: Any,
) -> Result:  # fmt: skip
    """Train a task on the rows of a Spark DataFrame or RDD, where they are.

    Each worker trains on the rows of one partition, which stay on its executor. The data of the task is not used.

    Args:
        data: A DataFrame, or an RDD of tuples (x, y).
        task: A `covey.Task`, or the file of one.
        strategy: A strategy, as for `covey.fit`.
        workers: The number of workers; the data is repartitioned into this number. Without it, one per partition.
        features: The columns of a DataFrame that make x.
        label: The column of a DataFrame that is y.
        given: Further options of `covey.fit`.

    >>> from pyspark.sql import SparkSession
    >>> session = SparkSession.builder.master("local[2]").getOrCreate()
    >>> rows = session.createDataFrame([(float(i % 7), float(i % 5), i % 2) for i in range(200)], ["a", "b", "y"])
    >>> task = covey.Task(
    ...     model=lambda: torch.nn.Linear(2, 2),
    ...     optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
    ...     loss=torch.nn.functional.cross_entropy,
    ... )
    >>> result = covey.spark.fit(rows, task, "sparknet", workers=2, features=["a", "b"], label="y", epochs=1)
    >>> result.samples
    200
    """
    SparkEngine.require("spark")
    from covey.engines.spark import SparkPlaces
    from covey.engines.spark.table import table

    if "engine" in given:
        raise PlanError("covey.spark.fit has no option 'engine': the Spark of the data is the engine")
    asked = options({**given, "engine": "spark"})
    check(asked, "spark", SparkEngine)
    if "worker" in asked.network.place:
        raise PlanError(f"place={asked.network.place!r}: workers live where their rows are; other roles can be placed")
    with table(data, workers, tuple(features), label, partial(catalog.resolve, strategy)) as rows:
        wanted = request(task, strategy, len(rows.rows.counts), asked, rows.rows)
        places = SparkPlaces(len(rows.rows.counts), table=rows)
        return heard(wanted, "spark", lambda heeded: at(heeded, places))
