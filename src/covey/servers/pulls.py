"""`+ pull`: a server sends the difference to the parameters that a worker already has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from covey.exchange.codec import Codec, Coder
from covey.exchange.differences import Shadows, difference_coder
from covey.message import Address, Message
from covey.model.flat import Form
from covey.model.replica import Replica
from covey.program import Node
from covey.vector import Piece, Vector

M = TypeVar("M", bound=Message)


class Given(NamedTuple):
    """What a client is sent: parameters as they are, or an encoded change of those that it has."""

    wire: Vector
    whole: int


class Whole:
    """A server's parameters, which are given as they are."""

    def give(self, rank: int, params: Vector, version: int) -> Given:
        """What brings this client near to the parameters."""
        return Given(params, 1)

    def of(self, rank: int, params: Vector) -> Vector:
        """What this client has after that."""
        return params


class Pulls(Whole):
    """A server's parameters as each of its clients has them. The first time they travel whole.

    Clients that are all given every version have the same parameters, so that one shadow and one wire do for all.
    """

    def __init__(self, node: Node, form: Form, codec: Codec, together: bool, name: str = "pull") -> None:
        self.shadows = Shadows(node, name, difference_coder(node, form, codec, "pull"), Vector(()))
        # the version that was given whole, where all are given the same
        self.first = node.remember(f"{name}.first", [-1]).value
        self.together, self.last = together, (-1, Given(Vector(()), 1))

    def give(self, rank: int, params: Vector, version: int) -> Given:
        if self.together:
            return self._to_all(params, version)
        if rank not in self.shadows.kept:
            self.shadows.begin(params, rank)
            return Given(params, 1)
        return Given(self.shadows.tell(params, rank), 0)

    def _to_all(self, params: Vector, version: int) -> Given:
        if self.first[0] < 0:
            self.first[0] = version
            self.shadows.begin(params)
        if version == self.first[0]:
            return Given(params, 1)
        if version != self.last[0]:
            self.last = version, Given(self.shadows.tell(params), 0)
        return self.last[1]

    def of(self, rank: int, params: Vector) -> Vector:
        return self.shadows.of(0 if self.together else rank)


def pulls(node: Node, form: Form, codec: Codec, together: bool, name: str = "pull") -> Whole:
    """How a server gives out its parameters with a codec."""
    return Pulls(node, form, codec, together, name) if codec.pull else Whole()


class OwnSlice:
    """An owner's own slice, which others are given as it is, or as a codec for weights writes it."""

    lends = True  # whether others may read it where it lies

    def __init__(self, here: Vector, coder: Coder | None) -> None:
        self.here, self.coder = here, coder

    def back(self) -> None:
        """Let the replica have it as it is, to be changed."""

    def give(self, step: int) -> Given:
        """Keep what it has become; the replica has what others will have of it after this."""
        return Given(self.coder.encode(self.here, None)[0] if self.coder else self.here, 1)


class Truth(OwnSlice):
    """An owner's own slice as it is, and is scored; its replica has it as all others have it (Seide et al. 2014)."""

    lends = False

    def __init__(self, node: Node, replica: Replica, piece: Piece, codec: Codec) -> None:
        super().__init__(replica.flat.cut(piece), None)
        whole = replica.flat.clone()
        self.mine, self.pulls = whole.cut(piece), Pulls(node, replica.form(piece), codec, together=True)
        kept = node.remember("truth", self.mine)
        self.mine.copy_(kept.value)
        kept.value = self.mine
        replica.show(whole.join(replica.buffers))

    def back(self) -> None:
        self.here.copy_(self.mine)

    def give(self, step: int) -> Given:
        self.mine.copy_(self.here)
        given = self.pulls.give(0, self.mine, step)
        self.here.copy_(self.pulls.of(0, self.mine))
        return given


def own_slice(node: Node, replica: Replica, piece: Piece, codec: Codec, coders: Sequence[Coder]) -> OwnSlice:
    """How an owner gives out its slice with a codec; `coders`: what encodes weights, if anything does."""
    if codec.pull:
        return Truth(node, replica, piece, codec)
    return OwnSlice(replica.flat.cut(piece), coders[0] if coders else None)


class Landing:
    """(Client) Brings what was given to where parameters lie, which nobody else has changed.

    `whole`: what decodes parameters that are given whole, if they are not given as they are.
    """

    def __init__(self, node: Node, forms: Sequence[Form], codec: Codec, whole: Sequence[Coder] = ()) -> None:
        self.node, self.whole = node, whole
        self.changes = [difference_coder(node, form, codec, "pull") for form in forms] if codec.pull else []

    async def receive(self, kind: type[M], index: int, place: Vector, sender: Address, step: int) -> M:
        """Wait for what a server gives, and bring it to its place; straight there, where nothing has to be decoded."""
        into = None if self.changes or self.whole else place
        came: Any = await self.node.receive(kind, sender=sender, step=step, into=into)
        if into is None:
            self.land(index, place, Given(came.params, came.whole))
        return came  # type: ignore[no-any-return]

    def land(self, index: int, place: Vector, given: Given) -> None:
        if not given.whole and self.changes:
            place.add_(self.changes[index].decode(given.wire))
        else:
            place.copy_(self.whole[index].decode(given.wire) if self.whole else given.wire)


class Received(Landing):
    """The same for a client that also moves its own copy: it remembers a server's parameters as they were given."""

    def __init__(self, node: Node, forms: Sequence[Form], codec: Codec) -> None:
        super().__init__(node, forms, codec)
        self.shadows = [
            Shadows(node, f"received {index}", coder, Vector(())) for index, coder in enumerate(self.changes)
        ]

    def land(self, index: int, place: Vector, given: Given) -> None:
        place.copy_(self.read(index, given))

    def read(self, index: int, given: Given) -> Vector:
        """The parameters after what was given."""
        if not self.shadows:
            return given.wire
        if given.whole:
            self.shadows[index].begin(given.wire)
            return given.wire
        return self.shadows[index].hear(given.wire)
