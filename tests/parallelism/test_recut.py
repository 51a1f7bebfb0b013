"""A checkpoint of one cut goes on with another: nothing is lost on the way. tests/real/test_mesh.py has whole runs."""

from __future__ import annotations

from random import Random

import torch
from torch import nn

from covey.checkpoint import RoleState
from covey.model.replica import Replica
from covey.parallelism.pipeline.recut import recut
from tests.worlds import sgd


def stage(lr: float, *layers: int) -> Replica:
    """A part of a model of three layers, under their names in the whole."""
    module = nn.Module()
    for number in layers:
        module.add_module(str(number), nn.Linear(2, 2))
    return Replica(module, sgd(lr, momentum=0.9))


def kept(replica: Replica) -> RoleState:
    own = {"piece": replica.trained, "optimizer_class": type(replica.optimizer).__name__}
    return RoleState.of(rng=Random(1), done=3, seconds=1.0, memories={}, mailbox=[], replica={**replica.state(), **own})


def test_settings_and_momentum_of_the_optimizers_go_along() -> None:
    """The learning rate too, which a loop or a schedule may have changed since the optimizers were made."""
    old = [stage(0.02, 0), stage(0.02, 1, 2)]
    for replica in old:
        replica.apply(replica.grad.map(torch.ones_like))
    new = stage(0.1, 0, 1)
    found = recut([kept(replica) for replica in old], new, begin=False).replica["optimizer"]
    assert [group["lr"] for group in found["param_groups"]] == [0.02]
    assert len(found["state"]) == 4 and all(bool((s["momentum_buffer"] == 1).all()) for s in found["state"].values())


def test_the_rate_schedule_goes_on_where_it_was() -> None:
    old = [stage(0.02, 0), stage(0.02, 1, 2)]
    for replica in old:
        replica.progress.add(12)
    assert recut([kept(replica) for replica in old], stage(0.1, 0, 1), begin=False).replica["seen"] == 12
