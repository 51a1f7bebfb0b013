"""Tokens on their way to the workers that have their experts, and back; gradients the other way.

```
            rows by expert   to the owners   by expert   experts   by member   back    rows
member 0    0 0 1 2 3 3      0 0 1|0 1 1     0 0 0|1 1 1    ─►      …           ─►     y y y y y y
member 1    0 1 1 2 2 3      2 3 3|2 2 3     2 2 2|3 3 3    ─►      …           ─►     y y y y y y
```
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from covey.errors import PlanError, WireError
from covey.message import Address
from covey.model.compute_shares import in_backward, in_forward
from covey.nn.experts import Experts
from covey.parallelism.axis import EXPERT
from covey.parallelism.experts.expert_messages import ExpertRows, ExpertTokens
from covey.parallelism.tensor.split_tensor import whole_value
from covey.program import Node
from covey.vector import Vector, chunk

TURNS = 1 << 20  # more exchanges than one step can have
EXCHANGES = 4  # of one call of a layer: there and back, and both again for gradients


class ExpertGroup:
    """One member's place among those that divide the experts, and the step that they compute."""

    def __init__(self, me: int, members: int) -> None:
        self.me, self.members = me, members
        self.weight = 1.0  # of this member's batch in the mean over the group's
        self.silent = False  # this member has no samples left: it serves the others
        self._node: Node | None = None
        self._calls = self._before = 0  # of layers, in this step and in the one before it
        self._part: tuple[int, int] | None = None  # of a step: exchanges so far, and how many it had before
        self._counts: dict[Hashable, int] = {}

    @contextmanager
    def step(self, node: Node, weight: float) -> Iterator[None]:
        """(On the compute thread) Meanwhile layers exchange tokens; this member's batch has this `weight`."""
        self._node, self._calls, self.weight = node, 0, weight
        try:
            yield
        finally:
            self._node, self._before = None, self._calls

    @contextmanager
    def part(self, which: Hashable, silent: bool) -> Iterator[None]:
        """Meanwhile a part of a step is computed by itself, such as the forward of a micro-batch."""
        self._part, self.silent = (0, self._counts.get(which, 2)), silent
        try:
            yield
        finally:
            self._counts[which] = self._part[0]
            self._part, self.silent = None, False

    def call(self) -> int:
        """The number of the first exchange of a layer's next call."""
        self._calls += 1
        return self.node.step * TURNS + (self._calls - 1) * EXCHANGES

    @property
    def node(self) -> Node:
        assert self._node is not None, "tokens are exchanged only in a step"
        return self._node

    @property
    def others(self) -> list[int]:
        return [member for member in range(self.members) if member != self.me]

    def progress(self, number: int) -> float:
        """How much of the work is done at an exchange: each call has its turn in forward and in backward."""
        if self._part is not None:
            done, count = self._part
            self._part = done + 1, count
            return min(1.0, (done + 1) / (count + 1))
        call, turn = divmod(number % TURNS, EXCHANGES)
        share = min(1.0, (call + 1) / (max(self._before, self._calls) + 1))
        return in_forward(share) if turn < 2 else in_backward(1 - share)

    async def swap(self, number: int, given: Sequence[Tensor], want: Sequence[int]) -> list[Tensor]:
        """Send each member its rows, and take those of which it must have sent this many; none are not sent."""
        for member in self.others:
            if len(given[member]):
                rows = Vector([given[member].reshape(-1)])
                await self.node.send(Address(EXPERT, member), ExpertRows(number, rows), priority=1)
        found = list(given)
        for member in self.others:
            found[member] = given[self.me][:0]
            if want[member]:
                sender = Address(EXPERT, member)
                came = await self.node.receive(ExpertRows, sender=sender, step=number)
                found[member] = _shaped(came.rows, want[member], given[self.me], sender)
        return found


@dataclass(eq=False)
class ExpertCall:
    """One forward of a layer: who has sent how many tokens to whom."""

    group: ExpertGroup
    number: int  # of its first exchange
    sent: list[int]  # rows to each member
    counts: list[list[int]] = field(default_factory=list)  # of each member's rows for each of the own experts

    @property
    def came(self) -> list[int]:
        return [sum(counts) for counts in self.counts]

    async def dispatch(self, layer: int, rows: Sequence[Tensor], counts: Sequence[list[int]]) -> list[Tensor]:
        """Send every member the tokens of its experts, and take theirs."""
        group, node = self.group, self.group.node
        for member in group.others:
            tokens = ExpertTokens(self.number, layer, counts[member], Vector([rows[member].reshape(-1)]))
            await node.send(Address(EXPERT, member), tokens, priority=1)
        found, self.counts = list(rows), list(counts)
        for member in group.others:
            sender = Address(EXPERT, member)
            came = await node.receive(ExpertTokens, sender=sender, step=self.number)
            if came.layer != layer:
                raise PlanError(
                    f"expert member {member} computes layer {came.layer} of experts where member {group.me} computes "
                    f"layer {layer}: with mesh(expert=...) all workers must compute these layers in the same order"
                )
            if len(came.counts) != len(counts[group.me]) or min(came.counts) < 0:
                raise WireError(f"{sender} sent tokens for {len(came.counts)} experts, not {len(counts[group.me])}")
            self.counts[member] = came.counts
            found[member] = _shaped(came.rows, sum(came.counts), rows[group.me], sender)
        return found

    def swap(self, turn: int, rows: Tensor, sizes: Sequence[int], want: Sequence[int]) -> Tensor:
        """(On the compute thread) The exchange of this turn: rows by member for rows by member."""
        number = self.number + turn
        parts = rows.split(list(sizes))
        return torch.cat(self.group.node.consult(self.group.swap(number, parts, want), self.group.progress(number)))


