"""What the members of a tensor group do together inside a forward and a backward: sums, and slices brought together.

A value is whole, and then the same on all members to the bit, or divided along one dimension. The gradient of a whole
value is whole. So each of the four ways between the two has its counterpart in backward:

    forward                       backward
    sum of everybody's            as it is
    as it is, for a local use     sum of everybody's
    slices brought together       own slice
    own slice                     slices brought together
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch import Tensor

from covey.errors import PlanError, WireError
from covey.message import Address, Message
from covey.model.compute_shares import in_backward, in_forward
from covey.parallelism.axis import TENSOR
from covey.parallelism.tensor.layout import Blocks, SplitLayout, length, ranges_of
from covey.program import Node
from covey.vector import Vector

Rule = Callable[[str, Callable[..., Any], Sequence[Any], Mapping[str, Any]], Any]
"""What a function of torch does with slices: its name, itself, and what it is given."""
TURNS = 1 << 20  # more exchanges than one step can have


class MemberNumbers(Message):
    """What a member has to add to a sum, or its slice of a value; `step` numbers exchanges in the whole run."""

    wire_name = "tensor.member_numbers"

    step: int
    numbers: Vector


def lost_gradient() -> PlanError:
    return PlanError(
        "a torch.autograd.Function is given a value that mesh(tensor=...) divides, or makes one, and would lose its "
        "gradient: leave the layer that makes the value whole, with split=, or use use_reentrant=False in an "
        "activation checkpoint"
    )


class TensorGroup:
    """The members that divide the layers of one model, as one of them sees it; alone it has everything."""

    plans = False  # whether it only stands in for one

    def __init__(self, members: int, rules: Mapping[str, Rule], me: int = 0) -> None:
        self.members, self.me, self.rules = members, me, rules
        self._copies: dict[int, list[Any]] = {}  # of a whole value: itself, its version and its copy, until backward

    # -- what a member has -------------------------------------------------------------------------------------------

    def ranges(self, blocks: Blocks) -> list[tuple[int, int]]:
        """This member's numbers along a divided dimension."""
        return ranges_of(blocks, self.members, self.me)

    def extent(self, blocks: Blocks) -> int:
        """How many they are."""
        return sum(stop - first for first, stop in self.ranges(blocks))

    def cut(self, whole: Tensor, layout: SplitLayout) -> Tensor:
        """This member's slice of a whole value, without its gradient's way back."""
        parts = [whole.narrow(layout.dim, first, stop - first) for first, stop in self.ranges(layout.blocks)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, layout.dim)

    # -- with the others ---------------------------------------------------------------------------------------------

    def summed(self, part: Tensor) -> Tensor:
        """The sum of what all members have; whole."""
        found: Tensor = _Summed.apply(self, part)  # type: ignore[no-untyped-call]
        return found

    def copied(self, whole: Tensor) -> Tensor:
        """A whole value for a use in which each member has a part of its gradient; one sum serves all such uses.

        All members must make copies at the same places of a step: the order of the copies is that of the sums.
        """
        if not (whole.requires_grad and torch.is_grad_enabled()):
            return whole
        kept = self._copies.get(id(whole), [])
        if not kept or kept[0] is not whole or kept[1] != whole._version:
            kept.clear()
            kept = self._copies[id(whole)] = []
            kept += whole, whole._version, _Copied.apply(self, whole, kept)  # type: ignore[no-untyped-call]
        copy: Tensor = kept[2]
        return copy

    def forget(self) -> None:
        """A step is over: the copies of its values go, those of parameters too, whose numbers may change now."""
        for kept in self._copies.values():
            kept.clear()  # its copy's way back has it, too
        self._copies = {}

    def gathered(self, local: Tensor, layout: SplitLayout, why: str) -> Tensor:
        """The whole value of which everybody has a slice; whoever plans is told `why`."""
        found: Tensor = _Gathered.apply(self, local, layout)  # type: ignore[no-untyped-call]
        return found

    def sliced(self, whole: Tensor, layout: SplitLayout) -> Tensor:
        """This member's slice of a whole value."""
        found: Tensor = _OwnPart.apply(self, whole, layout)  # type: ignore[no-untyped-call]
        return found

    def wish(self, layout: SplitLayout, blocks: Blocks | None) -> None:
        """Whoever plans is told with which blocks a value would not have had to be brought together."""

    def unseen(self, layout: SplitLayout) -> None:
        """A value is used where autograd does not see its slice; whoever plans leaves its layer whole."""
        raise lost_gradient()

    # -- numbers -----------------------------------------------------------------------------------------------------

    def everybodys(self, mine: Tensor) -> list[Tensor]:
        """What each member has, in their order."""
        raise NotImplementedError

    def add(self, mine: Tensor) -> Tensor:
        """In the order of members: so all of them have the same bits."""
        first, *others = self.everybodys(mine)
        total = _shaped(first, mine.shape, mine).clone()
        for other in others:
            total.add_(_shaped(other, mine.shape, mine))
        return total

    def join(self, mine: Tensor, layout: SplitLayout) -> Tensor:
        """Everybody's slices as one."""
        sizes = list(mine.shape)
        sizes[layout.dim] = length(layout.blocks)
        whole = mine.new_empty(sizes)
        for member, came in enumerate(self.everybodys(mine)):
            ranges = ranges_of(layout.blocks, self.members, member)
            sizes[layout.dim] = sum(stop - first for first, stop in ranges)
            at, slices = 0, _shaped(came, sizes, mine)
            for first, stop in ranges:
                there = slices.narrow(layout.dim, at, stop - first)
                whole.narrow(layout.dim, first, stop - first).copy_(there)
                at += stop - first
        return whole

    def neighbours(self, first: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """Give the own first rows to the member before, the last ones to the one after; theirs, or zeros at an end."""
        return torch.zeros_like(last), torch.zeros_like(first)

    def highest(self, mine: Tensor) -> Tensor:
        """The largest of everybody's, number by number."""
        return torch.stack([_shaped(came, mine.shape, mine) for came in self.everybodys(mine)]).amax(0)


def _shaped(came: Tensor, sizes: Sequence[int], like: Tensor) -> Tensor:
    """What a member has given, if it can be what was asked for."""
    if came.dtype != like.dtype or came.numel() != prod(sizes):
        raise WireError(
            f"a tensor member gave {came.numel()} x {came.dtype} where {tuple(sizes)} x {like.dtype} is due: all "
            "members must compute the same layers in the same order"
        )
    return came.to(like.device).view(list(sizes))


class MemberGroup(TensorGroup):
    """A member's group while it computes a step."""

    def __init__(self, members: int, rules: Mapping[str, Rule], me: int, turns: int) -> None:
        super().__init__(members, rules, me)
        self.turns = turns  # exchanges of a step, as far as known
        self._node: Node | None = None
        self._turn = 0
        self._part: tuple[int, int] | None = None  # of a step: its first exchange, and how many it had before
        self._counts: dict[Hashable, int] = {}

    def begin(self, node: Node) -> None:
        """A step."""
        self.forget()
        self._node, self.turns, self._turn = node, self._turn or self.turns, 0

    @contextmanager
    def part(self, which: Hashable) -> Iterator[None]:
        """Meanwhile a part of a step is computed by itself, such as the forward of a micro-batch."""
        first = self._turn
        self._part = first, self._counts.get(which, 1)
        try:
            yield
        finally:
            self._counts[which], self._part = self._turn - first, None
            self.forget()

    def everybodys(self, mine: Tensor) -> list[Tensor]:
        came = self._exchanged({member: mine for member in range(self.members) if member != self.me})
        return [came.get(member, mine) for member in range(self.members)]

    def neighbours(self, first: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        both = {self.me - 1: first, self.me + 1: last}
        came = self._exchanged({member: rows for member, rows in both.items() if 0 <= member < self.members})
        above, below = (
            _shaped(came.get(member, torch.zeros_like(rows)), rows.shape, rows) for member, rows in both.items()
        )
        return above, below

    def _exchanged(self, given: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """What these members give for what they are given, all flat."""
        node, turn = self._node, self._turn
        assert node is not None, "a divided value is used outside of a step"
        self._turn += 1
        flat = {member: mine.detach().contiguous().view(-1) for member, mine in given.items()}
        return node.consult(self._exchange(node, flat, node.step * TURNS + turn), self._progress())

    def _progress(self) -> float:
        """How much of the work under way is done, as far as exchanges tell."""
        if self._part is not None:
            first, count = self._part
            return min(1.0, (self._turn - first) / (count + 1))
        share = min(1.0, self._turn / (self.turns + 1))
        return in_forward(2 * share) if share <= 0.5 else in_backward(2 * share - 1)

    async def _exchange(self, node: Node, given: Mapping[int, Tensor], number: int) -> dict[int, Tensor]:
        for member, mine in given.items():
            await node.send(Address(TENSOR, member), MemberNumbers(number, Vector([mine])), priority=1)
        came = {}
        for member in given:
            sender = Address(TENSOR, member)
            numbers = (await node.receive(MemberNumbers, sender=sender, step=number)).numbers
            if len(numbers.parts) != 1:
                raise WireError(f"{sender} sent {numbers}, which is not one tensor")
            came[member] = numbers.parts[0]
        return came


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: TensorGroup, part: Tensor) -> Tensor:
        return group.add(part)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        return None, grads[0]


class _Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: TensorGroup, whole: Tensor, kept: list[Any]) -> Tensor:
        ctx.group, ctx.kept = group, kept
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor, None]:
        ctx.kept.clear()  # no use follows
        return None, ctx.group.add(grads[0]), None


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: TensorGroup, local: Tensor, layout: SplitLayout) -> Tensor:
        ctx.group, ctx.layout = group, layout
        return group.join(local, layout)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor, None]:
        grad = grads[0].to_dense() if grads[0].is_sparse else grads[0]
        return None, ctx.group.cut(grad, ctx.layout), None


class _OwnPart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: TensorGroup, whole: Tensor, layout: SplitLayout) -> Tensor:
        ctx.group, ctx.layout = group, layout
        return group.cut(whole, layout).clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor, None]:
        return None, ctx.group.join(grads[0], ctx.layout), None
