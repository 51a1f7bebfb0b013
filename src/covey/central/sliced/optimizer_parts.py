"""What does an optimizer know of one slice of the parameters? So that the slice can be handed on with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from covey.model.replica import Replica
from covey.vector import Piece


def union(pieces: Sequence[Piece], numbers: Sequence[int]) -> Piece:
    """The ranges of the pieces with these numbers, in their order, as one piece."""
    return tuple(sum((pieces[n][part] for n in numbers), ()) for part in range(len(pieces[0])))


def shards_of(replica: Replica, pieces: Sequence[Piece], numbers: Sequence[int]) -> dict[int, list[nn.Parameter]]:
    """What the optimizer steps of each piece: of every parameter the parts that lie in it, in the pieces' order.

    The optimizer keeps the union of the pieces with these numbers.
    """
    found: dict[int, list[nn.Parameter]] = {number: [] for number in numbers}
    inside = {number: replica.layout.inside(pieces[number]) for number in numbers}
    for place, shards in enumerate(replica.updates.shards):
        left = iter(shards)
        for number in numbers:
            found[number] += [next(left) for _ in inside[number][place]]
    return found


def optimizer_state(replica: Replica, shards: Sequence[nn.Parameter]) -> list[dict[str, Any]]:
    """What the optimizer knows of these, to be handed on."""
    return [_plain(replica.optimizer.state.get(shard, {})) for shard in shards]


def load_optimizer(replica: Replica, shards: Sequence[nn.Parameter], states: Sequence[Mapping[str, Any]]) -> None:
    """Go on from what another optimizer knew of these."""
    for shard, values in zip(shards, states, strict=True):
        if values:
            replica.optimizer.state[shard] = _living(values, shard)


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value.detach().cpu() if isinstance(value, Tensor) else value for key, value in values.items()}


def _living(values: Mapping[str, Any], shard: nn.Parameter) -> dict[str, Any]:
    """What an optimizer may write on; counters of steps stay in the memory of the CPU, where torch has them."""
    found = {}
    for key, value in values.items():
        if isinstance(value, Tensor):
            value = value.clone() if key == "step" else value.to(shard.device, copy=True)
        found[key] = value
    return found
