"""The result of a run in the format `covey.result/1`, the same for every engine."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Literal

import msgspec

from covey.decoding import WireFormat
from covey.observe.contention import Contention
from covey.observe.facts import PrivacyFacts, RunFacts, RunOrigin
from covey.observe.membership import Goodput, MembershipEvent, Participation, RunCost, seconds_present
from covey.observe.progress import Row
from covey.observe.recording import Recording
from covey.observe.referee import BestScore, Referee, TargetReached
from covey.observe.tally import REPEATED, Tally
from covey.observe.usage import Row as Use
from covey.simulate.units import format_duration

OURS = ("seconds", "samples", "bytes")  # of a line of the history; all else is a score
Stopped = Literal["budget", "target", "patience", "paused", "interrupted", "privacy", "declined"]


class Traffic(msgspec.Struct, kw_only=True):
    """Payload of exchange: no headers, no snapshots, no control."""

    bytes: int
    messages: int
    by_role: dict[str, int]
    by_link: dict[str, int]


class Staleness(msgspec.Struct, kw_only=True):
    """How old the weights were on which the applied gradients were computed; null where nobody measured."""

    mean: float | None
    max: int | None
    histogram: dict[int, int]


class TimeShares(msgspec.Struct, kw_only=True):
    """How a role divided its time (`Tally` says what counts as what), and its memory in bytes."""

    compute: float
    exchange: float
    waiting: float
    memory: int


class Result(RunFacts, kw_only=True, dict=True):
    """The outcome of a run, with the same fields on every engine; docs/result.md explains each field.

    `weights`, the scored model as a state dict, and `recording` are not written with the result.

    >>> result = covey.fit("examples/digits.py", "bsp", workers=2, engine="simulated", epochs=1)
    >>> result.samples, result.stopped, sorted(result.weights)[0]
    (1437, 'budget', '1.bias')
    """

    seconds: float
    samples: int
    updates: int
    stopped: Stopped
    reached: TargetReached | None
    history: list[Row]
    traffic: Traffic
    staleness: Staleness
    roles: dict[str, TimeShares]
    failures: list[str]
    notes: dict[str, float | None]
    usage: list[Use] = msgspec.field(default_factory=list)  # of real runs
    membership: list[MembershipEvent] | msgspec.UnsetType = msgspec.UNSET  # of runs that lost processes and went on
    goodput: Goodput | msgspec.UnsetType = msgspec.UNSET  # of the same
    cost: RunCost | msgspec.UnsetType = msgspec.UNSET  # of runs on a cluster with prices
    contention: Contention | None = None  # of real runs on this machine
    best: BestScore | msgspec.UnsetType = msgspec.UNSET  # of runs that were asked for it
    participation: Participation | msgspec.UnsetType = msgspec.UNSET  # of federated runs
    privacy: PrivacyFacts | msgspec.UnsetType = msgspec.UNSET  # of runs that hide something

    def __repr__(self) -> str:
        """One line, whatever the length of the history; `to_json` has everything."""
        row = self.history[-1] if self.history else {}
        scores = (f", {name} {row[name]:.4g}" for name in row if name not in OURS and row[name] is not None)
        many = f"{self.workers} {'client' if self.participation else 'worker'}{'s' if self.workers > 1 else ''}"
        went = f"{self.stopped} after {format_duration(self.seconds)}, {self.samples:,} samples{''.join(scores)}"
        return f"<Result of {self.strategy} · {many} · {self.engine}: {went}>"

    @property
    def weights(self) -> dict[str, Any]:
        """The scored model as a state dict for the plain module; empty where nothing was trained, or it was read."""
        weights: dict[str, Any] = self.__dict__.get("_weights", {})
        return weights

    def keep_weights(self, weights: dict[str, Any]) -> None:
        self.__dict__["_weights"] = weights

    @property
    def best_weights(self) -> dict[str, Any]:
        """The model with the score in `best`, as a state dict; empty without one. Not written with the result."""
        weights: dict[str, Any] = self.__dict__.get("_best", {})
        return weights

    def keep_best(self, best: BestScore, weights: dict[str, Any]) -> None:
        self.best, self.__dict__["_best"] = best, weights

    @property
    def ema(self) -> dict[str, Any]:
        """The averaged model of a task with `ema=…`, as a state dict; else empty. Not written with the result."""
        averages: dict[str, Any] = self.__dict__.get("_ema", {})
        return averages

    def keep_ema(self, averages: dict[str, Any]) -> None:
        self.__dict__["_ema"] = averages

    def tell_untrained(self) -> None:
        """Only time was simulated: no line of the history has a loss."""
        self.history = [{**row, "loss": None} for row in self.history]

    def tell_membership(self, events: list[MembershipEvent], repeated: int) -> None:
        """Who came and went, in a run in which somebody did; what earlier attempts had done in vain."""
        self.membership = events
        self.goodput = Goodput.of(self.samples, repeated + int(self.notes.get(REPEATED) or 0))

    def tell_cost(self, prices: Mapping[int, float], absent: Collection[int], there: Mapping[int, float]) -> None:
        """What the run cost, with these prices per hour of each worker's machine.

        Of some it is known for how many seconds they were `there`; of the others, which were `absent` at the beginning.
        """
        seconds = seconds_present(self.membership or [], self.workers, self.seconds, absent)
        seconds = [there.get(rank, found) for rank, found in enumerate(seconds)]
        self.cost = RunCost.of(seconds, prices, self.samples)

    @property
    def recording(self) -> Recording | None:
        """What each role did when, of a run that was traced; not written with the result."""
        found: Recording | None = self.__dict__.get("_recording")
        return found

    def keep_recording(self, recording: Recording) -> None:
        self.__dict__["_recording"] = recording

    @property
    def record(self) -> Path | None:
        """The folder in which this run is recorded; not written with the result."""
        found: Path | None = self.__dict__.get("_record")
        return found

    def keep_record(self, record: Path) -> None:
        self.__dict__["_record"] = record

    @property
    def version(self) -> str:
        """The version in the store of models, such as "digits:3", if it was registered; not written with the result."""
        return str(self.__dict__.get("_version", ""))

    def keep_version(self, version: str) -> None:
        self.__dict__["_version"] = version

    @property
    def origins(self) -> list[RunOrigin]:
        """The runs that the model comes from, the first one first; not written with the result."""
        return list(self.__dict__.get("_origins", ()))

    def keep_origins(self, origins: list[RunOrigin]) -> None:
        self.__dict__["_origins"] = origins

    @property
    def uncommitted(self) -> bool:
        """Whether it is of a federated run that ended without a single committed round."""
        ended = self.stopped in ("budget", "privacy", "declined")
        return ended and bool(self.participation) and not self.participation.committed  # type: ignore[union-attr]

    def to_json(self) -> str:
        """Return the result as JSON: keys in the order of the fields, NaN and infinity as null.

        >>> result.to_json()[:30]
        '{\\n "schema": "covey.result/1",'
        """
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode() + "\n"

    def _repr_html_(self) -> str:
        """The report of this run, which notebooks show."""
        # It stands above results, so it is found by its name, and only where somebody wants to see it.
        drawn: str = import_module("covey.report.single_run").framed(self)
        return drawn

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the result as a JSON file, whole or not at all.

        Args:
            path: The file.

        >>> result.write("result.json")
        """
        path = Path(path)
        with NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            try:
                file.write(self.to_json())
                file.flush()
                os.fsync(file.fileno())
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise


