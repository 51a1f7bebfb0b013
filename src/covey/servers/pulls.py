"""`+ pull`: a server sends the difference to the parameters that a worker already has."""

from __future__ import annotations

from typing import NamedTuple

from covey.exchange.codec import Codec, Coder
from covey.exchange.differences import Shadows, difference_coder
from covey.model.flat import Form
from covey.model.replica import Replica
from covey.program import Node
from covey.vector import Piece, Vector


class Given(NamedTuple):
    """What a client is sent: parameters as they are, or an encoded change of those that it has."""

    wire: Vector
    whole: int


class Pulls:
    """A server's parameters as each of its clients has them. The first time they travel whole.

    Clients that are all given every version have the same parameters, so that one shadow and one wire do for all.
    """

    def __init__(self, node: Node, form: Form, codec: Codec, together: bool, name: str = "pull") -> None:
        self.shadows = Shadows(node, name, difference_coder(node, form, codec, "pull"), Vector(()))
        # the version that was given whole, where all are given the same
        self.first = node.remember(f"{name}.first", [-1]).value
        self.together, self.last = together, (-1, Given(Vector(()), 1))

    def give(self, rank: int, params: Vector, version: int) -> Given:
        """What brings this client near to the parameters."""
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

    def of(self, rank: int) -> Vector:
        """What this client has."""
        return self.shadows.of(0 if self.together else rank)


class Truth:
    """An owner's own slice as it is, and is scored; its replica has it as all others have it (Seide et al. 2014)."""

    def __init__(self, node: Node, replica: Replica, piece: Piece, pulls: Pulls) -> None:
        whole = replica.flat.clone()
        self.mine, self.here, self.pulls = whole.cut(piece), replica.flat.cut(piece), pulls
        kept = node.remember("truth", self.mine)
        self.mine.copy_(kept.value)
        kept.value = self.mine
        replica.show(whole.join(replica.buffers))

    def back(self) -> None:
        """Let the replica have it as it is, to be changed."""
        self.here.copy_(self.mine)

    def give(self, step: int) -> Given:
        """Keep what it has become; the replica has what others will have of it after this."""
        self.mine.copy_(self.here)
        given = self.pulls.give(0, self.mine, step)
        self.here.copy_(self.pulls.of(0))
        return given


def land(place: Vector, given: Given, back: Coder | None) -> None:
    """(Client) Bring what was given to where the parameters lie, which nobody else has changed."""
    if given.whole or back is None:
        place.copy_(given.wire)
    else:
        place.add_(back.decode(given.wire))


class Received:
    """A server's parameters as a client has them that also moves its own copy."""

    def __init__(self, node: Node, name: str, form: Form, codec: Codec) -> None:
        self.shadow = Shadows(node, name, difference_coder(node, form, codec, "pull"), Vector(()))

    def read(self, given: Given) -> Vector:
        """The parameters after what was given."""
        if given.whole:
            self.shadow.begin(given.wire)
            return given.wire
        return self.shadow.hear(given.wire)
