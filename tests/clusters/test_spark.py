"""Spark: the promises of every strategy, on a session that was there before and on one of covey's own; and its rows."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import covey
from covey.data.partitions import Partitions, RowInfo
from covey.engines.cluster import daemon_directory
from covey.engines.spark.rows import PartitionCount, Pick, known, ranks
from covey.errors import PlanError
from tests.clusters.harness import DIGITS, GONE_WITHIN, every_strategy, keeps_promises, names_the_dead
from tests.clusters.shared import SharedRoom, appears, ended, inside, its_own_goes_with_the_dead, names_the_dead_site
from tests.late_imports import needs
from tests.real.harness import SLOW, Room
from tests.warm import Warm

needs("pyspark")
pytestmark = pytest.mark.xdist_group("spark")

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@pytest.fixture(scope="module")
def session(warm: Warm) -> Iterator[tuple[Any, SharedRoom]]:
    """A session of two slots that the tests share."""
    from pyspark.sql import SparkSession

    room = SharedRoom(warm)
    try:
        with inside(room), pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYSPARK_PYTHON", sys.executable)
            patch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
            patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
            builder = SparkSession.builder.master("local[4]").config("spark.ui.enabled", "false")
            builder.config("spark.local.dir", str(room.temporary)).config("spark.log.level", "OFF")
            spark = builder.config("spark.driver.extraJavaOptions", QUICK).getOrCreate()
            yield spark, room
            assert spark.range(3).count() == 3, "a session that was there before stays"
            spark.stop()
            end_java()
    finally:
        room.close()


def end_java() -> None:
    """Java outlives a session, up to the end of this process."""
    from pyspark import SparkContext

    gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(30)


@pytest.fixture
def spark(session: tuple[Any, SharedRoom]) -> Any:
    return session[0]


@pytest.fixture
def shared(session: tuple[Any, SharedRoom]) -> Iterator[SharedRoom]:
    """The room of that session, in which nothing of a run may be left."""
    yield session[1]
    session[1].wait_empty(GONE_WITHIN)
    assert not session[0].sparkContext.statusTracker().getActiveJobsIds()


@every_strategy
def test_promises(shared: SharedRoom, name: str) -> None:
    keeps_promises("spark", name)


def test_a_dead_worker_is_named(shared: SharedRoom) -> None:
    names_the_dead(shared, "spark", "worker 1")


@pytest.mark.full
@pytest.mark.parametrize(("strategy", "victim"), [("bsp", "server 0"), ("easgd", "master 0"), ("gosgd", "scorer 0")])
def test_other_dead_roles_are_named(shared: SharedRoom, strategy: str, victim: str) -> None:
    names_the_dead(shared, "spark", victim, strategy)


@pytest.mark.full
def test_a_dead_python_worker_is_named(shared: SharedRoom) -> None:
    names_the_dead_site(shared, "spark", "bsp", "site [01]: worker [01].* died|worker [01] was lost with")


# -- rows --------------------------------------------------------------------------------------------------------------

SEEN = """
import os
from pathlib import Path
import torch, covey
from torch import nn

def step(model, batch):
    x, y = batch
    if model.training:  # else a lazy module only takes its shape
        with open(Path(__file__).parent / f"seen-{os.getpid()}", "a") as file:
            file.writelines(f"{int(number)}\\n" for number in x[:, 0])
    return nn.functional.cross_entropy(model(x), y)

task = covey.Task(model=lambda: nn.LazyLinear(3), step=step, batch_size=4, warm=False,
                  optimizer=lambda params: torch.optim.SGD(params, lr=0.001))
