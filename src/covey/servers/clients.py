"""The servers as a client sees them: the piece that each of them holds, and how what it is sent is encoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from covey.exchange.codec import Codec, dense, seed
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.model.scored import NOTHING
from covey.program import Memory, Node
from covey.servers.goodbye import Goodbye
from covey.servers.standing import rejoin
from covey.vector import Vector


class ListedMemory:
    """One item of a remembered list; it has its `value`, as a memory of its own has."""

    def __init__(self, items: list[Any], at: int) -> None:
        self._items, self._at = items, at

    @property
    def value(self) -> Any:
        return self._items[self._at]

    @value.setter
    def value(self, value: Any) -> None:
        self._items[self._at] = value


class PieceClient:
    """A client of `servers` that divide the parameters; `named`: what seeds each server's coder, if not its number."""

    def __init__(
        self, node: Node, replica: Replica, servers: Sequence[Address], codec: Codec = dense,
        named: Sequence[object] = (),
    ) -> None:  # fmt: skip
        self.node, self.replica, self.servers, self.codec = node, replica, servers, codec
        self.pieces = replica.pieces(len(servers))
        self.forms = [replica.form(piece) for piece in self.pieces]
        names = named or range(len(servers))
        self.coders = [
            codec.carrying().made(form, seed(node, name)) for form, name in zip(self.forms, names, strict=True)
        ]
        self.memories = self.remembered()

    def remembered(self) -> Sequence[Memory[Any] | ListedMemory]:
        """What each server's coder carries on."""
        items = self.node.remember("codecs", [coder.memory for coder in self.coders]).value
        return [ListedMemory(items, at) for at in range(len(items))]

    def place(self, index: int) -> Vector:
        """Where the replica has a server's piece."""
        return self.replica.flat.cut(self.pieces[index])

    def buffers(self, index: int) -> Vector:
        """The float buffers, of which the first server keeps the mean."""
        return self.replica.buffers if index == 0 else NOTHING

    def encode(self, index: int, piece: Vector) -> Vector:
        """What travels to a server."""
        memory = self.memories[index]
        wire, memory.value = self.coders[index].encode(piece, memory.value)
        return wire

    async def rejoin(self, *stale: type[Message]) -> bool:
        """Begin, or go on in the place of a lost worker; whether a step may be left to do."""
        await self.note_residuals()
        return await rejoin(self.node, self.replica, self.servers, *stale)

    async def note_residuals(self) -> None:
        """Tell, in a new incarnation, that what the codec still owed is lost."""
        if self.node.incarnation.enters and any(memory.value is not None for memory in self.memories):
            await self.node.note("lost residuals")

    async def leave(self) -> None:
        await self.node.broadcast(self.servers, Goodbye())


def caught_up(node: Node, step: int) -> bool:
    """Skip the steps that were done without this worker; False when its last was among them."""
    while node.step < step:
        if not node.training():
            return False
    return True
