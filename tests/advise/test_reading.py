"""What reading from a backend takes: formulas beside virtual time, and the sentence of the advice."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

import covey
from covey.advise import findings
from covey.advise.candidates import candidates
from covey.advise.known import Known
from covey.advise.predict import step
from covey.advise.scale import scale
from covey.advise.situation import look
from covey.advise.trials.trial import SimulatedTrials
from covey.data.storage.index import STRIPE
from covey.data.stripe_cache.expected_reads import FarData, later
from covey.simulate import Backend, Bytes, BytesPerSecond, Cluster, Link, Machine, Seconds
from tests.worlds import mlp

MB = 1e6
FAST = Link(bandwidth=BytesPerSecond(1e12), latency=Seconds(1e-6))


def world(**backend: Any) -> Cluster:
    given = {"sample": Bytes(STRIPE // 4), "rate": BytesPerSecond(200 * MB), **backend}
    return Cluster(compute=Seconds(0.010), link=FAST, backend=Backend(**given))


@pytest.mark.parametrize("cache", ["none", "host", "hosts"])
@pytest.mark.parametrize("more", [{}, {"per_request": 3.5 * MB, "requests": 17}, {"latency": Seconds(0.05)}])
@pytest.mark.parametrize("workers", [1, 4])
def test_the_first_pass_takes_what_the_formula_says(cache: str, more: Any, workers: int) -> None:
    large = {"sample": Bytes(2 * STRIPE)} if cache == "none" else {}  # much more than a reader has in memory
    task, far = mlp(samples=2048, batch_size=16), world(cache=cache, **large, **more)
    now = look(task, workers, far)
    assert now.far
    result = covey.fit(
        task, "allreduce", workers, engine="simulated", cluster=far, timing_only=True, epochs=1, runs=False
    )
    steps = 2048 / 16 / workers
    assert result.seconds / steps == pytest.approx(0.010 + now.far.seconds(), rel=0.3)


@pytest.mark.parametrize("cache", ["none", "host", "hosts"])
def test_steps_are_those_of_later_passes(cache: str) -> None:
    """With a cache only other hosts are read from."""
    task = mlp(samples=4096, batch_size=16)
    size = Bytes(2 * STRIPE if cache == "none" else STRIPE // 4)
    link = replace(FAST, bandwidth=BytesPerSecond(500 * MB))
    now = look(task, 2, replace(world(cache=cache, sample=size), link=link))
    candidate = next(one for one in candidates(task, now) if one.spec == "allreduce")
    formula, timed = step(candidate.strategy, now), SimulatedTrials(task, now, 0.01).timed(candidate)
    assert timed and timed.seconds == pytest.approx(formula.seconds, rel=0.15)
    assert timed.exchange < 0.1 * timed.seconds, "waiting for samples is no exchange"
    assert (now.reading == 0) == (cache == "host")
    assert Known(now=now, rows=[]).single().value < formula.seconds or cache == "host"


def test_preparers_read_for_workers() -> None:
    far = replace(world(cache="none", sample=Bytes(4 * STRIPE)), prepare=Seconds(0.02))
    now = look(mlp(samples=4096, batch_size=16, transform=lambda sample: sample, preparers=2), 4, far)
    assert now.far and now.far.readers == 2 and now.compute == 0.010
    assert now.prepared_every == pytest.approx(4 / 2 * (0.02 + now.reading))
    assert now.reading == pytest.approx(2 * 64 * STRIPE / (200 * MB), rel=0.05)


@pytest.mark.parametrize(
    ("backend", "workers", "words"),
    [
        ({"per_request": 3.5 * MB, "requests": 1, "rate": 59.5 * MB}, 1, "the first pass: .*16 requests at once"),
        ({"rate": 10 * MB, "cache": "none"}, 1, 'limits you: .* with cache = "host" only the first pass reads'),
        ({"rate": 10 * MB}, 4, "keepers, which read the set once for all hosts, would give 2.5x"),
        ({"rate": 10 * MB, "cache": "hosts"}, 4, "more requests would not help"),
        ({"rate": 1e5 * MB}, 1, ""),
    ],
)
def test_it_tells_where_reading_limits(backend: Any, workers: int, words: str) -> None:
    now = look(mlp(samples=2048, batch_size=16), workers, world(**backend))
    said = list(findings._reading(now, 0.0))
    assert len(said) == bool(words)
    for line in said:
        assert line.startswith("Data, not the network, limits ")
        assert re.search(words, line), line
    assert not list(findings._reading(now, 0.9999999)), "the network takes longer"


def test_sizes_are_timed_as_in_later_passes() -> None:
    task = mlp(samples=512, batch_size=8)
    rates = [
        scale(task, ["allreduce"], [1], world(cache=cache, rate=BytesPerSecond(10 * MB)), batch=8).points[0].speed_up
        for cache in ("host", "hosts")
    ]
    assert rates == pytest.approx([1.0, 1.0], rel=0.05)


def test_workers_of_one_machine_read_as_one_host() -> None:
    task, far = mlp(samples=256), replace(world(), machines=(Machine(cores=8.0),))
    assert look(task, 4, far).far.hosts == 1 and look(task, 4, world()).far.hosts == 4  # type: ignore[union-attr]
    assert later(Cluster()).backend is None
    known = FarData(
        backend=Backend(sample=Bytes(STRIPE)), samples=10, batch=1, readers=1, hosts=1, goodput=1e9, latency=0.0
    )
    assert known.seconds() == pytest.approx(STRIPE / 1e9)
    assert replace(known, readers=4)._store_stripes() == 10, "they share the cache of their host"


def test_hosts_with_caches_of_their_own_fetch_what_each_of_them_reads() -> None:
    """Ten stripes and four hosts: one sample a stripe, of which each host draws 2.5 of 10, or so many that all do."""
    far = FarData(
        backend=Backend(sample=Bytes(STRIPE)), samples=10, batch=1, readers=4, hosts=4, goodput=1e9, latency=0.0
    )
    assert far._store_stripes() == pytest.approx(4 * 10 * (1 - 0.9**2.5))
    many = replace(far, backend=Backend(sample=Bytes(STRIPE // 1024)), samples=10 * 1024)
    assert many._store_stripes() == pytest.approx(40)
