"""The order in which forward uses parameters, recorded in one forward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from covey.central.scheduled.tac import Op
from covey.model.replica import Replica

NOTHING: frozenset[int] = frozenset()


class ForwardFlow(TorchFunctionMode):
    """Which parameters each result depends on, as far as functions of torch are seen to be called."""

    def __init__(self, replica: Replica) -> None:
        super().__init__()
        slots, parameters = replica.layout.slots, replica.layout.parameters
        self.known = {id(parameters[slot.name]): frozenset({place}) for place, slot in enumerate(slots)}
        self.kept: list[Any] = []  # the next tensor could have the name of one that is gone
        self.now = NOTHING  # what the function that is being called depends on

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = leaves([*args, *(kwargs or {}).values()])
        needs = self.now = NOTHING.union(*(self.known.get(id(tensor), NOTHING) for tensor in given))
        result = func(*args, **(kwargs or {}))
        self.now = NOTHING
        for tensor in leaves([result]):
            self.known[id(tensor)] = needs | self.known.get(id(tensor), NOTHING)
        self.kept.append(result)
        return result


class Forward:
    """One forward: what was computed from the first use of each parameter until that of the next."""

    def __init__(self, replica: Replica) -> None:
        self.flow = ForwardFlow(replica)
        self.begins: list[tuple[float, frozenset[int]]] = []
        self.end: float | None = None

    def met(self, at: float) -> None:
        """The function that is being called is the first to use some parameters."""
        self.begins.append((at, self.flow.now))

    def ended(self, at: float) -> None:
        """Backward has begun."""
        self.end = at if self.end is None else self.end

    def ops(self) -> list[Op]:
        assert self.end is not None, "a forward that goes on"
        ends = [*(at for at, _ in self.begins[1:]), self.end]
        return [Op(needs, max(0.0, end - at)) for (at, needs), end in zip(self.begins, ends, strict=True)]


def leaves(values: Sequence[Any]) -> Iterator[Tensor]:
    """The tensors in what a function is given, or gives."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from leaves(value)
        elif isinstance(value, dict):
            yield from leaves(list(value.values()))