"""


def test_every_worker_sees_the_rows_of_its_own_partition(shared: SharedRoom, spark: Any, tmp_path: Path) -> None:
    """22 and 8 rows: each is seen once in an epoch, by the worker that has it, and both end after their own two.

    Worker 0 has the longest partition, which is Spark's second.
    """
    rows = [(float(number), 2.0, number % 3) for number in range(30)]
    uneven = spark.sparkContext.parallelize([rows[22:], rows[:22]], 2).flatMap(list)
    data = spark.createDataFrame(uneven, "number double, other double, kind int")
    file = shared.script(SEEN, "rows.py")
    named: dict[str, Any] = {"features": ["number", "other"], "label": "kind"}
    result = covey.spark.fit(data, f"{file}:task", "sparknet", **named, epochs=2, runs=tmp_path / "runs")
    assert result.record is not None and (result.record / "result.json").read_text() == result.to_json()
    assert result.engine == "spark" and result.workers == 2 and result.samples == 60
    assert result.settings["steps"] == [12, 4]
    assert result.weights["weight"].shape == (3, 2)
    seen = [sorted(map(int, path.read_text().split())) for path in shared.path.glob("seen-*")]
    assert sorted(seen) == sorted([sorted([*range(22)] * 2), sorted([*range(22, 30)] * 2)])


@pytest.mark.parametrize("strategy", ["allreduce", pytest.param("bsp", marks=pytest.mark.full)])
def test_rows_train_as_the_same_tensors_would(shared: SharedRoom, spark: Any, strategy: str) -> None:
    """With as many rows on each worker, a pass over both is plain arithmetic: compare with one process doing it."""
    chance = torch.Generator().manual_seed(3)
    x, y = torch.randn(24, 5, generator=chance), torch.randint(0, 3, (24,), generator=chance)
    pairs = [(a.tolist(), int(b)) for a, b in zip(x, y, strict=True)]
    task = covey.Task(
        model=lambda: nn.Linear(5, 3), optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        loss=nn.functional.cross_entropy, batch_size=4,
    )  # fmt: skip
    rdd = spark.sparkContext.parallelize([pairs[:12], pairs[12:]], 2).flatMap(list)
    found = covey.spark.fit(rdd, task, strategy, epochs=2, threads=1).weights

    deal = Partitions.of((12, 12), 4, seed=0)
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        optimizer.zero_grad()
        for rank in range(2):
            numbers = deal.indices(rank, step) + 12 * rank
            (nn.functional.cross_entropy(model(x[numbers]), y[numbers]) / 2).backward()
        optimizer.step()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(found[name], value)


@pytest.mark.parametrize("strategy", ["firecaffe", pytest.param("allreduce", marks=pytest.mark.full)])
def test_the_model_has_the_updates_of_the_longest_partition(shared: SharedRoom, spark: Any, strategy: str) -> None:
    """2 rows, then 12: only the worker of the 12 sees the end of an epoch, and its last updates count."""
    x = torch.arange(14, dtype=torch.float32).view(-1, 1)
    pairs = [([float(a)], 0) for a in x]
    task = covey.Task(
        model=lambda: nn.Linear(1, 1, bias=False), optimizer=lambda params: torch.optim.SGD(params, lr=0.001),
        step=lambda model, batch: model(batch[0]).mean(), batch_size=2,
    )  # fmt: skip
    rdd = spark.sparkContext.parallelize([pairs[:2], pairs[2:]], 2).flatMap(list)
    result = covey.spark.fit(rdd, task, strategy, epochs=1, threads=1)
    assert result.settings["steps"] == [6, 1] and result.updates == 6
    torch.manual_seed(0)
    begin = nn.Linear(1, 1, bias=False).weight.item()
    # the gradient is the mean of a step's rows: the first step is of 4, the others of 2
    deal = Partitions.of((12, 2), 2, seed=0)
    steps = [torch.cat([x[2:][deal.indices(0, 0)], x[:2][deal.indices(1, 0)]])]
    steps += [x[2:][deal.indices(0, step)] for step in range(1, 6)]
    expected = begin - 0.001 * sum(float(batch.mean()) for batch in steps)
    assert result.weights["weight"].item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.full
def test_partitions_are_put_together_or_dealt_anew(shared: SharedRoom, spark: Any) -> None:
    task = covey.Task(
        model=lambda: nn.Linear(1, 2), optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        loss=nn.functional.cross_entropy, batch_size=2,
    )  # fmt: skip
    for partitions in (5, 1):
        data = spark.range(20).selectExpr("id as x", "id % 2 as y").repartition(partitions)
        result = covey.spark.fit(data, task, "gosgd", workers=2, features=["x"], label="y", epochs=1)
        assert result.workers == 2 and result.samples == 20


def test_rows_that_cannot_be_trained_on(shared: SharedRoom, spark: Any) -> None:
    task = covey.Task(model=lambda: nn.Linear(1, 2), optimizer=torch.optim.SGD, loss=nn.functional.cross_entropy)
    data = spark.createDataFrame([(1.0, 0, "a"), (2.0, 1, "b")], ["x", "y", "name"]).coalesce(1)

    def refused(words: str, data: Any = data, **given: Any) -> None:
        with pytest.raises(PlanError, match=words):
            covey.spark.fit(data, task, **{"strategy": "bsp", "features": ["x"], "label": "y", "epochs": 1, **given})

    refused("no column 'z'; it has x, y, name", features=["z"])
    refused("name the columns", features=[])
    refused("which is not a number", features=["name"])
    refused("9 workers must run at once, and Spark has 4 task slots", workers=9)
    refused("partition [01] is empty, so a worker would have no rows", data.filter("x < 2").repartition(2))
    refused("workers live where their rows are", place="workers:node0")
    refused("says itself which samples", strategy="sandblaster")
    refused("no option 'engine'", engine="local")
    refused("not on builtins.list", [1, 2])
    with pytest.raises(PlanError, match="the task has no data"):
        covey.fit(task, "bsp", 2, epochs=1)


def test_partitions_permute_their_own_rows() -> None:
    deal = Partitions.of((5, 3), batch_size=2, seed=1)
    assert [deal.steps(rank) for rank in range(2)] == [3, 2] and deal.samples == 8
    assert sorted(torch.cat([deal.indices(0, step) for step in range(3)]).tolist()) == [*range(5)]
    assert deal.batch(0, 2) == 1 and deal.batch(1, 1) == 1
    like = RowInfo((5, 3), (((4,), "float32"), ((), "int64"))).stand_in()
    assert [(column.shape, column.dtype) for column in like] == [((5, 4), torch.float32), ((5,), torch.int64)]


def test_worker_0_has_the_longest_partition() -> None:
    for rows, found in (((3, 2), [0, 1]), ((2, 3), [1, 0]), ((1, 2, 9, 9), [2, 1, 0, 3]), ((4, 4), [0, 1])):
        counted = [PartitionCount(number) for number in rows]
        assert ranks(counted) == found
        assert known(counted).counts[0] == max(rows) and sorted(known(counted).counts) == sorted(rows)


def test_what_cells_become() -> None:
    from pyspark.ml.linalg import DenseVector, SparseVector

    def kinds(pick: Pick, row: Any) -> list[tuple[str, tuple[int, ...]]]:
        return [(str(part.dtype), part.shape) for part in pick(row)]

    row = {"real": 1.5, "whole": 3, "list": [1, 2], "ml": DenseVector([1.0, 2.0]), "few": SparseVector(4, {1: 2.0}),
           "bytes": bytearray(b"abc"), "label": 7}  # fmt: skip
    found = {name: kinds(Pick((name,)), row)[0] for name in row}
    assert found == {
        "real": ("float32", (1,)), "whole": ("float32", (1,)), "list": ("int64", (2,)), "ml": ("float32", (2,)),
        "few": ("float32", (4,)), "bytes": ("uint8", (3,)), "label": ("float32", (1,)),
    }  # fmt: skip
    assert kinds(Pick(("real", "ml", "list"), "label"), row) == [("float32", (5,)), ("int64", ())]
    assert kinds(Pick(), ([[1.0, 2.0]], 3)) == [("float32", (1, 2)), ("int64", ())]


# -- a Spark of covey's own --------------------------------------------------------------------------------------------


@pytest.mark.full
def test_its_own_java_goes_with_the_run(room: Room) -> None:
    digits = Path(DIGITS).resolve()
    process = room.start("-m", "covey", "run", digits, "--engine", "spark", "--workers", "2", "--steps", "9")
    code, _, err = ended(process)
    assert code == 0, err
    room.wait_empty()


@pytest.mark.full
@pytest.mark.parametrize("victim", ["worker 1", "server 0"])
def test_its_own_java_goes_with_the_dead(room: Room, victim: str) -> None:
    its_own_goes_with_the_dead(room, "spark", victim)


@pytest.mark.full
@pytest.mark.parametrize("moment", ["starting", "training"])
def test_a_dead_launcher_takes_all_along(room: Room, moment: str) -> None:
    task = room.task(before_step=f"(HERE / 'training').touch(); {SLOW}")
    process = room.start("-m", "covey", "run", task, "--engine", "spark", "--workers", "2", "--steps", "5000")
    appears(room, "tmp/covey-spark-*/*" if moment == "starting" else "training")
    os.kill(process.pid, signal.SIGKILL)
    killed = time.monotonic()
    ended(process)
    while roles := [title for title in room.processes().values() if title.startswith("covey:")]:
        assert time.monotonic() - killed < GONE_WITHIN, roles
        time.sleep(0.05)
    daemon_directory.sweep("spark")  # as the next start does
    room.wait_empty()


def test_without_java_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from covey.engines.spark.session import check_java

    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(PlanError, match="needs Java 17 or newer, and JAVA_HOME=.* has no bin/java: apt-get install"):
        check_java()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2")
    (tmp_path / "bin" / "java").chmod(0o755)
    with pytest.raises(PlanError, match="is Java 11"):
        check_java()


def test_settings_that_cannot_work() -> None:
    with pytest.raises(PlanError, match="'spark' has no setting 'cores'. It has: master"):
        covey.fit(DIGITS, "bsp", 2, engine="spark(cores=3)", steps=1)
    with pytest.raises(PlanError, match="hosts=… is not for spark"):
        covey.fit(DIGITS, "bsp", 2, engine="spark", hosts="hosts.txt", steps=1)
