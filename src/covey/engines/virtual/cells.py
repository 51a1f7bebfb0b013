"""What a role remembers over a restart: values in the order in which its program asked for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from covey.program import Memory

T = TypeVar("T")


class Cells:
    """The memory cells of one role; `kept` are the values of a run that was interrupted."""

    __slots__ = ("_cells", "_kept")

    def __init__(self, kept: Sequence[Any] = ()) -> None:
        self._cells: list[Memory[Any]] = []
        self._kept = kept

    def remember(self, value: T) -> Memory[T]:
        """A new cell; it holds the kept value of the same place where there is one."""
        place = len(self._cells)
        cell: Memory[T] = Memory(self._kept[place] if place < len(self._kept) else value)
        self._cells.append(cell)
        return cell

    def values(self) -> list[Any]:
        """What must be kept now."""
        return [cell.value for cell in self._cells]
