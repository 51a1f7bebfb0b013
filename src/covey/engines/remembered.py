"""Values that a role's programs remember across a restart, by name."""

from __future__ import annotations

from typing import Any, TypeVar

from covey.checkpoint import RoleState
from covey.errors import CheckpointError
from covey.membership import MEMBERSHIP
from covey.message import Address
from covey.names import option
from covey.program import Memory

T = TypeVar("T")


class Remembered:
    """The memories of one role, each under a name of its own; `kept` is the role as a checkpoint has it."""

    __slots__ = ("_asked", "_kept", "_past", "_who")

    def __init__(self, who: Address, kept: RoleState | None = None) -> None:
        self._who, self._kept = who, kept
        self._past: dict[str, Any] = {}  # what the program had remembered when it began again
        self._asked: dict[str, Memory[Any]] = {}

    def remember(self, name: str, value: T, begun: bool = False) -> Memory[T]:
        """The memory of this name: with the kept value where there is one, else with this one.

        Only a program that has `begun` a step may remember what the checkpoint lacks: it had not come so far. What
        tells of members of the run is lacking in the checkpoint of a run without such.
        """
        if name in self._asked:
            raise ValueError(f"{self._who} remembers two things by one name, {name!r}: give one of them another")
        if name in self._past:
            value = self._past[name]
        elif self._kept and (name in self._kept.memories or not (begun or name.startswith(MEMBERSHIP))):
            value = self._recalled(self._kept, name, value)
        memory = self._asked[name] = Memory(value)
        return memory

    def _recalled(self, kept: RoleState, name: str, fresh: T) -> T:
        if name not in kept.memories:
            has = ", ".join(map(repr, kept.memories)) or "nothing"
            raise CheckpointError(
                f"the checkpoint has no {name!r} of {self._who}, only {has}: another version of covey or of its "
                f"strategy wrote it; go on with that version, or start again without {option('resume')}"
            )
        return kept.recall(name, fresh)

    def begin_again(self) -> None:
        """The program begins from its top, with what it remembers now."""
        self._past, self._asked = {**self._past, **self._now()}, {}

    def values(self) -> dict[str, Any]:
        """What must be kept now: all that is remembered, and what the program has not asked back yet.

        What tells of members of the run, and is not asked for, is of an earlier run, and too old for any other.
        """
        kept = self._kept.memories if self._kept else {}
        lasting = {name: value for name, value in kept.items() if not name.startswith(MEMBERSHIP)}
        return {**lasting, **self._past, **self._now()}

    def _now(self) -> dict[str, Any]:
        return {name: memory.value for name, memory in self._asked.items()}
