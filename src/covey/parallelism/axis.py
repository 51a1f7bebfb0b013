"""A strategy along one axis of a mesh: its programs run among the workers that hold one part, and know no others."""

from __future__ import annotations

import types
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeVar

from msgspec.structs import replace as changed

from covey.membership import Incarnation
from covey.message import Address, Message
from covey.model.differentiation import DROPPED
from covey.model.replica import Replica
from covey.program import Collective, Effect, Host, Memory, Node, Note, Receive, Send, Spawn
from covey.strategy import Role
from covey.vector import Vector

T = TypeVar("T")
STAGE = "stage"
"""How a worker calls the other stages of its replica: `Address(STAGE, 1)`."""
SHARD = "shard"
"""How it calls those who own the other rows of the same parameters."""
EXPERT = "expert"
"""How it calls those who have the other experts of the same layers."""
TENSOR = "tensor"
"""How it calls those who have the other slices of the same layers."""
AGE = "age"
"""What a stage notes: how many updates old the weights of a gradient were. It is the run's staleness."""
OF_BATCHES = ("samples", "loss")
"""Notes of everybody who has batches of its own."""


@dataclass(frozen=True, slots=True)
class AxisPlace:
    """A place along one of the axes inside a replica."""

    name: str
    index: int
    size: int

    @property
    def last(self) -> bool:
        return self.index == self.size - 1

    @property
    def alike(self) -> bool:
        """Whether all places along it compute on the same batch."""
        return self.name in (STAGE, TENSOR)


@dataclass(frozen=True, slots=True)
class Axis:
    """One role's place: the strategy's roles at this place have its own names; all `places` together are a replica."""

    me: Address  # as the strategy calls it
    places: tuple[AxisPlace, ...]  # along each axis inside a replica, the outermost first
    ages: bool = False  # whether the stages say how old their weights are; then nobody else does

    @property
    def members(self) -> int:
        """Workers of a replica."""
        return prod(place.size for place in self.places)

    @property
    def index(self) -> int:
        """Which of them this is."""
        return self._index([place.index for place in self.places])

    def outside(self, who: Address) -> Address:
        """The run's name for somebody."""
        if any(who.role == place.name for place in self.places):
            there = [who.rank if place.name == who.role else place.index for place in self.places]
            return Address(self.me.role, self.me.rank * self.members + self._index(there))
        return Address(who.role, who.rank * self.members + self.index) if who.rank >= 0 else who

    def inside(self, who: Address) -> Address:
        """The strategy's name for somebody at the same place, or the name along the only axis that leads there."""
        if who.rank < 0:
            return who
        rank, index = divmod(who.rank, self.members)
        differs = []
        for place in reversed(self.places):
            index, there = divmod(index, place.size)
            if there != place.index:
                differs.append(Address(place.name, there))
        assert len(differs) < 2, f"{who} is at another place along two axes"
        return differs[0] if differs else Address(who.role, rank)

    def _index(self, there: Sequence[int]) -> int:
        found = 0
        for place, number in zip(self.places, there, strict=True):
            found = found * place.size + number
        return found

    def outward(self, effect: Effect[Any]) -> Effect[Any] | None:
        """What the engine is asked; None for what nobody needs to know, as the last stage has told it."""
        if isinstance(effect, Send):
            return changed(effect, to=self.outside(effect.to))
        if isinstance(effect, Receive):
            return effect if effect.sender is None else changed(effect, sender=self.outside(effect.sender))
        if isinstance(effect, Collective):
            return changed(effect, group=tuple(map(self.outside, effect.group)))
        if isinstance(effect, Spawn):
            return Spawn(along(effect.program, self))
        return self._note(effect) if isinstance(effect, Note) else effect

    def _note(self, note: Note) -> Note | None:
        if note.kind == AGE:
            return Note("staleness", note.value)
        if note.kind == "staleness":
            return None if self.ages else note
        if note.kind == DROPPED:  # every stage has layers of its own
            return note if all(place.last for place in self.places if place.name == TENSOR) else None
        silent = (place for place in self.places if place.alike or note.kind not in OF_BATCHES)
        return note if all(place.last for place in silent) else None

    def inward(self, answer: Any) -> Any:
        """What the engine answers, in the strategy's names."""
        if isinstance(answer, Message):
            answer.sender = self.inside(answer.sender)
        return answer


