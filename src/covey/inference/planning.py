"""Which machines would keep an objective, and for how much? The programs of a service, in virtual time over a trace."""

from __future__ import annotations

import math
import statistics
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
from torch import Tensor

from covey.decoding import TEXT, UNREADABLE, file_bytes
from covey.errors import PlanError, WireError
from covey.inference.batch_times import BatchTimes, resized
from covey.inference.cut_model import CutModel
from covey.inference.path.path_costs import PathCosts
from covey.inference.replicas.replica import BatchModel
from covey.inference.request_desk import OK, FrontSettings
from covey.inference.scaling.scaler import ScalerSettings
from covey.inference.virtual_service import VirtualService

T = TypeVar("T")
Times = Callable[[int], float]  # seconds of a batch of so many requests
MOST = 64  # replicas that are tried
READY = 1.0  # seconds before the first request, beside set-ups: replicas measure their batches
REPEATS = 5  # of a measurement, of which the median counts
LONGEST = 604_800  # seconds of a trace: the scaler looks four times in each
SLOWEST = 86_400  # seconds until a machine answers


class MachinePrice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kind of machine that runs one replica: what an hour of it costs, and how fast it is beside this one."""

    price: float
    speed: float = 1.0
    setup: float = 1.0  # seconds until a new one answers


class ServiceForecast(msgspec.Struct, frozen=True):
    """What a set-up would do on a trace."""

    machine: str
    replicas: int  # the most that there were at a time
    price: float  # of an hour, of all machines
    in_time: float  # share of the requests that were answered within the objective
    seconds: float  # the percentile of the objective
    keeps: bool
    mean: float  # replicas, on average


def measure(model: BatchModel, example: Tensor, largest: int) -> BatchTimes:
    """How long this machine takes for batches of 1, 2, 4 and so on."""
    sizes = _sizes(largest)
    return BatchTimes(sizes, [_median(partial(model, resized(example, size)))[0] for size in sizes])


def measure_stages(model: CutModel, example: Tensor, largest: int) -> list[BatchTimes]:
    """The same of each stage."""
    sizes = _sizes(largest)
    seconds: list[list[float]] = [[] for _ in model.stages]
    for size in sizes:
        values: Sequence[Tensor] = [resized(example, size)]
        for number, found in enumerate(seconds):
            took, values = _median(partial(model.part, number, values, size))
            found.append(took)
    return [BatchTimes(sizes, found) for found in seconds]


def _sizes(largest: int) -> list[int]:
    return sorted({*(1 << power for power in range(largest.bit_length())), largest})


def read_trace(path: Path) -> list[float]:
    """When requests came: a CSV with one time in seconds in each line, after a title or without one."""
    lines = _text(path, "--plan").splitlines()
    found = []
    for number, line in enumerate(lines):
        word = line.partition(",")[0].strip()
        try:
            at = float(word)
        except ValueError:
            if word and number:
                raise PlanError(f"{path}, line {number + 1}: {word[:40]!r} is no time in seconds") from None
            continue
        if not 0 <= at <= LONGEST:
            raise PlanError(
                f"{path}, line {number + 1}: times are seconds from the beginning, 0 to {LONGEST:,} (a week); subtract "
                "that of the first request, or give a part of the trace"
            )
        found.append(at)
    if not found:
        raise PlanError(f"{path} has no request: write the time of each into a line, such as 0.25")
    return sorted(found)


def read_prices(path: Path) -> dict[str, MachinePrice]:
    """Kinds of machines, each a table of TOML with its price, and its speed where it differs."""
    try:
        found = msgspec.convert(tomllib.loads(_text(path, "--prices")), dict[str, MachinePrice])
    except UNREADABLE as error:
        raise PlanError(f"{path}: write [small], price = 0.10 and speed = 1.0 ({error})") from None
    if not found:
        raise PlanError(f"{path} has no machine: write [small] and price = 0.10")
    for name, one in found.items():
        if not (0 <= one.price < math.inf and 0 < one.speed < math.inf and 0 <= one.setup <= SLOWEST):
            raise PlanError(
                f"{path}: [{name}] needs a price of 0 or more, a speed above 0, and a setup of 0 to {SLOWEST:,} seconds"
            )
    return found


def forecasts(
    arrivals: Sequence[float], times: Times | Sequence[Times], prices: Mapping[str, MachinePrice],
    settings: FrontSettings, share: float, most: int = MOST, scaled: ScalerSettings | None = None,
    path: PathCosts | None = None,
) -> list[ServiceForecast]:  # fmt: skip
    """What each kind of machine would cost, the cheapest that keeps the objective first.

    Of each kind there are as many replicas as the scaler wants, or without a scaler the fewest that keep the objective.
    With the times of several stages each of them is a machine. `path` is what requests cost beside the model.
    """
    times = [times] if callable(times) else times
    trials = {name: PlannedTrial(name, one, arrivals, times, settings, share, path) for name, one in prices.items()}
    found = [trial.with_scaler(scaled) if scaled else _fewest(trial, most) for trial in trials.values()]
    return sorted(found, key=lambda one: (not one.keeps, one.price, one.replicas))


@dataclass(frozen=True, slots=True)
class PlannedTrial:
    """Tries set-ups of one kind of machine on a trace."""

    name: str
    machine: MachinePrice
    arrivals: Sequence[float]
    times: Sequence[Times]  # of each stage
    settings: FrontSettings
    share: float
    path: PathCosts | None = None

    def with_replicas(self, replicas: int) -> ServiceForecast:
        service = VirtualService(self.settings, replicas, self._seconds, path=self._path)
        return self._forecast(service, 0.0)

    def with_scaler(self, scaled: ScalerSettings) -> ServiceForecast:
        """Requests come when the fewest replicas are ready."""
        setup, path = self.machine.setup, self._path
        service = VirtualService(self.settings, 0, self._seconds, scaled=scaled, setup=setup, path=path)
        return self._forecast(service, 2 * self.machine.setup + READY)

    @property
    def _path(self) -> PathCosts | None:
        """The front is on this machine, the replicas are on those of this kind."""
        if self.path is None:
            return None
        speed = self.machine.speed
        return msgspec.structs.replace(self.path, replica=self.path.replica / speed, row=self.path.row / speed)

    @property
    def _seconds(self) -> list[Times]:
        return [partial(self._scaled, times) for times in self.times]

    def _scaled(self, times: Times, size: int) -> float:
        return times(size) / self.machine.speed

    def _forecast(self, service: VirtualService, begin: float) -> ServiceForecast:
        for at in self.arrivals:
            service.request(begin + at)
        answers, objective = service.run(), self.settings.objective
        waits = sorted(one.seconds if one.answer.status == OK else math.inf for one in answers)
        if self.path:
            waits = self.path.stretched(waits, service.busy)
        in_time = sum(wait <= objective for wait in waits) / len(waits)
        late = waits[math.ceil(self.share * len(waits)) - 1]
        mean = service.replica_seconds / max(one.answered for one in answers)
        price = self.machine.price * mean * len(self.times)
        return ServiceForecast(self.name, service.most, price, in_time, late, late <= objective, mean)


def _fewest(trial: PlannedTrial, most: int) -> ServiceForecast:
    low, best = 0, trial.with_replicas(1)
    while not best.keeps and best.replicas < most:
        low, best = best.replicas, trial.with_replicas(min(most, 2 * best.replicas))
    while best.keeps and best.replicas - low > 1:
        middle = trial.with_replicas((low + best.replicas) // 2)
        if middle.keeps:
            best = middle
        else:
            low = middle.replicas
    return best


def _median(work: Callable[[], T]) -> tuple[float, T]:
    """Seconds that it takes, and what it gives."""
    taken, given = [], work()  # the first one warms up
    for _ in range(REPEATS):
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken), given


def _text(path: Path, flag: str) -> str:
    try:
        return file_bytes(path, TEXT).decode()
    except (OSError, WireError, UnicodeDecodeError) as error:
        raise PlanError(f"{flag} {path} cannot be read: {error}") from None
