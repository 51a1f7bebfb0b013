"""Run the probes on real processes, and read off what they found."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import msgspec

from covey.calibrate import roles
from covey.calibrate.probes import PARTS
from covey.calibrate.roles import Assignment
from covey.engines import handover
from covey.engines.interrupt import Interrupt, interruptible
from covey.engines.process.contacts import Contacts
from covey.engines.process.launcher.run_wishes import RunWishes
from covey.engines.process.launcher.supervisor import Supervisor
from covey.observe.referee import Referee
from covey.run.processes import StartableProcesses
from covey.simulate import BytesPerSecond, CpuTime, Handling, Seconds
from covey.task import Task

SMALL, BIG = 64, 1 << 20  # bytes of the messages: what counts is each message, and each byte
FASTEST = BytesPerSecond(1e11)  # what takes less time than that is CPU time, and nothing besides
NEVER = 10**18  # samples until the model is scored


@dataclass(frozen=True, slots=True)
class MeasuredMeans:
    """The means of what the workers noted, in seconds and bytes; messages were of `SMALL` and of `big` bytes."""

    notes: Mapping[str, float]
    big: int

    def __getitem__(self, name: str) -> float:
        return self.notes[name]

    def toll(self, what: str, big: int | None = None) -> CpuTime:
        """This much each time and this much for a byte, from a small and a big message."""
        big = big or self.big
        small = max(0.0, self[f"{what} {SMALL}"])
        return CpuTime(each=Seconds(small), byte=Seconds(max(0.0, self[f"{what} {big}"] - small) / (big - SMALL)))

    def latency(self, way: str, tolls: list[CpuTime]) -> Seconds:
        """What the way of a small message takes besides the work of both ends."""
        return Seconds(max(0.0, self[f"{way} {SMALL}"] / 2 - sum(toll.of(SMALL) for toll in tolls)))

    def bandwidth(self, tolls: list[CpuTime]) -> BytesPerSecond:
        """Bytes per second on the way of a big message, besides the work of both ends."""
        big, latency = self.big, self.latency("there and back", tolls)
        seconds = self[f"there and back {big}"] / 2 - latency - sum(toll.of(big) for toll in tolls)
        return BytesPerSecond(min(FASTEST, big / seconds) if seconds > 0 else FASTEST)

    def compute(self) -> dict[str, Any]:
        """A batch, its spread, and an optimizer step for each byte."""
        batch = self["batch"] - self["report"] * self["reports in a batch"]
        fixed = (self["part of a batch"] * PARTS - 1) / (PARTS - 1)
        return {
            "compute": Seconds(batch), "jitter": self["jitter"], "update": Seconds(self._step_byte()),
            "fixed": min(1.0, max(0.0, fixed)),
        }  # fmt: skip

    def handling(self) -> Handling:
        tiny, model = self["tiny sum"], self["model"]
        return Handling(
            send=self.toll("send"), receive=self._receiving(), report=Seconds(self["report"]),
            sums=CpuTime(each=Seconds(tiny), byte=Seconds(max(0.0, self["sum"] - tiny) / (2 * model))),
            step=Seconds(max(0.0, self["step"] - self._step_byte() * model)),
        )  # fmt: skip

    def _receiving(self) -> CpuTime:
        """Without the report that is due after a long wait: that is charged by itself."""
        sizes, report = (SMALL, self.big), self["report"]
        alone = {f"receive {n}": self[f"receive {n}"] - report * self[f"reports while receiving {n}"] for n in sizes}
        return MeasuredMeans({**self.notes, **alone}, self.big).toll("receive")

    def _step_byte(self) -> float:
        return self["step"] * max(0.0, 1 - self["part of a step"]) / max(1.0, self["model"] - self["part"])


def measure(task: Task, processes: StartableProcesses, assignment: Assignment) -> MeasuredMeans:
    """Have the workers of these processes measure themselves; the means of what they noted."""
    handed = b"" if assignment.task else handover.pack(task)
    plan, interrupt = assignment.plan(), Interrupt()

    def pack(contacts: Contacts) -> bytes:
        return msgspec.msgpack.encode(msgspec.structs.replace(assignment, contacts=contacts))

    with interruptible(interrupt), processes:
        board = processes.start(plan.roles, f"{roles.__name__}:enter", pack, handed)
        outcome = Supervisor(plan, board, processes, Referee(NEVER), RunWishes(score=False, interrupt=interrupt)).run()
    if outcome.stopped == "interrupted":
        raise KeyboardInterrupt
    told: dict[str, list[float]] = {}
    for tally in outcome.tallies:
        for note, value in tally.notes.items():
            told.setdefault(note, []).append(value)
    return MeasuredMeans({note: fmean(values) for note, values in told.items()}, assignment.sizes[-1])


def cores() -> int:
    """Of this machine, as far as they are ours."""
    return len(os.sched_getaffinity(0))