class AmongAll(Effect[Any], frozen=True):
    """An effect of a program that knows all workers of a run, not only those at its own place."""

    effect: Effect[Any]


Translation = tuple[Effect[Any] | None, Callable[[Any], Any]]
"""What is asked instead of an effect, None for nothing; and what is made of the answer."""


async def along(program: Coroutine[Effect[Any], Any, T], axis: Axis) -> T:
    """Run a program that knows only its axis."""

    def translated(effect: Effect[Any]) -> Translation:
        if isinstance(effect, AmongAll):
            return effect.effect, _as_it_is
        return axis.outward(effect), axis.inward

    return await _driven(program, translated)


async def through(program: Coroutine[Effect[Any], Any, T]) -> T:
    """Inside a program that knows only its axis, run one that knows all workers by the run's own names."""
    return await _driven(program, lambda effect: (AmongAll(effect), _as_it_is))


def _as_it_is(answer: Any) -> Any:
    return answer


@types.coroutine
def _driven(
    program: Coroutine[Effect[Any], Any, T], translated: Callable[[Effect[Any]], Translation]
) -> Generator[Effect[Any], Any, T]:
    """Run a program whose effects are asked for in other words, and whose answers come back in its own."""
    answer: Any = None
    error: BaseException | None = None
    while True:
        try:
            effect = program.throw(error) if error else program.send(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        answer = error = None
        wanted, understood = translated(effect)
        if wanted is None:
            continue
        try:
            answer = understood((yield wanted))
        except GeneratorExit:
            program.close()
            raise
        except BaseException as failure:
            error = failure


class Within:
    """A role's host, as its programs see it along an axis."""

    def __init__(self, host: Host, axis: Axis, outer: Node | None = None) -> None:
        """`outer` is the role's node among all of the run."""
        self.outer, self.axis = outer, axis
        self._host, self._axis = host, axis

    @property
    def step(self) -> int:
        return self._host.step

    @property
    def incarnation(self) -> Incarnation:
        return self._host.incarnation

    def training(self) -> bool:
        return self._host.training()

    def receive_nowait(self, want: Receive) -> Message | None:
        wanted = self._axis.outward(want)
        assert isinstance(wanted, Receive)
        found: Message | None = self._axis.inward(self._host.receive_nowait(wanted))
        return found

    def room(self, to: Address) -> bool:
        return self._host.room(self._axis.outside(to))

    def remember(self, name: str, value: T) -> Memory[T]:
        return self._host.remember(name, value)

    def post(self, message: Message, progress: float) -> None:
        self._host.post(message, progress)

    def consult(self, program: Coroutine[Effect[Any], Any, T], progress: float) -> T:
        return self._host.consult(along(program, self._axis), progress)

    def share(self, vector: Vector, place: int) -> Vector:
        return self._host.share(vector, place * self._axis.members + self._axis.index)

    def measure(self, kind: str, value: float) -> None:
        self._host.measure(kind, value)

    def machine_of(self, who: Address) -> object:
        return self._host.machine_of(self._axis.outside(who))

    def forget_sums(self) -> None:
        self._host.forget_sums()


def view(node: Node, axis: Axis) -> Node:
    """The node as a program along the axis has it: it counts only those at its own place."""
    mine = node.limits[axis.index :: axis.members]
    return Node(axis.me, mine, Within(node.host, axis, node), node.rng, node.seed)


def placed(role: Role, places: tuple[AxisPlace, ...], ages: bool = False) -> Role:
    """A role of the strategy as one of a run in which every place of a replica has such a role."""
    axis = Axis(role.address, places, ages)

    async def program(node: Node, replica: Replica) -> None:
        inner = view(node, axis)
        replica.enter(inner)
        await along(role.program(inner, replica), axis)

    host = None if role.host is None else axis.outside(role.host)
    stage = next(place.index for place in places if place.name == STAGE)
    return replace(
        role, address=axis.outside(role.address), program=program, host=host, stage=stage, alias=role.address
    )
