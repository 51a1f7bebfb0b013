"""A checkpoint of one layout goes on with another to the same weights: shards, experts, replicas, whole models."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import covey
from covey.engines.process.role.saving import restore
from covey.errors import CheckpointError
from covey.model.replica import Replica
from covey.parallelism.relayout import ScatteredNumbers, relaid
from tests.parallelism.test_experts import apart, run, task
from tests.parallelism.test_recut import kept
from tests.parallelism.test_sharded import ragged
from tests.parallelism.test_sharded import task as shard_task
from tests.worlds import sgd


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


def spec(mesh: str, strategy: str = "allreduce") -> str:
    return f"{strategy} with mesh({mesh})" if mesh else strategy


def broken(given: covey.Task, before: str, after: str, place: Path, workers: int = 4, **more: Any) -> covey.Result:
    """Three steps with one layout, three with another."""
    run(given, before, workers, steps=3, checkpoint=str(place), every="20ms", **more)
    return run(given, after, workers, steps=6, resume=str(place), **more)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("shard=4, zero=2", "replica=2, shard=2, zero=2"),
        pytest.param("shard=4, zero=2", "", marks=pytest.mark.full),
        ("", "shard=4, zero=2"),
        pytest.param("replica=2, shard=2, zero=1", "shard=4, zero=2", marks=pytest.mark.full),
        ("expert=4", ""),
        ("", "replica=2, expert=2"),
        pytest.param("expert=4", "shard=4, zero=1", marks=pytest.mark.full),
        pytest.param("shard=4, zero=2", "expert=2", marks=pytest.mark.full),
    ],
)
def test_a_checkpoint_of_one_layout_goes_on_with_another(before: str, after: str, tmp_path: Path) -> None:
    given = task(optimizer=adam)
    whole = run(given, spec(before), 4)
    resumed = broken(given, spec(before), spec(after), tmp_path / "kept")
    assert apart(resumed, whole) < 1e-10
    assert resumed.samples == whole.samples


@pytest.mark.full
def test_parameters_that_are_brought_together_layer_by_layer_go_on_too(tmp_path: Path) -> None:
    given = shard_task("tied")
    whole = run(given, "allreduce", 4)
    for number, (before, after) in enumerate([("shard=4", "replica=2, shard=2"), ("", "shard=4"), ("shard=4", "")]):
        assert apart(broken(given, spec(before), spec(after), tmp_path / f"kept {number}"), whole) < 1e-10


@pytest.mark.full
def test_real_processes_go_on_with_another_layout(tmp_path: Path) -> None:
    given = task("words")
    resumed = broken(given, spec("expert=2"), "allreduce", tmp_path / "kept", 2, engine="local")
    assert apart(resumed, run(given, "allreduce", 2)) < 1e-10


@pytest.mark.full
def test_stages_go_on_as_shards(tmp_path: Path) -> None:
    given, place, more = shard_task("gpt"), str(tmp_path / "kept"), {"engine": "local"}
    pipelines = "allreduce with mesh(replica=2, stage=2, timetable=plain)"
    run(given, pipelines, 4, steps=3, checkpoint=place, every="20ms", **more)
    resumed = run(given, "allreduce with mesh(shard=2)", 2, steps=6, resume=place, **more)
    assert apart(resumed, run(given, "allreduce", 2)) < 1e-10


def part(*layers: int) -> Replica:
    """Some layers of a model, under their names in the whole, after a step."""
    module = nn.ModuleDict({str(number): nn.Linear(3, 2) for number in layers})
    replica = Replica(module, sgd(0.1, momentum=0.9))
    replica.apply(replica.grad.map(torch.ones_like))
    return replica


def test_parts_are_put_together_by_name() -> None:
    old, new = [part(0, 2), part(1)], part(0, 1, 2)
    states = [kept(replica) for replica in old]
    restore(new, relaid(states[0], [states], new, begin=False).replica)
    for replica in old:
        for name, weight in replica.layout.parameters.items():
            mine = new.layout.parameters[name]
            assert torch.equal(mine, weight)
            assert bool((new.optimizer.state[mine]["momentum_buffer"] == 1).all())
    with pytest.raises(CheckpointError, match=r"it has no 1\.weight"):
        relaid(states[0], [states[:1]], new, begin=False)


def counted(layer: nn.Module, name: str = "counter", number: torch.dtype = torch.int64) -> Replica:
    """A layer and a buffer."""
    module = nn.ModuleDict({"a": layer})
    module.register_buffer(name, torch.zeros(2, dtype=number))
    return Replica(module, sgd(0.1))


def test_statistics_of_several_replicas_become_their_mean() -> None:
    layer = nn.Linear(3, 2)
    old = [counted(deepcopy(layer), "mean", torch.float32) for _ in range(2)]
    for replica, value in zip(old, (1.0, 4.0), strict=True):
        replica.buffers.parts[0].fill_(value)
    new, states = counted(nn.Linear(3, 2), "mean", torch.float32), [kept(replica) for replica in old]
    restore(new, relaid(states[0], [[state] for state in states], new, begin=False).replica)
    assert new.buffers.parts[0].tolist() == [2.5, 2.5]


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (lambda: counted(nn.Linear(3, 2)), r"it has no a\.weight of this size"),  # narrower
        (lambda: counted(nn.Linear(4, 6)), r"it has no a\.weight of this size"),  # turned around
        (lambda: counted(nn.Linear(6, 4, bias=False)), r"it has a\.bias, which this one has not"),
        (lambda: counted(nn.Linear(6, 4), "other"), "it has no other of this size"),
        (lambda: counted(nn.Linear(6, 4), "other", torch.float32), "it has no other of this size"),
    ],
)
def test_another_model_is_refused(now: Callable[[], Replica], said: str) -> None:
    states = [kept(counted(nn.Linear(6, 4)))]
    with pytest.raises(CheckpointError, match=said):
        relaid(states[0], [states], now(), begin=False)


def test_another_model_is_refused_by_who_has_a_part_of_it(tmp_path: Path) -> None:
    run(shard_task(), "allreduce", 2, steps=2, checkpoint=str(tmp_path / "kept"), every="1ms")
    wider = shard_task(model=lambda: _wider().double())
    with pytest.raises(CheckpointError, match=r"it has no first\.weight of this size"):
        run(wider, "allreduce with mesh(shard=2)", 2, steps=4, resume=str(tmp_path / "kept"))


def _wider() -> nn.Module:
    model = ragged()
    model.first = nn.Linear(64, 6)
    model.again, model.last = nn.Linear(6, 6, bias=False), nn.Linear(6, 3)
    return model


@pytest.mark.parametrize(
    ("before", "after", "workers", "said"),
    [
        ("easgd(pull=0.2) with mesh(replica=2, shard=2, zero=2)", "easgd(pull=0.2)", 4, "2 replicas.* has 4"),
        ("bsp with mesh(shard=4, zero=2)", "bsp", 4, "its roles remember"),
        ("local_sgd(period=4)", "local_sgd(period=4) with mesh(shard=4, zero=2)", 4, "different models"),
        ("allreduce with mesh(expert=4)", "allreduce + topk", 4, "strategy"),
    ],
)  # fmt: skip
def test_what_another_layout_cannot_have_is_refused(
    before: str, after: str, workers: int, said: str, tmp_path: Path
) -> None:  # fmt: skip
    with pytest.raises(CheckpointError, match=said):
        broken(task("words"), before, after, tmp_path / "kept", workers)


def test_who_does_not_say_which_numbers_it_has_has_the_next_ones() -> None:
    found = ScatteredNumbers()
    for numbers, runs in ((torch.tensor([3.0, 1.0]), [(2, 1), (0, 1)]), (torch.tensor([2.0]), [(1, 1)])):
        found.add(numbers, runs)
    found.add(torch.tensor([4.0, 5.0]), None)
    assert found.joined().tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_parts_that_overlap_and_leave_a_number_to_nobody_are_refused() -> None:
    found = ScatteredNumbers()
    found.add(torch.tensor([1.0, 2.0]), [(0, 2)])
    found.add(torch.tensor([3.0, 4.0]), [(1, 2)])
    with pytest.raises(CheckpointError, match="parts of a tensor do not fit together"):
        found.joined()
