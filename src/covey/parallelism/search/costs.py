"""What an operator costs in a configuration, and what it costs to bring its output into another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from covey.parallelism.search.operators import OperatorConfig, OperatorGraph


@dataclass(frozen=True, kw_only=True)
class Devices:
    """The machines: how many, the links between them, how slow each is, and the memory of each."""

    count: int
    bandwidth: float = float("inf")  # bytes a second
    latency: float = 0.0
    slow: Sequence[float] = field(default_factory=tuple)  # by device: how many times slower; all alike without it
    memory: float = float("inf")  # bytes

    def factor(self, device: int) -> float:
        return self.slow[device] if self.slow else 1.0

    def moved(self, size: float) -> float:
        """Seconds until a message of this many bytes is there."""
        return self.latency + size / self.bandwidth if size else 0.0

    def summed(self, size: float, members: int) -> float:
        """Seconds of a sum around a ring: 2 (n - 1) messages of an n-th each."""
        return 2 * (members - 1) * self.moved(size / members) if members > 1 else 0.0

    def gathered(self, size: float, members: int) -> float:
        """Seconds until everybody has all of what is divided among the members."""
        return (members - 1) * self.moved(size / members) if members > 1 else 0.0


class OperatorCosts:
    """All costs of a graph on these devices, each worked out once."""

    def __init__(self, graph: OperatorGraph, devices: Devices) -> None:
        self.graph, self.devices = graph, devices
        self.forward = cache(self._forward)
        self.backward = cache(self._backward)
        self.synchronized = cache(self._synchronized)
        self.moved = cache(self._moved)
        self._shares = cache(self._shared)

    def _forward(self, number: int, config: OperatorConfig) -> float:
        """Seconds of one part; partial outputs of rows are summed at once."""
        operator = self.graph.operators[number]
        total = operator.output / config.samples
        after = self.devices.summed(total, config.members) if config.way == "row" else 0.0
        return operator.seconds(config)[0] + after

    def _backward(self, number: int, config: OperatorConfig) -> float:
        """Seconds of one part; the inputs of columns get a gradient of each of them, which are summed."""
        operator = self.graph.operators[number]
        inputs = sum(self.graph.operators[a].output for a in self.graph.before[number]) / config.samples
        after = self.devices.summed(inputs, config.members) if config.way == "column" else 0.0
        return operator.seconds(config)[1] + after

    def _synchronized(self, number: int, config: OperatorConfig) -> float:
        """Seconds in which the gradients of its weights are summed over all groups of samples, in one sum of all."""
        size, groups = self.graph.operators[number].weights / config.divides, config.samples
        return 2 * (groups - 1) / groups * size / self.devices.bandwidth

    def latency(self, choice: Sequence[OperatorConfig]) -> float:
        """Seconds that the sum of all gradients takes besides its bytes: 2 (n - 1) messages one after the other."""
        pairs = zip(self.graph.operators, choice, strict=True)
        return 2 * self.devices.latency * max((config.samples - 1 for one, config in pairs if one.weights), default=0)

    def node(self, number: int, config: OperatorConfig) -> float:
        """t_C + t_S of OptCNN (Jia et al. 2018): computing it both ways, and summing its gradients."""
        slow = max(self.devices.factor((config.first + part) % self.devices.count) for part in range(config.parts))
        computed = self.forward(number, config) + self.backward(number, config)
        return slow * computed + self.synchronized(number, config)

    def edge(self, source: int, target: int, made: OperatorConfig, wanted: OperatorConfig) -> float:
        """t_X of OptCNN: the most that one device waits for, forward and back."""
        waits: dict[int, float] = {}
        for _, to, size in self.moved(source, target, made, wanted):
            waits[to] = waits.get(to, 0.0) + self.devices.moved(size)
        return 2 * max(waits.values(), default=0.0)

    def _moved(
        self, source: int, target: int, made: OperatorConfig, wanted: OperatorConfig
    ) -> tuple[tuple[int, int, float], ...]:
        """(from, to, bytes) for each message that brings an output to where it is needed."""
        one, other = self.graph.operators[source], self.graph.operators[target]
        shares = self._shares(one.gives_split(made), other.takes_split(wanted), made, wanted)
        return tuple((place, to, share * one.output) for place, to, share in shares)

    def _shared(
        self, gives: bool, takes: bool, made: OperatorConfig, wanted: OperatorConfig
    ) -> tuple[tuple[int, int, float], ...]:
        """The same for an output of one byte, whose columns are divided where it is made, or where it is needed."""
        found: dict[tuple[int, int], float] = {}
        for part in range(wanted.parts):
            to = (wanted.first + part) % self.devices.count
            rows, columns = _region(part, wanted, takes)
            for piece, place in _sources(to, gives, made, self.devices.count):
                share = _overlap(rows, piece[0]) * _overlap(columns, piece[1])
                if share > 0 and place != to:
                    found[place, to] = found.get((place, to), 0.0) + share
        return tuple((place, to, share) for (place, to), share in sorted(found.items()))

    def memory(self, choice: Sequence[OperatorConfig]) -> list[float]:
        """Bytes on each device: weights, their gradient and optimizer state, buffers, and what backward needs."""
        found = [0.0] * self.devices.count
        for operator, config in zip(self.graph.operators, choice, strict=True):
            standing = operator.weights / config.divides * (2 + self.graph.state) + operator.fixed
            size = standing + operator.kept / (config.samples * config.divides)
            for part in range(config.parts):
                found[(config.first + part) % self.devices.count] += size
        return found

    def traffic(self, choice: Sequence[OperatorConfig]) -> float:
        """Bytes of one step over all links."""
        total = 0.0
        for number, config in enumerate(choice):
            operator = self.graph.operators[number]
            total += 2 * (config.samples - 1) * operator.weights / config.divides * config.members
            if config.way == "row":
                total += 2 * (config.members - 1) * operator.output
            if config.way == "column":
                inputs = sum(self.graph.operators[a].output for a in self.graph.before[number])
                total += 2 * (config.members - 1) * inputs
        for a, b in self.graph.edges:
            total += 2 * sum(size for _, _, size in self.moved(a, b, choice[a], choice[b]))
        return total


Interval = tuple[float, float]


def _region(part: int, config: OperatorConfig, split: bool) -> tuple[Interval, Interval]:
    """Which rows and columns of a tensor a part has or needs, as shares of all."""
    group, member = divmod(part, config.members)
    rows = group / config.samples, (group + 1) / config.samples
    columns = (member / config.members, (member + 1) / config.members) if split else (0.0, 1.0)
    return rows, columns


def _sources(to: int, split: bool, made: OperatorConfig, devices: int) -> list[tuple[tuple[Interval, Interval], int]]:
    """The pieces of an output and where each lies; of equal ones the one on this device, else the first."""
    found: dict[tuple[Interval, Interval], int] = {}
    for part in range(made.parts):
        piece, place = _region(part, made, split), (made.first + part) % devices
        if piece not in found or place == to:
            found[piece] = place
    return list(found.items())


def _overlap(one: Interval, other: Interval) -> float:
    return max(0.0, min(one[1], other[1]) - max(one[0], other[0]))
