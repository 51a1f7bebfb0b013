"""Preparers: who transforms a sample changes nothing but the time."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import covey
from covey import faults
from covey.data.transformed import transformed
from covey.errors import PlanError
from covey.message import Address
from covey.model import build
from covey.servers.preparing import PreparedBatch, PrepareRequest, packed, unpacked
from covey.simulate import BytesPerSecond, Seconds
from tests.worlds import INSTANT, cloud, mlp, run

DEAR = replace(INSTANT, prepare=Seconds(0.030))  # three times as dear as computing


def noisy(sample: tuple[Any, ...]) -> tuple[Any, ...]:
    """All three generators, and a number of draws that depends on chance."""
    x, y = sample
    for _ in range(random.randrange(3)):
        x = x + 0.1 * torch.randn(x.shape, dtype=x.dtype)
    return x * float(np.random.uniform(0.9, 1.1)), y


@pytest.mark.parametrize("spec", ["bsp", "allreduce(bucket=100)", "local_sgd(period=2)"])
def test_weights_are_the_same_to_the_bit_with_any_number_of_preparers(spec: str) -> None:
    """Shares of 50 samples differ between workers, batches are accumulated, and passes draw anew."""
    task = mlp(samples=50, transform=noisy, accumulate=2, batch_size=4)
    worlds = [run(replace(task, preparers=count), spec, 3, epochs=3) for count in (0, 1, 3)]
    for world in worlds[1:]:
        assert all(torch.equal(world.scored[name], worlds[0].scored[name]) for name in world.scored)
    asked = [sent for sent in worlds[2].log.sends if isinstance(sent.message, PrepareRequest)]
    assert {str(sent.to) for sent in asked} == {"preparer 0", "preparer 1", "preparer 2"}
    assert not any(isinstance(sent.message, PreparedBatch) and sent.size for sent in worlds[2].log.sends)  # no exchange


def test_a_step_whose_batch_did_not_arrive_is_read_anew_after_one_that_did() -> None:
    task = mlp(samples=50, transform=noisy, batch_size=4, preparers=1)
    deal = build.shards(task, 1, 0)
    one, other = (build.replica(task, Address("worker", 0), True, deal, None).batch_source for _ in range(2))
    assert one.prepare and one.own and one.arrived is not None and other.own
    one.arrived[0] = one.prepare(0, 0)
    assert one.own(0).loss == other.own(0).loss
    assert one.own(1).loss == other.own(1).loss  # which nobody has sent


def test_a_sample_has_its_own_chance_in_each_pass() -> None:
    data = cloud(8)
    one, other = (transformed(data, noisy, None, torch.tensor(order), 7, 0)[0] for order in ([3, 5], [5, 3, 1]))
    assert torch.equal(one[0], other[1]) and torch.equal(one[1], other[0])
    later = transformed(data, noisy, None, torch.tensor([3, 5]), 7, 1)[0]
    seeded = transformed(data, noisy, None, torch.tensor([3, 5]), 8, 0)[0]
    assert not torch.equal(one, later) and not torch.equal(one, seeded)


def test_what_a_model_draws_does_not_depend_on_the_transform() -> None:
    torch.manual_seed(3)
    before = torch.rand(2)
    torch.manual_seed(3)
    transformed(cloud(8), noisy, None, torch.arange(4), 0, 0)
    assert torch.equal(before, torch.rand(2))


@pytest.mark.parametrize(("count", "least"), [(1, 1.3), (2, 2.5), (3, 3.5)])
def test_preparers_take_the_time_of_the_transform(count: int, least: float) -> None:
    """A step takes 40 ms alone; two preparers have a batch every 15 ms, three every 10 ms, as the worker computes."""
    task = mlp(transform=noisy)
    alone, helped = (
        run(replace(task, preparers=preparers), "allreduce", 1, steps=40, cluster=DEAR).outcome.seconds
        for preparers in (0, count)
    )
    assert alone == pytest.approx(40 * 0.040)
    assert alone / helped >= least


@pytest.mark.parametrize("count", [0, 1, 2])
@pytest.mark.parametrize("spec", ["allreduce", "bsp"])
def test_what_is_only_timed_takes_as_long(spec: str, count: int) -> None:
    """Batches of unequal sizes travel over slow links, and some steps accumulate two of them."""
    task = mlp(samples=50, transform=noisy, accumulate=2, batch_size=4)
    slow = replace(DEAR, link=replace(DEAR.link, bandwidth=BytesPerSecond(50_000)))
    given: dict[str, Any] = {"engine": "simulated", "epochs": 2, "cluster": slow, "runs": False}
    whole, timed = (covey.fit(task, spec, 2, preparers=count, timing_only=only, **given) for only in (False, True))
    assert timed.seconds == pytest.approx(whole.seconds, rel=1e-6)
    assert timed.traffic.bytes == whole.traffic.bytes and timed.samples == whole.samples
    assert timed.settings.get("preparers") == whole.settings.get("preparers") == (count or None)


def test_the_option_goes_before_the_number_of_the_task() -> None:
    given: dict[str, Any] = {"engine": "simulated", "steps": 2, "runs": False}
    roles = covey.fit(mlp(transform=noisy, preparers=1), "bsp", 2, preparers=3, **given).roles
    assert sum(name.startswith("preparer ") for name in roles) == 3
    roles = covey.fit(mlp(transform=noisy, preparers=1), "bsp", 2, preparers=0, **given).roles
    assert not any(name.startswith("preparer ") for name in roles)
    for only in (False, True):
        with pytest.raises(PlanError, match="the task has no transform"):
            covey.fit(mlp(), "bsp", 2, preparers=1, timing_only=only, **given)


def test_a_worker_asks_no_more_than_it_computes() -> None:
    log = run(mlp(transform=noisy, preparers=2), "allreduce", 2, steps=5).log
    asked = [(sent.sender.rank, sent.message.step) for sent in log.sends if isinstance(sent.message, PrepareRequest)]
    assert sorted(asked) == [(rank, step) for rank in range(2) for step in range(5)]


def test_a_lost_preparer_is_named() -> None:
    killed = replace(DEAR, kills={"preparer 0": Seconds(0.1)})
    with pytest.raises(covey.CoveyError, match="preparer 0"):
        covey.fit(mlp(transform=noisy, preparers=1), "allreduce", 2, steps=40, engine="simulated", cluster=killed)


def test_a_run_with_preparers_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    def trained(steps: int, **more: Any) -> covey.Result:
        task = mlp(transform=noisy, preparers=2)
        return covey.fit(task, "allreduce", 2, steps=steps, engine="simulated", cluster=DEAR, **more)

    trained(7, checkpoint=tmp_path, every="30ms")
    resumed, whole = trained(12, resume=tmp_path), trained(12)
    assert all(torch.equal(resumed.weights[name], whole.weights[name]) for name in whole.weights)


def test_a_transform_that_fails_is_told_with_its_line() -> None:
    def wrong(sample: Any) -> Any:
        raise ValueError("no such colour")

    with pytest.raises(covey.CoveyError, match="in wrong"):
        covey.fit(mlp(transform=wrong, preparers=1), "allreduce", 2, steps=2, engine="simulated")


@pytest.mark.parametrize("form", [torch.ones(2), (torch.ones(2), torch.arange(3)), [torch.ones(1)]])
def test_a_batch_comes_in_the_form_it_had(form: Any) -> None:
    came = unpacked(packed(3, form))
    assert type(came) is type(form)
    both = [[given] if isinstance(given, torch.Tensor) else list(given) for given in (came, form)]
    assert all(torch.equal(one, other) and one.dtype == other.dtype for one, other in zip(*both, strict=True))


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"preparers": 1}, "give transform"),
        ({"preparers": -1, "transform": noisy}, "at least 0"),
        ({"transform": noisy, "loaders": 1}, "use preparers"),
        ({"transform": noisy, "private": covey.PrivateSgd(noise=1.0, clip=1.0, delta=1e-5)}, "private"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, Any], match: str) -> None:
    with pytest.raises(PlanError, match=match):
        mlp(**given)


@pytest.mark.parametrize(
    ("spec", "given", "match"),
    [
        ("allreduce", {"workers": "1:2"}, "come and go"),
        ("allreduce with mesh(stage=2)", {"workers": 2}, "a model that is cut"),
        ("allreduce", {"workers": 2, "on_failure": "continue"}, "preparers are not restarted"),
    ],
)
def test_where_workers_transform_themselves_it_says_so(spec: str, given: dict[str, Any], match: str) -> None:
    with pytest.raises(PlanError, match=match):
        covey.fit(mlp(transform=noisy, preparers=1), spec, steps=2, engine="simulated", **given)


def test_samples_of_different_shapes_are_the_transforms_mistake() -> None:
    with pytest.raises(RuntimeError, match="equal size") as caught:
        transformed(cloud(8), lambda sample: sample[0][: 1 + int(sample[0][0] > 0)], None, torch.arange(8), 0, 0)
    assert "(in the task's transform(sample): what it gave" in faults.words(caught.value.with_traceback(None))
    assert faults.story(caught.value) == ""
