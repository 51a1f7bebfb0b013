"""The tasks of one step under a choice of configurations: computing on devices, messages on links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from covey.parallelism.search.costs import OperatorCosts
from covey.parallelism.search.operators import OperatorConfig

Key = tuple[int, ...]
"""Which task: it also says who goes first on a device where two are ready at once."""

Resource = tuple[int, ...]
"""A device (d,), or a link (from, to)."""

MOVE, COMPUTE, SUM = 0, 1, 2


class StepTask(NamedTuple):
    """Something that takes a device or a link for a time, when all that it needs is done."""

    resource: Resource
    seconds: float
    needs: tuple[Key, ...]


class TaskGraph:
    """The tasks of operators and edges. Forwards come first, in order; then backwards, in reverse.

    Keys: (place, COMPUTE, part), (place, SUM, part) and (place, MOVE, other operator, from, to), where the place of a
    forward is its operator's number, and that of a backward counts on from the last one.
    """

    def __init__(self, costs: OperatorCosts) -> None:
        self.costs, self.graph, self.devices = costs, costs.graph, costs.devices
        self.back = 2 * len(self.graph) - 1

    def operator(self, number: int, choice: Sequence[OperatorConfig]) -> Iterator[tuple[Key, StepTask]]:
        """Forward, backward and the sum of gradients of one operator."""
        config, costs = choice[number], self.costs
        ahead, back, together = (part(number, config) for part in (costs.forward, costs.backward, costs.synchronized))
        every = tuple((self.back - number, COMPUTE, part) for part in range(config.parts))
        for part in range(config.parts):
            device = self._device(config, part)
            slow = self.devices.factor(device)
            before, after = self.graph.before[number], self.graph.after[number]
            needs = tuple(key for a in before for key in self._forward_needs(a, number, device, choice))
            yield (number, COMPUTE, part), StepTask((device,), slow * ahead, needs)
            needs = tuple(key for b in after for key in self._back_needs(number, b, device, choice))
            yield every[part], StepTask((device,), slow * back, ((number, COMPUTE, part), *needs))
            if together:
                yield (self.back - number, SUM, part), StepTask((device,), together, every)

    def edge(self, a: int, b: int, choice: Sequence[OperatorConfig]) -> Iterator[tuple[Key, StepTask]]:
        """What travels between two operators, ahead and back."""
        for place, to, size in self.costs.moved(a, b, choice[a], choice[b]):
            takes = self.devices.moved(size)
            made = self._computed(a, choice[a], place, a)
            yield (b, MOVE, a, place, to), StepTask((place, to), takes, made)
            felt = self._computed(self.back - b, choice[b], to, b)
            yield (self.back - a, MOVE, b, to, place), StepTask((to, place), takes, felt)

    def whole(self, choice: Sequence[OperatorConfig]) -> dict[Key, StepTask]:
        """All tasks."""
        found: dict[Key, StepTask] = {}
        for number in range(len(self.graph)):
            found.update(self.operator(number, choice))
        for a, b in self.graph.edges:
            found.update(self.edge(a, b, choice))
        return found

    def _device(self, config: OperatorConfig, part: int) -> int:
        return (config.first + part) % self.devices.count

    def _computed(self, place: int, config: OperatorConfig, device: int, number: int) -> tuple[Key, ...]:
        """The parts of an operator that a device computes."""
        return tuple((place, COMPUTE, p) for p in range(config.parts) if self._device(config, p) == device)

    def _forward_needs(self, a: int, b: int, device: int, choice: Sequence[OperatorConfig]) -> Iterator[Key]:
        yield from self._computed(a, choice[a], device, a)
        for place, to, _ in self.costs.moved(a, b, choice[a], choice[b]):
            if to == device:
                yield b, MOVE, a, place, to

    def _back_needs(self, a: int, b: int, device: int, choice: Sequence[OperatorConfig]) -> Iterator[Key]:
        yield from self._computed(self.back - b, choice[b], device, b)
        for place, to, _ in self.costs.moved(a, b, choice[a], choice[b]):
            if place == device:
                yield self.back - a, MOVE, b, to, place
