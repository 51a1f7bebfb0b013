"""A client's program: one visit. It keeps nothing until the next one."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from covey.federated.local_training import ClientTraining, ClientWork
from covey.federated.messages import COORDINATOR, CheckIn, ClientReport, ComeBack, Configuration
from covey.membership import Departed
from covey.program import Effect, Node

SecureReporting = Callable[[Node, Configuration, ClientTraining], Coroutine[Any, Any, ComeBack | Departed]]
"""How a client trains and reports where nobody may see its report; when to come again, or that nobody says so."""

RETRY = 30.0  # seconds, at most, after which a client comes again that was given no answer


class SumNews:
    """What a client hears of the sums of its rounds."""

    def opens(self, number: int, clients: int) -> None:
        """It helps to open a sum of so many clients."""

    def withdrew(self, number: int, why: str) -> None:
        """It takes no part in a sum, or no further one."""


async def visit(node: Node, training: ClientTraining, secure: SecureReporting | None = None) -> float:
    """Check in, train if chosen, report; the seconds until it comes again."""
    await node.send(COORDINATOR, CheckIn())
    answer = await node.receive_any(Configuration, ComeBack, Departed)
    if isinstance(answer, Configuration) and secure:
        answer = await secure(node, answer, training)
    elif isinstance(answer, Configuration):
        done = await node.compute(ClientWork(training, node.rank, answer), training.load(node.rank))
        report = ClientReport(answer.number, done.samples, done.loss, done.update, done.buffers)
        await node.send(answer.sender, report, loan=True)
        answer = await node.receive_any(ComeBack, Departed, sender=answer.sender)
    if isinstance(answer, Departed):  # the service has lost the role that it waits for: nobody says when to come again
        return node.rng.uniform(0, RETRY)
    assert isinstance(answer, ComeBack)
    return node.rng.uniform(answer.earliest, answer.latest)


def visits(training: ClientTraining, secure: SecureReporting | None = None) -> Any:
    """The program of every client."""

    def begin(node: Node) -> Coroutine[Effect[Any], Any, float]:
        return visit(node, training, secure)

    return begin
