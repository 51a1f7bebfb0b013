"""A role in the virtual engine: its programs, its mailbox, and what its node may ask."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, Protocol, TypeVar

from torch import Tensor

from covey.checkpoint import RoleState
from covey.engines.mailbox import Mailbox
from covey.engines.pace import Pace
from covey.engines.random_streams import chance
from covey.engines.remembered import Remembered
from covey.engines.virtual.agenda import Agenda
from covey.engines.virtual.interrupted_work import InterruptedWork
from covey.membership import Incarnation
from covey.message import Address, Message, vectors
from covey.model.replica import Replica
from covey.program import Compute, Effect, Memory, Node, Receive, Send
from covey.simulate.network import Arrival, Parcel
from covey.strategy import Plan, Role
from covey.vector import Vector

T = TypeVar("T")

WAIT: Final = object()
"""What a handler of an effect answers when the program goes on later."""


class RoleProgram:
    """One program of a role, main or companion, and what it waits for."""

    __slots__ = ("actor", "done", "main", "program", "resume", "since", "turn", "want")

    def __init__(self, actor: VirtualActor, program: Coroutine[Effect[Any], Any, None], main: bool) -> None:
        self.actor = actor
        self.program, self.resume = program, program.send
        self.main = main
        self.done = False
        self.want: Effect[Any] | None = None
        self.since = 0.0
        self.turn = 0  # counts the waits: a timeout of an earlier one means nothing

    def block(self, now: float, want: Effect[Any]) -> None:
        """From now on it waits for this."""
        self.want, self.since = want, now
        self.turn += 1

    def waits_for(self) -> str:
        """What it waits for, as people read it."""
        if isinstance(self.want, Receive):
            return str(self.want)
        if isinstance(self.want, Send):
            return f"room for {type(self.want.body).__name__} on the link to {self.want.to}"
        return "the end of its compute" if isinstance(self.want, Compute) else "the clock"

    def close(self) -> None:
        """End it where it stands."""
        self.done = True
        self.program.close()


class RunLinks(Protocol):
    """The links of a run, as a role asks them."""

    def room(self, sender: VirtualActor, to: Address) -> bool: ...
    def taken(self, actor: VirtualActor, message: Message) -> None: ...
    def measured(self, who: Address, kind: str, value: float) -> None: ...


class VirtualLink:
    """From one role to another: what is under way, who waits for room, and the newest of each kind to be replaced."""

    __slots__ = ("arrival", "held", "inside", "latest", "line", "paced", "receiver", "sender", "under_way", "unread")

    def __init__(self, sender: VirtualActor, receiver: VirtualActor, arrival: Arrival) -> None:
        self.sender, self.receiver = sender, receiver
        self.arrival = arrival  # when a message arrives that leaves now, if that is known
        self.inside = sender.host == receiver.host  # it stays on its host, where nothing counts as exchange
        self.under_way = 0  # bytes
        self.unread = 0  # bytes that lie in the receiver's mailbox
        self.line: list[tuple[RoleProgram, MessageInFlight]] = []  # short: a program waits with one message
        self.latest: dict[type[Message], MessageInFlight] = {}
        self.held: list[tuple[int, int, MessageInFlight]] = []  # a heap of what may not leave yet
        self.paced = False  # whether something is leaving at the pace that is allowed

    def counted(self) -> int:
        """Bytes in its window. What lies unread is not among them while its owner waits for more that may come here."""
        return self.under_way if self.receiver.awaits(self.sender.address) else self.under_way + self.unread

    def landed(self, flight: MessageInFlight) -> None:
        """It has arrived: no newer one can replace it any more."""
        if self.latest.get(type(flight.message)) is flight:
            del self.latest[type(flight.message)]


class MessageInFlight(Parcel, kw_only=True):
    """A message on its way."""

    message: Message
    link: VirtualLink
    payload: int  # what counts of it as exchange
    weight: int  # in the window of its link
    carries: bool  # numbers
    left_at: float = 0.0
    until: float = 0.0  # when the last of it may have left
    stages: int = 0  # that lie between it and its receiver, where both ends have to work for it
    lossy: bool = False
    number: int = 0  # on its link, where messages may be lost


@dataclass(frozen=True, slots=True)
class VirtualWorld:
    """What all roles of a run share: its plan, its agenda, its links, and one another."""

    plan: Plan
    agenda: Agenda
    links: RunLinks
    actors: dict[Address, VirtualActor]
    deliver: Callable[[VirtualActor, Message], None]
    shared_vectors: dict[int, Vector] = field(default_factory=dict)


class ActorCompute:
    """What a role computes: one piece of work at a time; `jitter` draws how long each takes."""

    __slots__ = ("busy", "jitter", "line", "posts", "talk")

    def __init__(self, jitter: Random) -> None:
        self.jitter = jitter
        self.line: list[tuple[RoleProgram, Compute[Any]]] = []  # what waits for the compute: one work of a program
        self.busy = False
        self.posts: list[tuple[Message, float]] | None = None  # while work runs: what it posts, at which progress
        self.talk: InterruptedWork | None = None  # work under way that asks in its middle


class VirtualActor:
    """The host of one role in virtual time."""

    __slots__ = (
        "address", "begun", "between", "compute", "ended", "gone", "heard", "held", "host", "incarnation", "links",
        "lost", "machine", "mailbox", "memories", "name", "node", "pace", "replica", "role", "settled", "step",
        "threads", "waiting", "world",
    )  # fmt: skip

    def __init__(
        self, role: Role, replica: Replica, world: VirtualWorld, incarnation: Incarnation,
        kept: RoleState | None = None,
        jitter: Random | None = None,
    ) -> None:  # fmt: skip
        plan, links = world.plan, world.links
        self.role, self.address, self.name = role, role.address, str(role.address)
        self.host = self.machine = str(role.home)  # traffic is counted between hosts; links join machines
        self.replica, self.world = replica, world
        self.mailbox = Mailbox(lambda message: links.taken(self, message))
        self.begun = kept.done if kept else None  # the step with which it goes on
        self.pace = Pace(plan.steps_of(role.address.rank) if role.trains else None, self.begun or 0)
        self.step = self.pace.step
        self.memories = Remembered(role.address, kept)
        self.incarnation, self.lost = incarnation, False
        self.settled = not incarnation.number  # a new incarnation knows where it goes on
        rng = chance(plan.seed, role.alias or role.address, f"life {incarnation.number}" if incarnation.number else "")
        self.node = Node(role.address, plan.limits, self, rng, plan.seed)
        self.compute = ActorCompute(jitter or chance(plan.seed, role.address, "jitter"))
        self.threads: list[RoleProgram] = []
        self.waiting: list[RoleProgram] = []  # in a Receive, in the order in which they began to wait
        self.links: dict[Address, VirtualLink] = {}
        self.heard: dict[Address, float] = {}
        self.ended = self.held = False  # held: its main program stands before a step
        self.gone = False  # replaced, or its seat is empty: what it had sent comes to nobody
        self.between: Callable[[VirtualActor], None] | None = None  # called before each step, and at save points
        if kept:
            kept.restore_chance(self.rng)
            self.mailbox.waiting.extend(kept.mailbox)

    @property
    def rng(self) -> Random:
        return self.node.rng

    def open(self, program: Coroutine[Effect[Any], Any, None], main: bool) -> RoleProgram:
        """Add a program; the caller must start it."""
        thread = RoleProgram(self, program, main)
        self.threads.append(thread)
        return thread

    def end(self) -> None:
        """The main program is through: its companions end, and what came for it is of no use to anybody."""
        for companion in self.threads:
            companion.close()
        self.threads.clear()
        self.waiting.clear()
        self.ended = True
        for message in self.mailbox.waiting:
            self.mailbox.taken(message)
        self.mailbox.waiting.clear()

    def close(self) -> None:
        """Close what still stands; a program that awaits while closing must not hide why the run ended."""
        for thread in self.threads:
            with suppress(RuntimeError):
                thread.close()
        if self.compute.talk is not None:
            self.compute.talk.close()

    def footprint(self) -> int:
        """Bytes of the numbers that the role holds: parameters, gradients, buffers, and the optimizer's state."""
        states = (value for state in self.replica.optimizer.state.values() for value in state.values())
        kept = sum(value.nbytes for value in states if isinstance(value, Tensor))
        return self.replica.model.nbytes + self.replica.grad.nbytes + kept

    def awaits(self, sender: Address) -> bool:
        """Whether a program waits for a message that may be this sender's."""
        return self.held or any(thread.want and thread.want.awaits(sender) for thread in self.threads)

    # -- what a node asks ---------------------------------------------------------------------------------------------

    def training(self) -> bool:
        pace = self.pace
        going = pace.training()
        self.step = pace.step
        if self.between is not None:
            self.between(self)
        return going

    def receive_nowait(self, want: Receive) -> Message | None:
        message = self.mailbox.take(want)
        return None if message is None else received(message, want)

    def room(self, to: Address) -> bool:
        return self.world.links.room(self, to)

    def remember(self, name: str, value: T) -> Memory[T]:
        return self.memories.remember(name, value, begun=self.begun is None or self.pace.step >= self.begun)

    def measure(self, kind: str, value: float) -> None:
        self.world.links.measured(self.address, kind, value)

    def machine_of(self, who: Address) -> object:
        return self.world.actors[who].machine

    def forget_sums(self) -> None:
        """Those of virtual time are messages, where workers may be lost."""

    def share(self, vector: Vector, place: int) -> Vector:
        shared = self.world.shared_vectors
        if place not in shared:
            shared[place] = vector.clone()
        return shared[place]

    def consult(self, program: Coroutine[Effect[Any], Any, T], progress: float) -> T:
        assert self.compute.talk is not None, "work that asks says so: node.compute(work, talks=True)"
        return self.compute.talk.ask(program, progress)  # type: ignore[no-any-return]

    def post(self, message: Message, progress: float) -> None:
        """A message to the role itself: out of work when this much of it is done, else at once."""
        if self.compute.posts is None:
            agenda = self.world.agenda
            agenda.at(agenda.now, self.world.deliver, self, message)
        else:
            self.compute.posts.append((message, progress))


def received(message: Message, want: Receive) -> Message:
    """The message as the program gets it: its vector in the place that was asked for."""
    if want.into is not None:
        assert len(vectors(message)) == 1, f"{type(message).__name__} has no vector to be received into, or several"
        for name in message.__struct_fields__:
            if isinstance(getattr(message, name), Vector):
                setattr(message, name, want.into.copy_(getattr(message, name)))
    return message
