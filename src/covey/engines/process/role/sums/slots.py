"""Where the members of a group lay the numbers of small sums out: in either half of their slots, which never move."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from covey.engines.process.role.native_sums import Group
from covey.engines.transport.shared.blocks import rounded
from covey.engines.transport.shared.segment import SLOT, SharedSegment
from covey.message import Address

HEAD = 64  # bytes in front of what is laid out
HALF = SLOT // 2  # bytes that are laid out at most
LAYOUTS = 64  # sizes of sums whose places are remembered


class SlotLayout(NamedTuple):
    """Where the members of a group lay out parts of certain sizes, which all such sums use."""

    half: int
    parts: list[list[Tensor]]  # those of each part, in the order of the group
    own: list[Tensor]
    shares: list[memoryview[float]]
    own_share: memoryview[float]


class Slots:
    """The layouts of one role's small sums."""

    def __init__(self, me: Address, segment: SharedSegment) -> None:
        self.me, self.segment = me, segment
        self.turns: dict[Group, int] = {}  # the half that a group used last; all its members know the same
        self._layouts: dict[object, tuple[SlotLayout, ...]] = {}  # in either half; none: the parts are too large

    def next(self, group: Group, parts: list[Tensor]) -> SlotLayout | None:
        """Where each member lays such parts out, in the half whose turn it is; None if they are too large for that."""
        key = group, *[(part.dtype, part.numel()) for part in parts]
        halves = self._layouts.get(key)
        if halves is None:
            if len(self._layouts) >= LAYOUTS:
                self._layouts.clear()
            small = HEAD + sum(rounded(part.nbytes) for part in parts) <= HALF
            halves = tuple([self._layout(group, parts, half) for half in ((0, 1) if small else ())])
            self._layouts[key] = halves
        if not halves:
            return None
        half = self.turns[group] = 1 - self.turns.get(group, 1)
        return halves[half]

    def _layout(self, group: Group, parts: list[Tensor], half: int) -> SlotLayout:
        slots = [self.segment.slot(who)[half * HALF : (half + 1) * HALF] for who in group]
        offset, found, me = HEAD, [], group.index(self.me)
        for part in parts:
            place = partial(torch.frombuffer, dtype=part.dtype, count=part.numel(), offset=offset)
            found.append(list(map(place, slots)))
            offset += rounded(part.nbytes)
        shares = [slot[:HEAD].cast("d") for slot in slots]  # how much a member's numbers count: the first of these
        return SlotLayout(half, found, [tensors[me] for tensors in found], shares, shares[me])
