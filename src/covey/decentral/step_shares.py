"""What workers send each other in every step, and wait for, where a lost worker is restarted.

A new incarnation goes on at the last step that its predecessor is known to have begun. What was on its way to or from
the lost one does not come any more, and nobody waits for it: each end tells the other with which step its shares begin.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

from covey.decentral.leaving import addresses
from covey.decentral.peer_membership import PeerMembership
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.program import Memory, Node
from covey.servers.standing import begin, remembered

UNKNOWN = -1  # in place of a step: the sender is a new incarnation, and does not know yet
NEVER = 1 << 62  # from one that has ended

S = TypeVar("S", bound=Message)


class ShareStanding(Message):
    """With which step the sender's shares to the receiver begin, and the first of the receiver's that it lacks."""

    wire_name = "peers.standing"

    begin: int
    lacks: int

    counted = False


class StepShares(Generic[S]):
    """The shares of all others to one worker; each other one sends its own in the order of steps.

    Args:
        kind: Of messages, with a `step`.
        near: From whom a new incarnation would rather have its model.
        weight: Of the model, where models have weights that add up.
    """

    def __init__(
        self, node: Node, replica: Replica, kind: type[S], near: Iterable[int], weight: Memory[float] | None = None
    ) -> None:  # fmt: skip
        self.node, self.replica, self.kind = node, replica, kind
        self.peers = PeerMembership(node, replica, sorted(near), weight, self._tell_restarted)
        self.elastic = self.peers.elastic
        ranks = range(node.workers) if self.elastic else ()  # else nobody asks, and each would keep all others
        self._next = remembered(node, "next", UNKNOWN if node.incarnation.number else node.step + 1)
        came: dict[int, dict[int, S]] = {rank: {} for rank in ranks}
        self._came = remembered(node, "came", came).value  # by sender and step
        self._newest = remembered(node, "newest", dict.fromkeys(ranks, -1)).value  # of what came from each
        begins = {**dict.fromkeys(ranks, 0), **{who.rank: NEVER for who in node.incarnation.ended}}
        self._begins = remembered(node, "begins", begins).value  # where the shares of each begin that still come
        self._held: dict[int, S] = {}  # the share of this step, by receiver; between two steps there is none
        # what others lack of a new incarnation's predecessor, until it knows where to go on
        self._lacked: dict[int, int] = {}

    @property
    def next(self) -> int:
        """The step of which it sends its share next."""
        return self._next.value

    async def enter(self) -> bool:
        """Begin; or in the place of a lost worker, where that was. False: who has a model has ended."""
        if not self.node.incarnation.enters:
            return True
        if not await self.peers.adopt():
            return False
        while not self._lacked.keys() >= set(self.peers.others):
            await self._hear(await self._word())
        # some may have the share of this step already: they drop the second one
        self._next.value = max(self.node.incarnation.step, max(self._lacked.values()) - 1)
        await begin(self.node, self.replica, self.next)
        await self.node.broadcast(addresses(self.peers.others), ShareStanding(self.next, 0))
        return True

    async def broadcast(self, ranks: Sequence[int], step: int, share: S) -> None:
        """Send this step's share, which stays as it is until those of the others are gathered."""
        await self.node.broadcast(addresses(ranks), share)
        self.sent(step)
        self._held = dict.fromkeys(ranks, share) if self.elastic else {}

    def sent(self, step: int) -> None:
        """This one's shares of this step have left."""
        self._next.value = step + 1

    async def gather(self, ranks: Sequence[int], step: int) -> list[S]:
        """The shares of a step, in this order, without those that were lost."""
        found = [await self.of(rank, step) for rank in ranks]
        self.forget(step)
        self._held = {}
        return [share for share in found if share is not None]

    async def of(self, rank: int, step: int) -> S | None:
        """One's share of a step; nothing if it was lost."""
        if not self.elastic:
            return await self.node.receive(self.kind, sender=Address("worker", rank), step=step)
        await self.look()
        while step not in self._came[rank] and step >= self._begins[rank]:
            await self._hear(await self._word())
        return self.now(rank, step)

    def now(self, rank: int, step: int) -> S | None:
        """One's next share, which is that of this step, if it has come."""
        if not self.elastic:
            return self.node.receive_nowait(self.kind, sender=Address("worker", rank))
        return self._came[rank].pop(step, None)

    async def since(self, rank: int, newest: int, due: int) -> tuple[list[S], int]:
        """All shares of one after the step `newest`, at least up to the one that is due; up to which step these are."""
        if not self.elastic:
            return await self._unread(rank, newest, due)
        await self.look()
        while max(newest, self._newest[rank], self._begins[rank] - 1) < due:
            await self._hear(await self._word())
        came = self._came[rank]
        found = [came[step] for step in sorted(came) if step > newest]
        came.clear()
        return found, max(newest, self._newest[rank], min(due, self._begins[rank] - 1))

    async def _unread(self, rank: int, newest: int, due: int) -> tuple[list[S], int]:
        """The same where nobody is restarted: what has come lies in the mailbox."""
        peer, found = Address("worker", rank), list[S]()
        share: Any = self.node.receive_nowait(self.kind, sender=peer)
        while share or newest < due:
            share = share or await self.node.receive(self.kind, sender=peer)
            newest = share.step
            found.append(share)
            share = self.node.receive_nowait(self.kind, sender=peer)
        return found, newest

    def forget(self, step: int) -> None:
        """Drop what is of this step or an earlier one: nobody asks for it any more."""
        for rank, came in self._came.items():
            self._came[rank] = {of: share for of, share in came.items() if of > step}

    async def look(self) -> None:
        """Hear all that has come."""
        while self.elastic and (word := self.node.receive_nowait(self.kind, ShareStanding, *self.peers.kinds)):
            await self._hear(word)

    async def part(self) -> None:
        """Before the end, where a lost worker may need this one."""
        if self.elastic:
            await self.peers.part()

    async def _word(self) -> Message:
        return await self.node.receive_any(self.kind, ShareStanding, *self.peers.kinds)

    async def _hear(self, word: Message) -> None:
        rank = word.sender.rank
        if isinstance(word, ShareStanding):
            self._lacked[rank] = word.lacks
            if word.begin != UNKNOWN:
                self._begins[rank] = word.begin
        elif isinstance(word, self.kind):
            share: Any = word
            self._newest[rank] = max(self._newest[rank], share.step)
            self._came[rank][share.step] = share
        else:
            await self.peers.hear(word)

    async def _tell_restarted(self, rank: int) -> None:
        """Tell a new incarnation what it must know; it does not know itself what this one had sent its predecessor."""
        self._lacked.setdefault(rank, 0)
        new, held = addresses([rank]), self._held.get(rank)
        await self.node.broadcast(new, ShareStanding(self.next - (held is not None), self._newest[rank] + 1))
        if held is not None:  # it went to the lost one
            await self.node.broadcast(new, held)
