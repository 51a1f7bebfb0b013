"""What a member of a tensor group has: slices of divided parameters, and some of those that all members have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import nn

from covey.message import Address, Message
from covey.parallelism.axis import TENSOR
from covey.parallelism.parameter_map import Runs
from covey.parallelism.tensor.group import MemberGroup
from covey.program import Node
from covey.vector import Vector

BUFFERS = 0  # whose float buffers count


class OwnedParameters(Message):
    """What a member owns of the parameters that all members have, and the float buffers of the first one."""

    wire_name = "tensor.owned_parameters"

    step: int
    numbers: Vector


class SliceSquare(Message):
    """How long the gradient of what a member owns is, squared."""

    wire_name = "tensor.slice_square"

    step: int
    square: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSlices:
    """One member's slices of a model, or of a part of one; the model computes on them, and members together."""

    group: MemberGroup
    held: Mapping[str, nn.Parameter]  # what it owns
    runs: Mapping[str, Runs]  # where its slices lie in the whole parameters
    shared: Mapping[str, nn.Parameter]  # that all members have, and compute on
    owners: Mapping[str, int]  # of those
    load: float  # what of the compute it does
    largest: int  # bytes of the largest thing that members send, for a sample

    @property
    def parameters(self) -> list[nn.Parameter]:
        """On which the model computes."""
        return [*(one for name, one in self.held.items() if name not in self.shared), *self.shared.values()]

    def clear(self) -> None:
        """Forget the gradients of what others own: theirs are the same."""
        for name, parameter in self.shared.items():
            if name not in self.held:
                parameter.grad = None

    async def bring_shared(self, node: Node, buffers: Vector) -> None:
        """Let everybody compute on the owners' numbers, and on the first member's buffers."""
        mine = self._owned_by(self.group.me, buffers)
        for member in self._others():
            await node.send(Address(TENSOR, member), OwnedParameters(node.step, mine))
        for member in self._others():
            theirs = await node.receive(OwnedParameters, sender=Address(TENSOR, member), step=node.step)
            self._owned_by(member, buffers).copy_(theirs.numbers)

    def _owned_by(self, member: int, buffers: Vector) -> Vector:
        found = [one.data.view(-1) for name, one in self.shared.items() if self.owners[name] == member]
        return Vector([*found, *(buffers.parts if member == BUFFERS else ())])

    async def square(self, node: Node, mine: float) -> float:
        """The sum of what all members have, in their order."""
        for member in self._others():
            await node.send(Address(TENSOR, member), SliceSquare(node.step, mine))
        squares = {self.group.me: mine}
        for member in self._others():
            came = await node.receive(SliceSquare, sender=Address(TENSOR, member), step=node.step)
            squares[member] = came.square
        return sum(squares[member] for member in sorted(squares))

    def _others(self) -> Iterator[int]:
        return (member for member in range(self.group.members) if member != self.group.me)