class DividedExperts:
    """Computes a layer of which this member has some experts: in the place of `Experts.computed`."""

    def __init__(self, layer: Experts, number: int, group: ExpertGroup) -> None:
        self.layer, self.number, self.group = layer, number, group
        self.owners = [chunk(len(layer.experts), group.members, member) for member in range(group.members)]
        first, stop = self.owners[group.me]
        self.mine = list(layer.experts)[first:stop]
        weight = layer.router.weight
        with torch.no_grad():
            self.outputs = self.mine[0](torch.zeros(1, layer.width, dtype=weight.dtype, device=weight.device)).shape[-1]

    def __call__(self, rows_ND: Tensor, counts: Sequence[int]) -> Tensor:
        rows, group, rows_ND = len(rows_ND), self.group, whole_value(rows_ND, "Experts")
        if group.silent:
            rows_ND, counts = rows_ND[:0], [0] * len(counts)
        each = [list(counts[first:stop]) for first, stop in self.owners]
        call = ExpertCall(group, group.call(), [sum(some) for some in each])
        anchor = torch.zeros((), requires_grad=True)  # backward must come here, whatever needs gradients on this member
        came_MD = _ToOwners.apply(rows_ND, anchor, call, self.number, each)  # type: ignore[no-untyped-call]
        made_MO = self._computed(came_MD, call.counts)
        made_NO: Tensor = _ToSenders.apply(made_MO, came_MD, call)  # type: ignore[no-untyped-call]
        return torch.cat([made_NO, made_NO.new_zeros(rows, self.outputs)]) if group.silent else made_NO

    def _computed(self, came_MD: Tensor, counts: Sequence[Sequence[int]]) -> Tensor:
        """What the own experts make of these rows, which come by member and leave by member."""
        several = range(len(self.mine))
        parts = came_MD.split([count for of_member in counts for count in of_member])
        made = []
        for which, expert in enumerate(self.mine):
            rows = torch.cat([parts[member * len(self.mine) + which] for member in range(len(counts))])
            result = whole_value(expert(rows), "Experts") if len(rows) else rows.new_zeros(0, self.outputs)
            made.append(result.split([of_member[which] for of_member in counts]))
        return torch.cat([made[which][member] for member in range(len(counts)) for which in several])


class _ToOwners(torch.autograd.Function):
    """Tokens go to the members that have their experts; their gradients come back."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, anchor: Tensor, call: ExpertCall, layer: int, counts: list[list[int]]
    ) -> Tensor:  # fmt: skip
        ctx.call = call
        program = call.dispatch(layer, rows.split(call.sent), counts)
        return torch.cat(call.group.node.consult(program, call.group.progress(call.number)))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        call = ctx.call
        if not ctx.needs_input_grad[0]:  # on no member: the layer takes samples
            return None, None, None, None, None
        return call.swap(3, grads[0], call.came, call.sent) / call.group.weight, None, None, None, None


class _ToSenders(torch.autograd.Function):
    """What experts made goes back to the members that sent the tokens; gradients come from them.

    A gradient counts by its member's samples when all are averaged, so experts get it with that weight. What `came` is
    given, too, so that backward goes on to where it came from, even if no expert here had a token.
    """

    @staticmethod
    def forward(ctx: Any, made: Tensor, came: Tensor, call: ExpertCall) -> Tensor:
        ctx.call = call
        return call.swap(1, made, call.came, call.sent)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        call = ctx.call
        return call.swap(2, grads[0] * call.group.weight, call.sent, call.came), None, None


def _shaped(rows: Vector, count: int, like: Tensor, sender: Address) -> Tensor:
    """Rows as they came over a wire, if they are as many as were told."""
    flat = rows.parts[0] if len(rows.parts) == 1 else None
    if flat is None or flat.dtype != like.dtype or flat.numel() != count * like.shape[-1]:
        raise WireError(f"{sender} sent {rows}, which are not {count} rows of {like.shape[-1]} x {like.dtype}")
    return flat.to(like.device).view(count, like.shape[-1])
