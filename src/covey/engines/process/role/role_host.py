"""What a node can ask of the process engine without waiting, and most of a role's checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from covey.checkpoint import RoleState
from covey.engines.mailbox import Mailbox
from covey.engines.pace import Pace
from covey.engines.process import shared_vector
from covey.engines.process.role.compute_thread import ComputeThread
from covey.engines.process.role.notice import DepartureNotice
from covey.engines.process.role.shared_sum import SharedSum
from covey.engines.random_streams import chance
from covey.engines.remembered import Remembered
from covey.engines.transport.zmq import ZmqTransport
from covey.membership import Incarnation
from covey.message import Address, Message
from covey.program import Effect, Memory, Node, Receive
from covey.servers.goodbye import Goodbye
from covey.strategy import Plan, Role
from covey.vector import Vector

T = TypeVar("T")


class RoleHost:
    """The host of a role's programs: its pace, its mailbox, its memories, its chance."""

    def __init__(
        self, plan: Plan, role: Role, compute_thread: ComputeThread, links: ZmqTransport, kept: RoleState | None
    ) -> None:
        self.plan, self.role, self.compute_thread, self.links, self.kept = plan, role, compute_thread, links, kept
        self.pace = Pace(plan.steps_of(role.address.rank) if role.trains else 0, kept.done if kept else 0)
        self.mailbox = Mailbox(links.taken)
        self.goodbyes: dict[Address, Goodbye] = {}  # that have come
        self.sums: SharedSum | None = None
        self.notice = DepartureNotice()
        self.incarnation = Incarnation(
            links.incarnation, elastic=plan.elastic, leased=plan.least > 0, replicas=plan.replicas,
            others=links.restarted, resumed=plan.resumed,
        )  # fmt: skip
        again = f"life {links.incarnation}" if links.incarnation else ""
        self.rng = chance(plan.seed, role.alias or role.address, again)
        self.memories = Remembered(role.address, kept)
        if kept:
            kept.restore_chance(self.rng)
            self.mailbox.waiting.extend(kept.mailbox)
            links.credits.kept(kept.mailbox)

    measured: Callable[[str, float], None] = staticmethod(lambda kind, value: None)
    """Hears of what programs measure."""

    def node(self) -> Node:
        """For a program that begins, or begins again from the top with what is remembered."""
        self.memories.begin_again()
        return Node(self.me, self.plan.limits, self, self.rng, self.plan.seed)

    @property
    def me(self) -> Address:
        return self.role.address

    @property
    def breakable(self) -> bool:
        """Whether waits for peers end when one of them is restarted."""
        return self.plan.elastic and self.role.together

    @property
    def step(self) -> int:
        return self.pace.step

    def training(self) -> bool:
        return self.pace.training()

    def receive_nowait(self, want: Receive) -> Message | None:
        return self.mailbox.take(want)

    def room(self, to: Address) -> bool:
        return self.links.room(to)

    def remember(self, name: str, value: T) -> Memory[T]:
        return self.memories.remember(name, value, begun=self.kept is None or self.pace.step >= self.kept.done)

    def post(self, message: Message, progress: float) -> None:
        self.compute_thread.post(message)

    def consult(self, program: Coroutine[Effect[Any], Any, T], progress: float) -> T:
        return self.compute_thread.consult(program)  # type: ignore[no-any-return]

    def share(self, vector: Vector, place: int) -> Vector:
        return shared_vector.share(vector, place)

    def measure(self, kind: str, value: float) -> None:
        self.measured(kind, value)

    def machine_of(self, who: Address) -> object:
        return self.plan.sites.get(str(who))

    def hear(self, message: Message) -> None:
        """A message has come."""
        if isinstance(message, Goodbye):
            self.goodbyes[message.sender] = message

    def give_again(self, unseen: list[Message]) -> None:
        """Let a program that begins again find what had come and it had not looked at, and every goodbye."""
        waiting = {id(message) for message in (*unseen, *self.mailbox.waiting)}
        said = [goodbye for goodbye in self.goodbyes.values() if id(goodbye) not in waiting]
        self.mailbox.waiting = [*unseen, *self.mailbox.waiting, *said]  # each after all else from its sender
        self.links.credits.kept([*unseen, *said])

    def discard_mail(self) -> None:
        """Nobody will read what lies here."""
        left, self.mailbox.waiting = self.mailbox.waiting, []
        for message in left:
            self.links.taken(message)

    def forget_sums(self) -> None:
        if self.sums is not None:
            self.sums.reset()
