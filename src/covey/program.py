"""What may a role do? The effects, and `Node`, which gives them names. Engines perform them; no program knows one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from random import Random
from typing import Any, Generic, Literal, Protocol, TypeVar

import msgspec

from covey.membership import Incarnation
from covey.message import Address, Message
from covey.vector import Vector

T = TypeVar("T")
M = TypeVar("M", bound=Message)


class Effect(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """A request to the engine; awaiting it gives the engine's answer."""

    def __await__(self) -> Generator[Effect[T], T, T]:
        return (yield self)

    def awaits(self, peer: Address) -> bool:
        """Whether something that this peer has yet to send may be what ends the wait for it."""
        return False


class Send(Effect[None], frozen=True):
    """Queue a message for a peer; goes on as soon as the link's window has room.

    The tensors are copied, unless `loan=True`: then the sender must not change them until the receiver has answered.
    The window counts bytes that the receiver's programs have not taken. Messages without tensors never wait for it, nor
    do `paced` ones, whose program itself limits how many can lie unread. Those of a higher `priority` overtake;
    `keep="latest"` replaces a waiting message of the same kind; a `lossy` one may be dropped.
    """

    to: Address
    body: Message
    loan: bool = False
    priority: int = 0
    keep: Literal["all", "latest"] = "all"
    lossy: bool = False
    paced: bool = False


class Receive(Effect[Message | None], frozen=True):
    """Take the first message that matches; None when `timeout` seconds have passed.

    With `into` the message's only vector is received straight into that one, which must have its parts.
    """

    kinds: tuple[type[Message], ...]
    sender: Address | None = None
    step: int | None = None
    timeout: float | None = None
    into: Vector | None = None

    def matches(self, message: Message) -> bool:
        sender, step = self.sender, self.step
        return (
            type(message) in self.kinds
            and (sender is None or message.sender == sender)
            and (step is None or getattr(message, "step", None) == step)
        )

    def awaits(self, peer: Address) -> bool:
        return self.sender is None or self.sender == peer

    def __str__(self) -> str:
        step = f" of step {self.step}" if self.step is not None else ""
        wanted = " or ".join(kind.__name__ for kind in self.kinds) + step
        return wanted + (f" from {self.sender}" if self.sender else "")


class Compute(Effect[T], frozen=True):
    """Run the user's code on the role's compute thread; work that `talks` may ask its peers with `Node.consult`."""

    work: Callable[[], T]
    load: float = 1.0  # its cost in batches
    talks: bool = False
    prepares: float = 0.0  # batches of samples that it transforms
    reads: Callable[[], Sequence[int]] | None = None  # numbers of its samples, where reading them takes time


class Collective(Effect[bool], frozen=True):
    """Sum a vector over a group in place, each member's times its `share`; gives False where `fallback` must do it."""

    vector: Vector
    group: tuple[Address, ...]
    fallback: Callable[[Node, Vector, tuple[Address, ...]], Coroutine[Effect[Any], Any, None]]
    share: float = 1.0

    def awaits(self, peer: Address) -> bool:
        return peer in self.group


class Sleep(Effect[None], frozen=True):
    seconds: float


class Now(Effect[float], frozen=True):
    """Seconds of training so far."""


class SavePoint(Effect[None], frozen=True):
    """Does nothing. A checkpoint is taken at a step's first await, so one that changes state before begins with it."""


class Note(Effect[None], frozen=True):
    """Tell whoever watches: `staleness 3`, `update 1`."""

    kind: str
    value: float


class Spawn(Effect[None], frozen=True):
    """Run a companion program over the same replica; it ends with the role."""

    program: Coroutine[Effect[Any], Any, None]


