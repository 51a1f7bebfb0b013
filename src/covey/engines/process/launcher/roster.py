"""What a launcher knows of its roles: how far each is, what it waits for, and what it has tallied."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import msgspec

from covey.engines.process import control
from covey.engines.process.snapshot_parts import SCORER
from covey.message import Address
from covey.observe.progress import Phase, Progress, RoleProgress
from covey.observe.recording import RoleTimeline
from covey.observe.tally import Tally, mean_ages, read_loss
from covey.observe.usage import Meter


@dataclass(slots=True)
class RoleRecord:
    """What the launcher knows of a role."""

    heard: float = 0.0
    step: int = -1
    waiting: str = ""
    since: float = 0.0
    waits: int = 0  # changes when it waits for something else, or not at all
    frames: int = 0  # that had come when it reported last
    held: int | None = None
    ended: bool = False


class Roster:
    """All roles of a run, as their reports show them."""

    def __init__(self, roles: Sequence[Address], trainers: Sequence[Address]) -> None:
        self.roles, self.trainers = roles, trainers
        self.seen = {address: RoleRecord() for address in [*roles, SCORER]}
        self.tallies = {address: Tally(who=address) for address in roles}
        self.meter = Meter()
        self.lanes: list[RoleTimeline] = []
        self.loss: float | None = None
        self.discards = False  # what is done now is undone, and counts nowhere

    def note(self, address: Address, word: control.Report | control.RoleEnded) -> None:
        seen = self.seen[address]
        if not self.discards:
            self.tallies[address].merge(word.tally)
        if isinstance(word, control.RoleEnded):
            seen.ended, seen.waiting = True, ""
            if word.lane and not self.discards:
                self.lanes.append(word.lane)
        else:
            if not word.waiting or word.waiting != seen.waiting or word.since < seen.since:
                seen.waits += 1
            seen.step, seen.waiting, seen.since, seen.frames = word.step, word.waiting, word.since, word.frames
            if word.use:
                self.meter.note(address, word.use)

    def forget_steps(self) -> None:
        """All roles begin anew."""
        for address, seen in self.seen.items():
            self.seen[address] = RoleRecord(heard=seen.heard)

    @property
    def samples(self) -> int:
        return sum(tally.samples for tally in self.tallies.values())

    @property
    def trained(self) -> int:
        """Samples in all, also those that did not count."""
        return sum(tally.trained for tally in self.tallies.values())

    @property
    def bytes(self) -> int:
        return sum(sum(tally.bytes.values()) for tally in self.tallies.values())

    def read_loss(self) -> float:
        """The mean training loss since this was last asked."""
        trained = any(tally.batches for tally in self.tallies.values())
        found = read_loss(self.tallies.values())
        if trained:  # else people are shown the last one that there was
            self.loss = found
        return found

    def picture(self, roles: Iterable[Address]) -> str:
        """What each of these roles does, since when, and when it was last heard."""
        return "\n".join(f"  {address} {self.doing(address)}" for address in roles)

    def last(self, address: Address) -> str:
        """When a role was last heard."""
        heard = self.seen[address].heard
        return f"last heard {time.monotonic() - heard:.1f} s ago" if heard else "nothing heard from it"

    def doing(self, address: Address) -> str:
        seen, heard = self.seen[address], self.last(address)
        if seen.waiting:
            return f"has been waiting {seen.since:.0f} s for {seen.waiting}; {heard}"
        if seen.since:
            return f"has been computing for {seen.since:.0f} s, in step {seen.step}; {heard}"
        return f"is at step {seen.step}; {heard}" if seen.step >= 0 else heard

    def progress(self, phase: Phase, seconds: float, budget: int | None, metrics: dict[str, float]) -> Progress:
        """The state of the run now, for its watchers."""
        tallies = self.tallies.values()
        batches = sum(tally.batches for tally in tallies)
        if batches:
            self.loss = sum(tally.losses for tally in tallies) / batches
        ages = [(age, count) for tally in tallies for age, count in tally.staleness.items()]
        applied, stale = sum(count for _, count in ages), mean_ages(tallies)
        return Progress(
            phase=phase, seconds=seconds, samples=self.samples, budget=budget,
            updates=sum(tally.updates for tally in tallies), bytes=self.bytes, loss=self.loss,
            metrics=metrics,
            staleness=sum(age * count for age, count in ages) / applied if applied else None,
            roles={str(who): self.role_progress(who, stale.get(str(who))) for who in self.tallies},
            links={str(who): dict(tally.bytes) for who, tally in self.tallies.items() if tally.bytes},
        )  # fmt: skip

    def role_progress(self, address: Address, staleness: float | None = None) -> RoleProgress:
        seen, tally = self.seen[address], self.tallies[address]
        return RoleProgress(
            step=seen.step,
            samples=tally.samples,
            bytes=sum(tally.bytes.values()),
            waiting=seen.waiting,
            waited=seen.since,
            staleness=staleness,
        )

    def kept(self) -> Any:
        """The tallies, as a checkpoint keeps them."""
        return msgspec.to_builtins(list(self.tallies.values()), str_keys=True)

    def resume(self, kept: Any) -> None:
        """Go on with tallies that were kept."""
        tallies = msgspec.convert(kept, list[Tally], str_keys=True)
        for tally in tallies:
            tally.check()
            if tally.who in self.tallies:
                self.tallies[tally.who] = tally
        for tally in tallies:
            if tally.who not in self.tallies:  # the model was cut into more stages then
                last = self.trainers[-1]
                self.tallies[last].merge(msgspec.structs.replace(tally, who=last))


def unended(roster: Roster, gone: AbstractSet[Address]) -> set[Address]:
    """The workers besides these whose programs have not ended."""
    return {who for who in roster.trainers if who not in gone and not roster.seen[who].ended}


def all_ended(roster: Roster, gone: AbstractSet[Address]) -> bool:
    """Whether there are workers besides these, and the programs of all have ended."""
    return bool({*roster.trainers} - gone) and not unended(roster, gone)
