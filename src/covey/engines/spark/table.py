"""A DataFrame or an RDD as one partition for each worker, packed on the executors and kept there for the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import RDD, StorageLevel
from pyspark.errors import PySparkException

from covey.engines.spark import rows as tables
from covey.engines.spark.rows import PartitionCount, Pick
from covey.engines.spark.session import this_python
from covey.engines.spark.sites import MISSING, PartitionTable, slots
from covey.errors import PlanError


@contextmanager
def table(
    data: Any, workers: int | None, features: tuple[str, ...], label: str, check: Callable[[int], object]
) -> Iterator[PartitionTable]:
    """The rows, ready to be trained on; `check` hears how many workers there will be before anything is computed."""
    if isinstance(data, RDD):
        if features or label:
            raise PlanError("features and label name the columns of a DataFrame; an RDD holds tuples, such as (x, y)")
        parts, pick = data, Pick()
    else:
        parts, pick = _columns(data, features, label), Pick(features, label)
    context = parts.context if isinstance(parts, RDD) else parts.sparkSession.sparkContext
    here = (parts if isinstance(parts, RDD) else parts.rdd).getNumPartitions()
    workers = workers or here
    check(workers)
    _check_room(slots(context), workers)
    if here != workers:  # fewer: put some together, where they are; more: deal the rows out anew
        parts = parts.coalesce(workers) if here > workers else parts.repartition(workers)
    with this_python(context):
        packed = (parts if isinstance(parts, RDD) else parts.rdd).mapPartitions(partial(tables.chunks, pick=pick))
        packed.persist(StorageLevel.MEMORY_AND_DISK)
        packed.localCheckpoint()  # computed once; and a barrier stage cannot begin with a coalesce
        try:
            counted = _counted(packed)
            yield PartitionTable(packed, tables.known(counted), tables.ranks(counted))
        finally:
            packed.unpersist()


def _counted(packed: Any) -> list[PartitionCount]:
    try:
        return list(packed.mapPartitions(tables.count).collect())
    except Py4JJavaError as error:
        if "No module named 'covey" in str(error):
            raise PlanError(MISSING) from None
        raise


def _columns(data: Any, features: tuple[str, ...], label: str) -> Any:
    """The named columns of a DataFrame, if it has them."""
    try:
        known = list(data.columns)
        data.sparkSession.sparkContext  # noqa: B018  # Spark Connect has none
    except (AttributeError, PySparkException) as error:
        raise PlanError(
            f"covey.spark.fit trains on a DataFrame or an RDD, not on {type(data).__module__}.{type(data).__name__} "
            "(and Spark Connect gives a program no tasks to train in: use a classic session)"
        ) from error
    if not features:
        raise PlanError(f"name the columns: features=[…], label=…; the DataFrame has {', '.join(known)}")
    for name in (*features, *([label] if label else [])):
        if name not in known:
            raise PlanError(f"the DataFrame has no column {name!r}; it has {', '.join(known)}")
    return data.select(*features, *([label] if label else []))


def _check_room(room: int, workers: int) -> None:
    if room < workers:
        raise PlanError(
            f"all {workers} workers must run at once, and Spark has {room} task slots: use workers={room}, or start it "
            f"with more cores, such as master local[{workers}]"
        )
