"""One model by name, from what roles of a run kept: slices side by side, copies averaged, and divided anew."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from covey.checkpoint import RoleState
from covey.data.shards import Shards
from covey.errors import CheckpointError
from covey.message import Address
from covey.model.batches import Batch, BatchSource
from covey.model.inherited import inherited
from covey.model.named import members
from covey.model.replica import Replica
from covey.run.changed_plan import later, position
from tests.test_checkpoint import state, trained


def kept(replica: Replica, **more: Any) -> RoleState:
    own = {"piece": replica.trained, "optimizer_class": type(replica.optimizer).__name__, "members": members(replica)}
    return state(replica={**replica.state(), **own, **more})


def whole_state(replica: Replica) -> dict[tuple[str, str], torch.Tensor]:
    names = {id(parameter): name for name, parameter in replica.layout.parameters.items()}
    return {(names[id(p)], key): value for p, held in replica.optimizer.state.items() for key, value in held.items()}


@pytest.mark.parametrize("now", [1, 2, 3])
@pytest.mark.parametrize("before", [1, 2])
def test_servers_divide_anew_what_other_servers_had(before: int, now: int) -> None:
    """`before` servers took two steps; each of `now` servers has its slices of the parameters and of Adam's state."""
    source = trained()  # one that holds all took the same steps
    roles = {Address("server", 0): kept(source)}
    if before > 1:
        torch.manual_seed(1)
        pieces = source.pieces(before)
        roles = {}
        for rank, piece in enumerate(pieces):
            shard = trained()
            shard.updates.inherited = True
            shard.keep(piece, buffers=rank == 0)
            roles[Address("server", rank)] = kept(shard)
    model = inherited(roles, list(roles))
    assert not model.averaged
    for rank in range(now):
        fresh = trained()
        fresh.optimizer.state.clear()
        fresh.flat.zero_()
        model.restore(fresh, seen=40)
        assert fresh.progress.seen == 40
        assert all(map(torch.equal, fresh.model.parts, source.model.parts))
        fresh.keep(fresh.pieces(now)[rank], buffers=rank == 0)
        wanted = whole_state(source)
        for (name, first), shard in zip(members(fresh), fresh.optimizer.param_groups[0]["params"], strict=True):  # type: ignore[misc]
            held = fresh.optimizer.state[shard]
            assert held.keys() == {"step", "exp_avg", "exp_avg_sq"} and held["step"] == 2
            for key in ("exp_avg", "exp_avg_sq"):
                part = wanted[name, key].reshape(-1)[first : first + shard.numel()]
                assert torch.equal(held[key].reshape(-1), part)


def test_workers_that_differ_are_averaged_by_their_weights() -> None:
    one, other = trained(), trained()
    other.flat.add_(one.flat, alpha=3)
    other.optimizer.state[other.layout.parameters["0.weight"]]["exp_avg"].add_(1)
    roles = {Address("worker", 0): kept(one), Address("worker", 1): kept(other, weight=3.0)}
    model = inherited(roles, list(roles))
    assert model.averaged == {"parameters", "exp_avg"}
    bias = model.numbers["parameter", "0.bias", ""]
    assert torch.allclose(bias, (one.layout.parameters["0.bias"] + 3 * other.layout.parameters["0.bias"]) / 4)
    mine = one.optimizer.state[one.layout.parameters["0.weight"]]["exp_avg"]
    assert torch.allclose(model.numbers["optimizer", "0.weight", "exp_avg"], mine + 0.5)


def test_the_model_that_a_program_shows_is_the_one_that_goes_on() -> None:
    one, shown = trained(), trained()
    shown.model.mul_(2)
    model = inherited({Address("worker", 0): kept(one, shown=shown.model)}, [Address("worker", 0)])
    assert torch.equal(model.numbers["parameter", "0.bias", ""], shown.layout.parameters["0.bias"])


def test_a_model_of_which_a_part_is_missing_is_refused() -> None:
    with pytest.raises(CheckpointError, match="has only a part of|it has no"):
        inherited({Address("server", 0): kept(trained(2, 0))}, [Address("server", 0)]).restore(trained(), 0)


def test_positions_follow_the_samples_and_batches_go_on_from_there() -> None:
    deal = Shards(100, 3, 5)  # shards of 34, 33 and 33 samples, 7 batches each
    assert [position(deal, rank, 250, None) for rank in range(3)] == [17, 17, 17]
    assert position(deal, 0, 250, 12) == 12 and position(deal, 0, 0, 12) == 0
    begun = list[int]()
    source = BatchSource(
        own=lambda step: Batch(0.0, step), chosen=lambda rank, step, part, parts: Batch(0.0, 100 * rank + step),
        samples=lambda rank, step: 100 * rank + step, steps=deal.steps, begin=begun.append,
    )  # fmt: skip
    moved = later(source, 1, [3, 4, 5])
    assert moved.own is not None and moved.own(2).samples == 6
    assert moved.chosen is not None and moved.chosen(2, 1, 0, 1).samples == 206 and moved.samples(0, 1) == 4
    moved.begin(0)
    assert begun == [4]
