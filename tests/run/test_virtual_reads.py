"""Reading far data in virtual time: what the arithmetic of stripes, requests and rates says."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import covey
from covey.advise.trials.layouts import LayoutTerms
from covey.data.shards import Shards
from covey.data.storage.index import STRIPE
from covey.data.stripe_cache.virtual_reads import VirtualReads
from covey.errors import PlanError
from covey.simulate import Backend, Bytes, BytesPerSecond, Cluster, Machine, Seconds, cluster_file, written
from tests.worlds import INSTANT, cloud, mlp

MB = 1e6
STEP = 0.010  # of computing a batch


def world(cluster: Cluster = INSTANT, **backend: Any) -> Cluster:
    """Samples of one stripe each."""
    return replace(cluster, backend=Backend(**{"sample": Bytes(STRIPE), **backend}))


def trained(cluster: Cluster, workers: int = 1, spec: str = "allreduce", **more: Any) -> covey.Result:
    """Batches of 8, 8 steps of one worker in an epoch."""
    task = more.pop("task", None) or mlp(samples=64, batch_size=8)
    given: dict[str, Any] = {"engine": "simulated", "cluster": cluster, "runs": False, "timing_only": True}
    return covey.fit(task, spec, workers, **{"epochs": 1, **given, **more})


def read(result: covey.Result) -> tuple[float, float]:
    """Of the backend and of other hosts, in samples."""
    return result.notes["backend bytes"] / STRIPE, result.notes["peer bytes"] / STRIPE


@pytest.mark.parametrize(
    ("backend", "rate"),
    [
        ({"per_request": 3.5 * MB, "requests": 1}, 3.5),
        ({"per_request": 3.5 * MB, "requests": 17}, 17 * 3.5),
        ({"per_request": 3.5 * MB}, 32 * 3.5),  # 8 stripes of 4 ranges
        ({"per_request": 3.5 * MB, "rate": 20 * MB}, 20),
        ({"rate": 20 * MB, "latency": 0.1}, 20),
    ],
)
@pytest.mark.parametrize("timing_only", [True, False])
def test_virtual_time_is_the_arithmetic_of_requests(backend: Any, rate: float, timing_only: bool) -> None:
    """The second epoch reads nothing, and takes no longer than computing."""
    one, two = (trained(world(**backend), epochs=epochs, timing_only=timing_only) for epochs in (1, 2))
    batch = backend.get("latency", 0.0) + 8 * STRIPE / (rate * MB)
    assert one.seconds == pytest.approx(8 * (batch + STEP))
    assert two.seconds == pytest.approx(one.seconds + 8 * STEP)
    assert read(one) == read(two) == (64, 0)


def test_small_samples_bring_their_whole_stripe_once() -> None:
    slow = world(sample=Bytes(STRIPE // 16), rate=STRIPE)
    result = trained(slow)
    assert read(result) == (4, 0) and result.seconds == pytest.approx(4 + 8 * STEP)
    assert 32 * STRIPE // 16 < result.notes["cached bytes"] <= 60 * STRIPE // 16, "the first of each stripe is fetched"


def test_the_rate_in_all_is_shared_and_four_hosts_read_the_set_once() -> None:
    shared = world(rate=BytesPerSecond(64 * STRIPE), cache="hosts")
    result = trained(shared, 4)
    assert read(result) == (64, 0) and result.seconds == pytest.approx(1 + 2 * STEP)  # 2 steps of each
    later = trained(shared, 4, epochs=3)
    backend, peers = read(later)
    assert backend == 64 and 64 < peers < 128, "of the second and third epoch three of four are on other hosts"
    assert trained(replace(shared, backend=replace(shared.backend, filled=True)), 4).notes["backend bytes"] == 0  # type: ignore[type-var]


def test_stripes_of_other_hosts_cross_the_network() -> None:
    """One batch of each of two hosts, of which each has some of the samples."""
    link = replace(INSTANT.link, bandwidth=BytesPerSecond(STRIPE), latency=Seconds(0.25))
    task = mlp(samples=16, batch_size=8)
    given = world(replace(INSTANT, link=link), cache="hosts", filled=True)
    result = trained(given, 2, "local_sgd(period=100)", task=task, steps=1, epochs=None)
    peers = [count for count in (read(result)[1],) if count]
    assert peers and 0.5 + peers[0] / 2 + STEP <= result.seconds <= 0.5 + peers[0] + STEP


def test_what_comes_from_the_store_passes_the_link_of_its_host() -> None:
    link = replace(INSTANT.link, bandwidth=BytesPerSecond(8 * STRIPE))
    assert trained(world(replace(INSTANT, link=link))).seconds == pytest.approx(8 * (1 + STEP))


def test_hosts_without_keepers_read_what_each_has_not_read() -> None:
    deal, seen = Shards(64, 2, 8, 0), 0
    for rank in range(2):
        seen += len({int(number) for epoch in range(3) for number in deal.shard(epoch, rank)})
    assert 64 < seen < 128
    assert read(trained(world(rate=100 * MB), 2, epochs=3)) == (seen, 0)


def test_workers_of_one_machine_share_a_cache_and_reading_takes_no_core() -> None:
    machine = replace(INSTANT, machines=(Machine(cores=1.0),))
    result = trained(world(machine, per_request=STRIPE, requests=1), 2, steps=1, epochs=None)
    assert read(result) == (16, 0)
    assert result.seconds == pytest.approx(8 + 2 * STEP, rel=1e-3)


def test_without_a_cache_only_memory_keeps_anything() -> None:
    """Samples of 300 stripes: a reader has 256 in memory."""
    large = world(sample=Bytes(300 * STRIPE), rate=300 * STRIPE, cache="none")
    result = trained(large, task=mlp(samples=4, batch_size=1), epochs=3)
    again = sum(one == other for one, other in _neighbours(4, 3))
    assert read(result) == (300 * 12 - 256 * again, 0)


def _neighbours(samples: int, epochs: int) -> list[tuple[int, int]]:
    deal = Shards(samples, 1, 1, 0)
    order = [int(number) for epoch in range(epochs) for number in deal.shard(epoch, 0)]
    return list(pairwise(order))


def test_two_that_want_a_stripe_at_once_wait_for_one_fetch() -> None:
    machine = replace(INSTANT, machines=(Machine(cores=4.0),))
    task = mlp(samples=2, batch_size=1)
    result = trained(world(machine, sample=Bytes(STRIPE // 2), latency=Seconds(1.0)), 2, task=task)
    assert read(result) == (1, 0) and result.seconds == pytest.approx(1 + STEP)


def test_a_stripe_that_is_on_its_way_is_there_when_it_has_come() -> None:
    reads = VirtualReads(Backend(sample=Bytes(STRIPE), latency=Seconds(1.0)), 4)
    reads.settle({"host": INSTANT.link})
    assert [reads.read(now, f"worker {now}", "host", [0]) for now in (0.0, 0.5, 2.0)] == [1.0, 1.0, 2.0]


def transform(sample: Any) -> Any:
    return sample


def test_preparers_read_for_workers() -> None:
    """A preparer reads and transforms a batch in 20 and 15 ms, while the worker computes for 10 ms."""
    far = world(replace(INSTANT, prepare=Seconds(0.015)), rate=BytesPerSecond(400 * STRIPE))
    task = mlp(samples=64, batch_size=8, transform=transform)
    alone, helped = (trained(far, task=task, preparers=count) for count in (0, 1))
    assert alone.seconds == pytest.approx(8 * 0.045)
    assert helped.seconds == pytest.approx(8 * 0.035 + STEP)
    assert read(alone) == read(helped) == (64, 0)


@pytest.mark.parametrize(
    "spec",
    [
        "bsp", "asynchronous", "a_bsp", "allreduce(bucket=100)", "tictac", "bytescheduler", "easgd(period=2)",
        "hogwild", "dpsgd over ring", "local_sgd(period=2)", "gosgd(probability=0.5)",
    ],
)  # fmt: skip
def test_every_sample_is_read_whatever_the_strategy(spec: str) -> None:
    one = trained(world(rate=100 * MB), 1, "allreduce").seconds
    result = trained(world(rate=100 * MB, cache="hosts"), 2, spec)
    assert read(result)[0] == 64 and result.seconds > one / 2


def test_workers_that_come_and_go_read_what_is_leased_to_them() -> None:
    """One worker is lost, and the other one computes on its batches, too."""
    far, gone = world(rate=100 * MB, cache="hosts"), "kill worker 1@200ms for 100s"
    result = trained(far, "1:2", "bsp", faults=gone, timing_only=False)  # type: ignore[arg-type]
    assert result.samples == 64 and read(result)[0] == 48, "6 of 8 batches: a lost worker does not tell what it read"


def test_a_run_that_starts_again_finds_its_cache(tmp_path: Path) -> None:
    """A worker is lost in the second epoch, when all has been read: that took 0.7 s."""
    dies = world(replace(INSTANT, kills={"worker 1": Seconds(0.74)}), rate=100 * MB, cache="hosts")
    result = trained(dies, 2, checkpoint=tmp_path, every="50ms", on_failure="restart", timing_only=False, epochs=3)
    assert read(result)[0] == 64
    assert 1.5 < result.seconds < 2, "it has started again, and has read nothing again"


def test_the_size_of_a_sample_is_that_of_the_shards(tmp_path: Path) -> None:
    index = covey.data.pack(cloud(64), tmp_path / "set", format="safetensors", columns=("x", "y"))
    size = sum(entry.size for entry in index.shards)
    data = covey.data.remote(tmp_path / "set", columns=("x", "y"))
    far = replace(INSTANT, backend=Backend(rate=BytesPerSecond(size)))
    result = trained(far, task=mlp(samples=64, batch_size=8, data=data))
    assert result.notes["backend bytes"] == pytest.approx(size, abs=64)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('rate = "fast"', "cannot read the rate 'fast'"),
        ('rate = "0MB/s"', "cannot read the rate"),
        ("rate = 100", "has no unit"),
        ('per_request = "-1MB/s"', "cannot read the rate"),
        ('latency = "long"', "cannot read the duration"),
        ("requests = 0", "a whole number from 1 up"),
        ("requests = 65", "1 to 64"),
        ('sample = "0B"', "at least one byte"),
        ('cache = "disk"', '"host", "hosts" or "none"'),
        ("filled = 1", "true or false"),
        ('cache = "none"\nfilled = true', "nothing is kept"),
        ('bandwidth = "1gbit"', "no key 'bandwidth'"),
    ],
)
def test_what_a_backend_cannot_be_is_refused(text: str, match: str) -> None:
    with pytest.raises(PlanError, match=match):
        cluster_file.read(f"[backend]\n{text}")


def test_where_nobody_knows_what_is_read_it_says_so() -> None:
    for given, spec, match in (
        ({"backend": Backend(rate=BytesPerSecond(MB))}, "allreduce", "needs the size of a sample"),
        ({"backend": Backend(sample=Bytes(9))}, "allreduce with mesh(stage=2)", "a model that is cut"),
    ):
        with pytest.raises(PlanError, match=match):
            trained(replace(INSTANT, **given), 2, spec, timing_only=False)  # type: ignore[arg-type]

    with pytest.raises(PlanError, match="a model that is divided"):
        LayoutTerms(machines=2, cluster=world()).check()

    class Numbers(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(zip(*cloud(64), strict=True))

    with pytest.raises(PlanError, match="a stream"):
        trained(world(), task=mlp(data=Numbers()), steps=2, epochs=None)


def test_a_backend_is_written_as_it_is_read() -> None:
    known = Backend(
        rate=BytesPerSecond(1e8), per_request=BytesPerSecond(3.5e6), latency=Seconds(0.03), requests=17,
        sample=Bytes(110_000), cache="hosts", filled=True,
    )  # fmt: skip
    for one in (known, Backend()):
        assert cluster_file.read(written(Cluster(backend=one))).backend == one
        assert json.loads(json.dumps(asdict(one), allow_nan=False)) == asdict(one), "a comparison keeps it as JSON"
    assert cluster_file.read(written(Cluster())).backend is None
