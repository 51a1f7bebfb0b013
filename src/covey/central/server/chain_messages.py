"""What the copies of a server's parameters say to one another."""

from __future__ import annotations

from covey.central.server.shard import Pull, Push
from covey.message import Message
from covey.servers.standing import AskStanding
from covey.vector import Vector


class Applied(Message):
    """The update that makes this version, of the gradients of these steps of these workers."""

    wire_name = "chain.applied"

    version: int
    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    samples: int
    scale: float
    grad: Vector
    buffers: Vector


class GiveParams(Message):
    """To the last copy: give a worker the parameters of this version, for its step."""

    wire_name = "chain.give"

    rank: int
    step: int
    version: int
    clock: int
    lent: int = 0  # no update is made before its worker has sent a gradient

    counted = False


class TellStanding(Message):
    """To the last copy: tell a worker that asked which step is its next."""

    wire_name = "chain.tell"

    rank: int
    incarnation: int
    step: int

    counted = False


class Enlist(Message):
    """The sender takes the place of a lost copy, and has nothing yet."""

    wire_name = "chain.enlist"

    incarnation: int

    counted = kept = False


class CopyState(Message):
    """All that the sender holds, to the copy behind it."""

    wire_name = "chain.state"

    state: Vector

    counted = kept = False


class ChainClosed(Message):
    """All workers have left, and the sender ends: there is nothing more to have from it."""

    wire_name = "chain.closed"

    counted = kept = False


def answers(word: GiveParams | TellStanding, early: Message) -> bool:
    """Whether the leader had this message of a worker when it gave that answer."""
    if early.sender.rank != word.rank:
        return False
    if isinstance(early, AskStanding):
        return isinstance(word, TellStanding) and word.incarnation == early.incarnation
    assert isinstance(early, Pull | Push)
    return isinstance(word, GiveParams) and early.step < word.step + isinstance(early, Pull)
