"""One replica at work, and written down: its members compute a few steps, and every effect is kept without numbers."""

from __future__ import annotations

import types
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from covey.errors import PlanError
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.parallelism.axis import Axis, AxisPlace, Within, along
from covey.parallelism.cut_replica import CutReplica
from covey.parallelism.plan.mesh import AXES, Mesh
from covey.parallelism.timed.recorded_step import (
    RecordedEffect,
    RecordedReceive,
    RecordedSend,
    RecordedStep,
    RecordedWork,
    without_numbers,
)
from covey.program import Compute, Effect, Host, Node, Note, Receive, Send
from covey.strategy import Plan, Role

T = TypeVar("T")
Drive = Callable[[Plan, Mapping[Address, Replica]], None]
"""Performs a plan to its end."""
Sent = tuple[Address, Address, type[Message], int]
"""A message of a replica: from whom, to whom, of which kind, and its `step`."""


@dataclass(slots=True)
class MessageNumbers:
    """Which message of a step each one is, on its link."""

    known: dict[Sent, tuple[int, int]] = field(default_factory=dict)  # the sender's step, and the number in it
    last: dict[tuple[Address, Address, int], int] = field(default_factory=dict)

    def give(self, sent: Sent, step: int) -> int:
        link = sent[0], sent[1], step
        number = self.last[link] = self.last.get(link, -1) + 1
        self.known[sent] = step, number
        return number


class StepRecorder(Within):
    """A member's host, which writes down what its program asks for.

    Nothing has arrived when a program looks without waiting: what it would take early it waits for later, where it must
    have it.
    """

    def __init__(self, host: Host, axis: Axis, numbers: MessageNumbers) -> None:
        super().__init__(host, axis)
        self.at, self.numbers = 0, numbers
        self._me = axis.outside(axis.me)
        self._work: RecordedWork | None = None

    @property
    def step(self) -> int:
        return self.at

    def receive_nowait(self, want: Receive) -> Message | None:
        return None

    def room(self, to: Address) -> bool:
        return True

    def consult(self, program: Coroutine[Effect[Any], Any, T], progress: float) -> T:
        assert self._work is not None, "only work that talks has questions"
        effects: list[RecordedEffect] = []
        self._work.questions.append((progress, effects))
        return super().consult(_awaited(self.recorded(program, effects)), progress)

    @types.coroutine
    def recorded(
        self, program: Coroutine[Effect[Any], Any, T], effects: list[RecordedEffect]
    ) -> Generator[Effect[Any], Any, T]:
        """Run a program, and write down its effects."""
        answer: Any = None
        while True:
            try:
                effect = program.send(answer)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            if isinstance(effect, Send):
                effects.append(self._sent(effect))
            elif isinstance(effect, Compute):
                self._work = RecordedWork(effect.load, effect.talks, effect.prepares)
                effects.append(self._work)
            elif isinstance(effect, Note):
                effects.append(effect)
            elif not isinstance(effect, Receive):
                raise PlanError(f"a part of a model asks for a {type(effect).__name__}, which cannot only be timed")
            answer = yield effect
            if isinstance(effect, Receive):
                effects.append(self._received(answer))

    def _sent(self, effect: Send) -> RecordedSend:
        sent = self._me, self._axis.outside(effect.to), type(effect.body), effect.body.step  # type: ignore[attr-defined]
        return RecordedSend(without_numbers(effect), self.numbers.give(sent, self.at))

    def _received(self, came: Message) -> RecordedReceive:
        sent = self._axis.outside(came.sender), self._me, type(came), came.step  # type: ignore[attr-defined]
        step, number = self.numbers.known[sent]
        return RecordedReceive(type(came), came.sender, number, self.at - step)


async def _awaited(program: Generator[Effect[Any], Any, T]) -> T:
    return await program  # type: ignore[misc, no-any-return]  # it is a coroutine of `types`


def places(mesh: Mesh, member: int) -> tuple[AxisPlace, ...]:
    """Where a member of a replica stands."""
    sizes = mesh.stages, mesh.shards, mesh.experts, mesh.tensors
    return tuple(AxisPlace(*one) for one in zip(AXES, mesh.place(member), sizes, strict=True))


def recorded_steps(
    mesh: Mesh, members: Sequence[Role], replicas: Sequence[CutReplica], steps: Sequence[int], limits: Sequence[int],
    clips: bool, drive: Drive,
) -> list[dict[int, RecordedStep]]:  # fmt: skip
    """What each member of one replica does in these steps, of which it is given the first first."""
    found: list[dict[int, RecordedStep]] = [{} for _ in members]
    numbers = MessageNumbers()

    def recording(member: int) -> Role:
        role = members[member]
        assert role.alias is not None
        axis = Axis(role.alias, places(mesh, member), not mesh.flushes)

        async def program(node: Node, replica: Replica) -> None:
            host = StepRecorder(node.host, axis, numbers)
            inner = Node(axis.me, limits, host, node.rng, node.seed)
            assert isinstance(replica, CutReplica)
            replica.enter(inner)
            for step in steps:
                host.at = step
                gradient: list[RecordedEffect] = []
                norm: list[RecordedEffect] = []
                batch = await along(_awaited(host.recorded(replica.computed(inner), gradient)), axis)
                if clips:
                    await along(_awaited(host.recorded(replica.square(inner, 1.0), norm)), axis)
                found[member][step] = RecordedStep(gradient, norm, batch.samples, batch.seen)

        return replace(role, program=program, host=None)

    roles = tuple(recording(member) for member in range(len(members)))
    workers = len(limits) * mesh.members
    plan = Plan(roles=roles, limits=(None,) * workers, lockstep=True)
    drive(plan, {role.address: replica for role, replica in zip(roles, replicas, strict=True)})
    return found
