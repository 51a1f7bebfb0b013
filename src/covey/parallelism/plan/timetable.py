"""Timetables as values: for every machine the exact order of its forwards F, backwards B and updates U."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from covey.parallelism.plan.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Move:
    """One thing to do: the forward or backward of a (micro-)batch, with a version of the weights; or an update.

    Version v is the weights after v updates. An update's `batch` is its number; it makes version batch + 1.
    """

    what: Literal["F", "B", "U"]
    batch: int
    chunk: int = 0
    version: int = 0

    def __str__(self) -> str:
        return f"{self.what}{self.batch}{chr(97 + self.chunk) if self.chunk else ''}"


@dataclass(frozen=True, slots=True)
class MachineRow:
    """What one machine does: replica number `replica` of its stage, batches being dealt out round robin."""

    stage: int
    replica: int
    moves: tuple[Move, ...]

    def __str__(self) -> str:
        return " ".join(map(str, self.moves))

    def in_flight(self) -> int:
        """The most batches (of chunks) begun and not ended."""
        now = most = 0
        for move in self.moves:
            now += (move.what == "F") - (move.what == "B")
            most = max(most, now)
        return most

    def versions(self) -> int:
        """The most versions of the weights at once: from the oldest that is still to be used to the newest made."""
        needed: list[int] = []
        for move in reversed(self.moves):
            here = [move.version] if move.what != "U" else []
            needed.append(min([*here, *needed[-1:]], default=len(self.moves)))
        newest, most = 0, 1
        for move, oldest in zip(self.moves, reversed(needed), strict=True):
            most = max(most, newest - oldest + 1)
            newest += move.what == "U"
        return most


@dataclass(frozen=True, slots=True)
class Timetable:
    """The rows of all machines, stage by stage; `machines` are there for each stage."""

    schedule: Schedule
    machines: tuple[int, ...]
    rows: tuple[MachineRow, ...]


def timetable(schedule: Schedule, machines: Sequence[int], batches: int | None = None) -> Timetable:
    """One step of a timetable that flushes; of one that does not, the first `batches` batches.

    For plain these are batches in turn, each a step of its own.
    """
    schedule.check(machines)
    usual = {"plain": 1, "pipedream": 4 * sum(machines)}.get(schedule.name, schedule.microbatches)
    many = usual if batches is None else batches
    rows = [
        MachineRow(stage, replica, tuple(_moves(schedule, tuple(machines), stage, range(replica, many, count), many)))
        for stage, count in enumerate(machines)
        for replica in range(count)
    ]
    return Timetable(schedule, tuple(machines), tuple(rows))


def _moves(schedule: Schedule, machines: tuple[int, ...], stage: int, mine: range, many: int) -> Iterable[Move]:
    warm = -(-sum(machines[stage:]) // machines[stage]) - 1
    match schedule.name:
        case "plain":
            return plain(mine)
        case "gpipe":
            return gpipe(mine)
        case "1f1b":
            return [*one_f_one_b(mine, warm), Move("U", 0)]
        case "interleaved" if schedule.chunks > 1:
            return interleaved(stage, len(machines), schedule.chunks, many)
        case "interleaved":
            return [*one_f_one_b(mine, warm), Move("U", 0)]
        case "pipedream":
            return pipedream(mine, warm, oldest=len(machines) - 1 if schedule.vertical else None)
        case _:
            return two_buffers(mine, warm, schedule.microbatches, many)


def plain(mine: Iterable[int]) -> Iterator[Move]:
    """Two batches:  F0 B0 U0 F1 B1 U1"""
    for batch in mine:
        yield from (Move("F", batch, version=batch), Move("B", batch, version=batch), Move("U", batch))


def gpipe(mine: Sequence[int]) -> Iterator[Move]:
    """Four micro-batches:  F0 F1 F2 F3 B3 B2 B1 B0 U"""
    yield from (Move("F", batch) for batch in mine)
    yield from (Move("B", batch) for batch in reversed(mine))
    yield Move("U", 0)


def one_f_one_b(mine: Sequence[int], warm: int) -> Iterator[Move]:
    """Stage 0 of 4 (warm=3), six micro-batches:  F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5"""
    yield from (Move("F", batch) for batch in mine[:warm])
    for number, batch in enumerate(mine):
        yield from (Move("F", ahead) for ahead in mine[warm + number : warm + number + 1])
        yield Move("B", batch)


def interleaved(stage: int, stages: int, chunks: int, batches: int) -> Iterator[Move]:
    """Megatron's order. Stage 0 of 2, two chunks, two micro-batches:  F0 F1 F0b F1b B0b B1b B0 B1 U0

    Micro-batches go in groups of `stages` through one chunk after the other.
    """
    group = stages * chunks
    order = [
        (number // group * stages + number % stages, number % group // stages) for number in range(batches * chunks)
    ]
    forwards = [Move("F", batch, chunk) for batch, chunk in order]
    backwards = [Move("B", batch, chunks - 1 - chunk) for batch, chunk in order]
    warm = min(2 * (stages - 1 - stage) + (chunks - 1) * stages, len(order))
    yield from forwards[:warm]
    for number, backward in enumerate(backwards):
        yield from forwards[warm + number : warm + number + 1]
        yield backward
    yield Move("U", 0)


def pipedream(mine: Sequence[int], warm: int, oldest: int | None = None) -> Iterator[Move]:
    """Stage 1 of 3 (warm=1):  F0 F1 B0 U0 F2 B1 U1 F3 B2 U2 …

    A forward uses the newest weights, its backward the same; with vertical sync (`oldest`, the delay of the first
    stage) both use the version that the first stage used for that batch.
    """
    used: dict[int, int] = {}
    updates = 0
    for move in one_f_one_b(mine, warm):
        if move.what == "F":
            used[move.batch] = updates if oldest is None else max(0, move.batch - oldest)
            yield Move("F", move.batch, version=used[move.batch])
        else:
            yield Move("B", move.batch, version=used.pop(move.batch))
            yield Move("U", updates)
            updates += 1


def two_buffers(mine: range, warm: int, together: int, batches: int) -> Iterator[Move]:
    """Stage 1 of 2 (warm=0), updates of two micro-batches:  F0 B0 F1 B1 U0 F2 B2 F3 B3 U1 …

    Micro-batches of update t use version t - 1 on all stages (Narayanan et al. 2021: a delay of one, everywhere).
    """
    for move in one_f_one_b(mine, warm):
        update = move.batch // together
        yield Move(move.what, move.batch, version=max(0, update - 1))
        end = (update + 1) * together
        if move.what == "B" and move.batch + mine.step >= end and end <= batches:
            yield Move("U", update)
