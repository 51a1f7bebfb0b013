"""Langer's value bound: reads wait for how far the weights have moved since the oldest copy in use, not for clocks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from covey import catalog
from covey.central.server.shard import Params, Push
from covey.central.server.versions import Versions
from covey.errors import PlanError
from covey.message import Address, Message
from covey.observe.instruments import Instrument
from tests.central.test_downpour import ramp
from tests.worlds import INSTANT, paced, quadratic, run, slowed, vector, worker

CHANGE = 0.5 / 3  # what a push of one of three workers moves every number of the ramp by


def reads(spec: str, lr: float = 0.5) -> list[float]:
    """When worker 1 is answered, of workers of 10, 15 and 14 ms."""
    log = run(ramp(lr), spec, 3, steps=3, cluster=slowed(INSTANT, w1=1.5, w2=1.4)).log
    return [round(sent.at, 6) for sent in log.kinds(Params) if sent.to == worker(1)]


def test_it_waits_for_what_moved_although_all_clocks_are_equal() -> None:
    """At 15 ms everybody has pushed once; the weights moved twice since worker 0 read them, which pushes at 20."""
    assert reads(f"value_bound(bound={1.5 * CHANGE})")[:2] == [0, 0.020]
    assert reads("ssp(bound=0)")[:2] == [0, 0.015], "clocks alone hold nobody there"


def test_a_bound_that_is_never_met_is_asynchronous() -> None:
    free, wide = (run(quadratic(), spec, 3, steps=6) for spec in ("asynchronous", "value_bound(bound=1000)"))
    assert torch.equal(free.scored["w"], wide.scored["w"]) and free.outcome.seconds == wide.outcome.seconds


def test_a_change_that_is_reached_exactly_blocks_and_a_tiny_bound_never_hangs() -> None:
    assert reads(f"value_bound(bound={2 * CHANGE - 1e-12})")[1] == 0.020
    assert reads(f"value_bound(bound={2 * CHANGE + 1e-12})")[1] == 0.015
    assert reads("value_bound(bound=0.25)", lr=0.375)[1] == 0.020, "two changes of 0.125, which are exact"
    assert reads("value_bound(bound=0.2500001)", lr=0.375)[1] == 0.015
    assert run(ramp(0.5), "value_bound(bound=0.000000001)", 3, steps=5).log.values("update") == [1] * 15


class Copies(Instrument):
    """From the messages alone: when a copy is given out, how far it is from the oldest that somebody computes on."""

    def __init__(self) -> None:
        self.using: dict[int, tuple[int, torch.Tensor]] = {}
        self.apart: list[float] = []

    def sent(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
        if isinstance(message, Params):
            now = message.params.parts[0].clone()
            oldest = min(self.using.values(), key=lambda copy: copy[0], default=(0, now))[1]
            self.apart.append(float((now - oldest).abs().max()))
            self.using[to.rank] = message.version, now

    def delivered(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
        if isinstance(message, Push):
            self.using.pop(sender.rank, None)


@settings(max_examples=12, deadline=None)
@given(slow=st.lists(st.floats(0.2, 5.0), min_size=1, max_size=4), bound=st.floats(0.01, 1.0), seed=st.integers(0, 9))
def test_no_copy_is_given_while_an_older_one_is_too_far(slow: list[float], bound: float, seed: int) -> None:
    n, copies, spec = len(slow), Copies(), f"value_bound(bound={bound:.4f})"
    run(quadratic(samples=24 * n), spec, n, steps=6, seed=seed, cluster=paced(slow, 0.3), watch=[copies])
    assert len(copies.apart) == 6 * n and max(copies.apart) < round(bound, 4)


def test_every_version_in_use_is_kept_and_no_other() -> None:
    versions = Versions()
    for rank, version in enumerate([0, 0, 2]):
        versions.gave(rank, version, vector(float(version)))
    versions.back(0)
    assert versions.moved(vector(5.0)) == 5, "worker 1 still computes on the first"
    versions.back(1)
    assert versions.moved(vector(5.0)) == 3 and list(versions.kept) == [2]
    versions.back(2)
    assert versions.moved(vector(5.0)) == 0


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(PlanError, match="more than 0"):
        catalog.resolve("value_bound(bound=0)", 2)
    with pytest.raises(PlanError, match="needs 1 server"):
        catalog.resolve("value_bound", 2).layout(2, 2)
