"""Two roles that wait for each other: a plan without any strategy, for the engine alone."""

from __future__ import annotations

import msgspec
import torch
from torch import nn

from covey.engines.process.contacts import Contacts
from covey.engines.process.role.compute_thread import ComputeThread
from covey.engines.process.role.role_process import RoleLines, play
from covey.engines.process.snapshot_parts import SCORER
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.model.scored import ScoredModel
from covey.program import Node
from covey.run.roles import score_for
from covey.strategy import Plan, Role, workers

ONE, TWO = workers(2)


class Token(Message):
    """Whoever has it may go on."""

    wire_name = "test.deadlock.token"

    step: int


async def wait(node: Node, replica: Replica) -> None:
    """Wait for the other's token before giving one's own."""
    other = TWO if node.address == ONE else ONE
    for step in node.steps():
        await node.receive(Token, sender=other, step=step)
        await node.send(other, Token(step))


PLAN = Plan(
    roles=(Role(ONE, wait, trains=True, scored=True), Role(TWO, wait, trains=True)), limits=(5, 5), lockstep=True
)


def enter(data: bytes, handed: bytes, me: Address) -> None:
    """`data` are the contacts."""
    contacts = msgspec.msgpack.decode(data, type=Contacts)
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    with RoleLines(me, contacts) as post:
        if me == SCORER:
            score_for(post, PLAN, ScoredModel(model, None))
        else:
            play(post, PLAN, Replica(model, lambda pairs: torch.optim.SGD(pairs, lr=0.1)), None, ComputeThread.serve)