class Memory(Generic[T]):
    """A value that survives a restart."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value


class Host(Protocol):
    """The facts an engine keeps for a role; none of them waits."""

    @property
    def step(self) -> int: ...
    @property
    def incarnation(self) -> Incarnation: ...
    def training(self) -> bool: ...
    def receive_nowait(self, want: Receive) -> Message | None: ...
    def room(self, to: Address) -> bool: ...
    def remember(self, name: str, value: T) -> Memory[T]: ...
    def post(self, message: Message, progress: float) -> None: ...
    def consult(self, program: Coroutine[Effect[Any], Any, T], progress: float) -> T: ...
    def share(self, vector: Vector, place: int) -> Vector: ...
    def machine_of(self, who: Address) -> object: ...
    def forget_sums(self) -> None: ...
    def measure(self, kind: str, value: float) -> None: ...


class Node:
    """A program's interface to its engine: send, receive, compute, sleep, note.
    Names promise behaviour: `receive` waits, `receive_nowait` never does.

    >>> async def work(node: covey.Node, replica: covey.Replica) -> None:
    ...     for step in node.steps():
    ...         await replica.descend(node)
    ...         await node.note("update")
    """

    __slots__ = ("address", "host", "limits", "rank", "rng", "seed", "workers")

    def __init__(self, address: Address, limits: Sequence[int | None], host: Host, rng: Random, seed: int) -> None:
        self.address, self.rank = address, address.rank
        self.limits = tuple(limits)  # each worker's own budget of steps, None: as long as the run lasts
        self.workers = len(self.limits)
        self.host, self.rng, self.seed = host, rng, seed  # the seed of the whole run

    @property
    def step(self) -> int:
        """The worker's own step, counted from 0 by `training`."""
        return self.host.step

    @property
    def incarnation(self) -> Incarnation:
        """Which of the role's incarnations this is, and what it should know of those before it."""
        return self.host.incarnation

    def training(self) -> bool:
        """Whether to do another step. What is remembered is saved only between this and the next await."""
        return self.host.training()

    def steps(self) -> Iterator[int]:
        """The steps of this worker, from the first (or from where a checkpoint left off) to the last."""
        while self.host.training():
            yield self.host.step

    def present(self, step: int) -> Sequence[int]:
        """The workers whose own budget holds this step; those that ended earlier take no part in it."""
        return _taking_part(self.limits, step)[0]

    def members(self, step: int) -> tuple[Address, ...]:
        """Their addresses."""
        return _taking_part(self.limits, step)[1]

    def send(
        self, to: Address, body: Message, *, loan: bool = False, priority: int = 0,
        keep: Literal["all", "latest"] = "all", lossy: bool = False, paced: bool = False,
    ) -> Send:  # fmt: skip
        return Send(to, body, loan, priority, keep, lossy, paced)

    async def broadcast(self, peers: Sequence[Address], body: Message) -> None:
        for peer in peers:
            await Send(peer, body)

    def receive(
        self, kind: type[M], *, sender: Address | None = None, step: int | None = None, into: Vector | None = None
    ) -> Awaitable[M]:
        return Receive((kind,), sender, step, None, into)  # type: ignore[return-value]  # the engine keeps to the kind asked for

    async def receive_within(self, kind: type[M], seconds: float, *, sender: Address | None = None) -> M | None:
        return await Receive((kind,), sender, None, seconds)  # type: ignore[return-value]

    async def receive_any(self, *kinds: type[Message], sender: Address | None = None) -> Message:
        return await Receive(kinds, sender)  # type: ignore[return-value]  # nothing comes only after a timeout

    def receive_nowait(self, *kinds: type[M], sender: Address | None = None) -> M | None:
        return self.host.receive_nowait(Receive(kinds, sender))  # type: ignore[return-value]

    async def ask(self, to: Address, question: Message, answer: type[M]) -> M:
        """Send a question and wait for that peer's answer."""
        await Send(to, question)
        return await self.receive(answer, sender=to)

    async def gather(self, kind: type[M], senders: Sequence[Address], *, step: int | None = None) -> list[M]:
        """One message from each sender, in the senders' order, whatever the order of arrival."""
        return [await self.receive(kind, sender=sender, step=step) for sender in senders]

    def room(self, to: Address) -> bool:
        """Whether the window of the link to a peer has room; if not, a message would wait until others are taken."""
        return self.host.room(to)

    def compute(self, work: Callable[[], T], load: float = 1.0, talks: bool = False, prepares: float = 0) -> Compute[T]:
        return Compute(work, load, talks, prepares)

    def consult(self, program: Coroutine[Effect[Any], Any, T], progress: float) -> T:
        """(In work that talks) Have the role run a program, and wait for its answer; `progress`: how much is done."""
        return self.host.consult(program, progress)

    async def sum(
        self, vector: Vector, group: tuple[Address, ...],
        fallback: Callable[[Node, Vector, tuple[Address, ...]], Coroutine[Effect[Any], Any, None]], share: float = 1.0,
    ) -> None:  # fmt: skip
        """Sum `share` times `vector` over the group in place, the engine's own way or else as the program `fallback`.

        An engine may fold the shares into the sum, which saves a reading and a writing of all numbers.
        """
        if not await Collective(vector, group, fallback, share):
            if share != 1:
                vector.mul_(share)
            await fallback(self, vector, group)

    def machines(self, group: Sequence[Address]) -> list[tuple[Address, ...]]:
        """The group as its members live together on machines, in the order of the group."""
        found: dict[object, list[Address]] = {}
        for who in group:
            found.setdefault(self.host.machine_of(who), []).append(who)
        return [tuple(members) for members in found.values()]

    def sleep(self, seconds: float) -> Sleep:
        return Sleep(seconds)

    def now(self) -> Now:
        return Now()

    def save_point(self) -> SavePoint:
        """The point at which a checkpoint of this step is taken; a restart repeats only what follows."""
        return SavePoint()

    def note(self, kind: str, value: float = 1) -> Note:
        return Note(kind, value)

    def spawn(self, program: Coroutine[Effect[Any], Any, None]) -> Spawn:
        return Spawn(program)

    def remember(self, name: str, value: T) -> Memory[T]:
        """A value that a checkpoint keeps by its name, unique in the role; after a restart this gives the kept one."""
        return self.host.remember(name, value)

    def share(self, vector: Vector, place: int) -> Vector:
        """A vector of this shape in memory that all roles share which use this place; access is not synchronized."""
        return self.host.share(vector, place)


_present: dict[int, tuple[object, int, tuple[int, ...], tuple[Address, ...]]] = {}  # of the last 16 steps


def _taking_part(limits: tuple[int | None, ...], step: int) -> tuple[tuple[int, ...], tuple[Address, ...]]:
    """Ranks and addresses of a step. Cached by the identity of the budgets, as hashing ten thousand takes long."""
    if (found := _present.get(step % 16)) is None or found[0] is not limits or found[1] != step:
        ranks = tuple(rank for rank, limit in enumerate(limits) if limit is None or step < limit)
        known = next((other[2:] for other in _present.values() if other[2] == ranks), None)
        found = limits, step, *(known or (ranks, tuple(Address("worker", rank) for rank in ranks)))
        _present[step % 16] = found
    return found[2:]


Program = Callable[..., Coroutine[Effect[Any], Any, None]]
