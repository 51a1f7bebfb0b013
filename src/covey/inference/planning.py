"""Which machines would keep an objective, and for how much? The programs of a service, in virtual time over a trace."""

from __future__ import annotations

import math
import statistics
import time
import tomllib
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from covey.decoding import TEXT, UNREADABLE, file_bytes
from covey.errors import PlanError, WireError
from covey.inference.front import OK, FrontSettings
from covey.inference.replica import BatchModel
from covey.inference.virtual_service import VirtualService

MOST = 64  # replicas that are tried
REPEATS = 5  # of a measurement, of which the median counts


class MachinePrice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kind of machine that runs one replica: what an hour of it costs, and how fast it is beside this one."""

    price: float
    speed: float = 1.0


class ServiceForecast(msgspec.Struct, frozen=True):
    """What a set-up would do on a trace."""

    machine: str
    replicas: int
    price: float  # of an hour
    in_time: float  # share of the requests that were answered within the objective
    seconds: float  # the percentile of the objective
    keeps: bool


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """Seconds that batches of some sizes take; those of other sizes lie on lines between them."""

    sizes: Sequence[int]
    seconds: Sequence[float]

    def __call__(self, size: int) -> float:
        at = min(bisect_left(self.sizes, size), len(self.sizes) - 1)
        if at == 0 or self.sizes[at] == size:
            return self.seconds[at]
        low, high = self.sizes[at - 1], self.sizes[at]
        slope = (self.seconds[at] - self.seconds[at - 1]) / (high - low)
        return self.seconds[at - 1] + slope * (size - low)


def measure(model: BatchModel, example: Tensor, largest: int) -> BatchTimes:
    """How long this machine takes for batches of 1, 2, 4 and so on."""
    sizes = sorted({*(1 << power for power in range(largest.bit_length())), largest})
    return BatchTimes(sizes, [_median(model, _resized(example, size)) for size in sizes])


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
        if not 0 <= at < math.inf:
            raise PlanError(f"{path}, line {number + 1}: times are seconds from the beginning, 0 or more")
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
        if not (0 <= one.price < math.inf and 0 < one.speed < math.inf):
            raise PlanError(f"{path}: [{name}] needs a price of 0 or more, and a speed above 0")
    return found


def forecasts(
    arrivals: Sequence[float], times: Callable[[int], float], prices: Mapping[str, MachinePrice],
    settings: FrontSettings, share: float, most: int = MOST,
) -> list[ServiceForecast]:  # fmt: skip
    """The fewest replicas of each kind of machine that keep the objective, the cheapest first, then what does not."""
    found = [_fewest(name, arrivals, times, one, settings, share, most) for name, one in prices.items()]
    return sorted(found, key=lambda one: (not one.keeps, one.price, one.replicas))


def _fewest(
    name: str, arrivals: Sequence[float], times: Callable[[int], float], machine: MachinePrice,
    settings: FrontSettings, share: float, most: int,
) -> ServiceForecast:  # fmt: skip
    def tried(replicas: int) -> ServiceForecast:
        service = VirtualService(settings, replicas, lambda size: times(size) / machine.speed)
        for at in arrivals:
            service.request(at)
        answers = service.run()
        waits = sorted(one.seconds if one.answer.status == OK else math.inf for one in answers)
        in_time = sum(wait <= settings.objective for wait in waits) / len(waits)
        late = waits[math.ceil(share * len(waits)) - 1]
        price = machine.price * replicas
        return ServiceForecast(name, replicas, price, in_time, late, late <= settings.objective)

    low, best = 0, tried(1)
    while not best.keeps and best.replicas < most:
        low, best = best.replicas, tried(min(most, 2 * best.replicas))
    while best.keeps and best.replicas - low > 1:
        middle = tried((low + best.replicas) // 2)
        if middle.keeps:
            best = middle
        else:
            low = middle.replicas
    return best


def _median(model: BatchModel, rows: Tensor) -> float:
    taken = []
    for _ in range(REPEATS + 1):  # the first one warms up
        begin = time.perf_counter()
        model(rows)
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken[1:])


def _resized(example: Tensor, size: int) -> Tensor:
    return torch.cat([example] * -(-size // len(example)))[:size]


def _text(path: Path, flag: str) -> str:
    try:
        return file_bytes(path, TEXT).decode()
    except (OSError, WireError, UnicodeDecodeError) as error:
        raise PlanError(f"{flag} {path} cannot be read: {error}") from None
