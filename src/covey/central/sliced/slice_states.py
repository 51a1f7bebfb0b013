"""Which slices does a worker own where workers come and go, and what does it know of each?

There are as many slices as seats. A slice is owned by the worker in its seat, or else by the next one that is there.
The one after that keeps a copy of the optimizer's state of the slice, and of its parameters where others have rounded
ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from covey.central.sliced.optimizer_parts import load_optimizer, optimizer_state, shards_of, union
from covey.exchange.codec import Codec, seed
from covey.message import Address
from covey.model.replica import Replica
from covey.program import Node
from covey.servers.common_states import CommonBuffers
from covey.servers.packed_state import packed, unpacked
from covey.servers.pulls import Landing, own_slice
from covey.strategy import workers
from covey.vector import Piece, Vector

SliceState = dict[str, Any]


def owner_and_keeper(number: int, members: Sequence[int], seats: int) -> list[int]:
    """Who owns the slice of this number, and who keeps a copy of its state; one that is alone keeps none."""
    return sorted(members, key=lambda rank: (rank - number) % seats)[:2]


class SliceStates:
    """The slices of one worker; all else is what the workers have in common after a round."""

    counts = alike = True
    lends = False

    def __init__(self, node: Node, replica: Replica, codec: Codec) -> None:
        self.node, self.replica, self.codec = node, replica, codec
        self.pieces = replica.pieces(node.workers)
        self.kept: dict[int, SliceState] = {}  # after the last round that is done: what it owns, and the copies
        self.fresh: dict[int, SliceState] = {}  # the same after the round under way
        self.seen = replica.progress.seen  # samples, after the last round that is done
        self.buffers = replica.buffers  # after the round under way
        self.common: CommonBuffers | None = None  # all buffers, after the last round that is done
        self.seat(range(node.workers))

    # -- who has which -------------------------------------------------------------------------------------------------

    def seat(self, members: Sequence[int]) -> None:
        """These workers are there: step what this one owns of now on, from its state after the last round."""
        replica, layout, me = self.replica, self.replica.layout, self.node.rank
        self.members = list(members)
        held = {number: owner_and_keeper(number, self.members, self.node.workers) for number in range(len(self.pieces))}
        self.owned = [number for number, who in held.items() if who[0] == me]
        self.kept = {number: state for number, state in self.kept.items() if me in held[number]}
        unions = {rank: union(self.pieces, [n for n, who in held.items() if who[0] == rank]) for rank in self.members}
        self.owned_by, self.piece = unions, unions[me]
        self._lay_out(unions)
        replica.progress.restore(self.seen, replica.progress.scores)
        replica.updates.keep(layout, self.piece)
        self._load()

    def _lay_out(self, unions: Mapping[int, Piece]) -> None:
        """How what goes to each owner, and comes from it, is written."""
        node, replica, codec = self.node, self.replica, self.codec
        addresses, forms = workers(node.workers), {rank: replica.form(piece) for rank, piece in unions.items()}
        made = codec.carrying().made
        self.coders = {rank: made(form, seed(node, addresses[rank])) for rank, form in forms.items()}
        back = codec.for_weights()
        weights = [back.made(forms[rank], seed(node, addresses[rank], "back")) for rank in unions] if back else []
        self.rounded = back is not None  # others have the parameters of a slice only as they travel
        self.landing = Landing(node, list(forms.values()), codec, weights)
        place = self.members.index(node.rank)
        self.slice = own_slice(node, replica, self.piece, codec, weights[place : place + 1])

    @property
    def keeper(self) -> Address | None:
        """Who keeps a copy of what this worker owns."""
        return self._neighbour(1)

    @property
    def kept_for(self) -> Address | None:
        """Of whose slices this worker keeps a copy."""
        return self._neighbour(-1)

    def _neighbour(self, distance: int) -> Address | None:
        if len(self.members) == 1:
            return None
        place = self.members.index(self.node.rank) + distance
        return Address("worker", self.members[place % len(self.members)])

    # -- states --------------------------------------------------------------------------------------------------------

    def packed(self) -> Vector:
        """The states of what this worker owns, as they are now."""
        found = dict[str, Any]()
        for number, shards in self._shards().items():
            params = {"params": self.replica.flat.cut(self.pieces[number])} if self.rounded else {}
            found[str(number)] = {"optimizer": optimizer_state(self.replica, shards), **params}
        return packed(found)

    def _load(self) -> None:
        """Go on from the states after the last round; the optimizer of a slice of which nobody has one begins anew."""
        for number, shards in self._shards().items():
            if state := self.kept.get(number):
                load_optimizer(self.replica, shards, state["optimizer"])
                if self.rounded:
                    self.replica.flat.cut(self.pieces[number]).copy_(state["params"])

    def _shards(self) -> dict[int, list[nn.Parameter]]:
        return shards_of(self.replica, self.pieces, self.owned)

    def note_round(self, own: Vector) -> None:
        """This worker has done its part of a round; `own`: its states, packed, of which nothing changes any more."""
        self.fresh = read_states(own, self.node.address)
        self.buffers = self.replica.buffers.clone()

    def finish(self) -> None:
        """The round is done: the outcome does not go with any one worker."""
        if self.fresh:
            self.kept, self.fresh = self.fresh, {}
        self.seen = self.replica.progress.seen

    # -- what all have in common ---------------------------------------------------------------------------------------

    def give(self) -> dict[str, Any]:
        common = self.common.state() if self.common else {}
        state = {**self.replica.state(), **common, "seen": self.seen}  # not those of a round that is undone
        del state["optimizer"]
        return {**state, "params": self._as_others_have_them()}

    def _as_others_have_them(self) -> Vector:
        """The parameters; what this worker owns as it travels, once it has."""
        params, coder = self.replica.flat, self.slice.coder
        if coder is None or not self.kept:
            return params
        params = params.clone()
        own = params.cut(self.piece)
        own.copy_(coder.decode(coder.encode(own, None)[0]))
        return params

    def take(self, state: dict[str, Any], restarted: bool) -> None:
        """A round is done that this worker, if it was there, has done its part of: who has done it has all slices."""
        replica = self.replica
        replica.restore({**state, "optimizer": replica.optimizer.state_dict()})
        if not restarted:
            replica.buffers.copy_(self.buffers)
        self.finish()
        self.settle()

    def settle(self) -> None:
        if self.common is None:
            self.common = CommonBuffers(self.replica.layout)
        self.common.keep()


def read_states(states: Vector, sender: Address) -> dict[int, SliceState]:
    """The states of slices that somebody has packed."""
    return {int(number): state for number, state in unpacked(states, sender).items()}