_results: WireFormat[Result] = WireFormat("result of a run", Result, "json")


def read(path: str | os.PathLike[str]) -> Result:
    """A result that `write` wrote."""
    return _results.read(Path(path).read_bytes(), path)


def conclude(
    facts: RunFacts, referee: Referee, tallies: Iterable[Tally], *,
    seconds: float, stopped: Stopped, failures: Sequence[str] = (), usage: Sequence[Use] = (),
    contention: Contention | None = None,
) -> Result:  # fmt: skip
    """The result of a run, from what its roles tallied and its referee saw."""
    tallies = sorted(tallies, key=lambda tally: tally.who)
    return Result(
        **msgspec.structs.asdict(facts),
        seconds=seconds,
        samples=sum(tally.samples for tally in tallies),
        updates=sum(tally.updates for tally in tallies),
        stopped=stopped,
        reached=referee.reached,
        history=referee.history,
        traffic=_traffic(tallies),
        staleness=_staleness(_sum(tally.staleness for tally in tallies)),
        roles={str(tally.who): _shares(tally) for tally in tallies},
        failures=list(failures),
        notes=dict(sorted(_sum(tally.notes for tally in tallies).items())),
        usage=list(usage),
        contention=contention,
    )


def _traffic(tallies: Sequence[Tally]) -> Traffic:
    by_role: Counter[str] = Counter()
    by_link: dict[str, int] = {}
    for tally in tallies:
        for peer, size in sorted(tally.bytes.items(), key=_numbered):
            by_link[f"{tally.who}->{peer}"] = size
            by_role[f"{tally.who.role}->{peer.rpartition(' ')[0]}"] += size
    return Traffic(
        bytes=sum(by_role.values()),
        messages=sum(sum(tally.messages.values()) for tally in tallies),
        by_role=dict(sorted(by_role.items())),
        by_link=by_link,
    )


def _numbered(item: tuple[str, int]) -> tuple[str, int]:
    """Worker 2 comes before worker 10."""
    role, _, rank = item[0].rpartition(" ")
    return role, int(rank)


def _staleness(counts: Mapping[int, float]) -> Staleness:
    histogram = {age: int(counts[age]) for age in sorted(counts)}
    total = sum(histogram.values())
    if not total:
        return Staleness(mean=None, max=None, histogram={})
    return Staleness(mean=sum(age * n for age, n in histogram.items()) / total, max=max(histogram), histogram=histogram)


def _shares(tally: Tally) -> TimeShares:
    waiting = max(0.0, tally.waiting)
    whole = max(tally.seconds, tally.compute + waiting) or 1.0
    return TimeShares(
        compute=round(tally.compute / whole, 4),
        exchange=round(tally.exchange / whole, 4),
        waiting=round(waiting / whole, 4),
        memory=tally.memory,
    )


def _sum(tables: Iterable[Mapping[Any, float]]) -> dict[Any, float]:
    total: dict[Any, float] = {}
    for table in tables:
        for key, value in table.items():
            total[key] = total.get(key, 0) + value
    return total
