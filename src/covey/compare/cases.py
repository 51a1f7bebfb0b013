"""Which runs does a comparison consist of?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from covey import registry
from covey.catalog import STRATEGIES
from covey.errors import PlanError
from covey.spec import expand, parse_list
from covey.systems import SYSTEMS

FAMILIES = ("all", "central", "decentral")


class Entrant(NamedTuple):
    """A strategy, and a factor on its learning rate."""

    spec: str
    rate: float = 1.0


@dataclass(frozen=True, slots=True)
class Case:
    """One run: a strategy, a factor on its learning rate, and which repetition (each has a seed of its own)."""

    spec: str
    rate: float = 1.0
    repeat: int = 0

    def __str__(self) -> str:
        rate = "" if self.rate == 1 else f" at {self.rate:g}x the rate"
        return f"{self.spec}{rate}" + (f", round {self.repeat + 1}" if self.repeat else "")


def specs(text: str) -> list[str]:
    """The SPECs that `all`, a family, or a list with grids stands for; each once."""
    found: dict[str, None] = {}
    for word in _words(text):
        found.update(dict.fromkeys(_family(word) if word in FAMILIES else [word]))
    return list(found)


def entrants(text: str, rates: Sequence[float] = (1.0,)) -> list[Entrant]:
    """Every strategy at every rate."""
    return [Entrant(spec, rate) for spec in specs(text) for rate in rates]


def parse_rates(text: str) -> tuple[float, ...]:
    """Factors on the learning rate: `0.5|1|2`."""
    try:
        rates = tuple(float(part) for part in text.split("|"))
    except ValueError:
        rates = ()
    if not rates or not all(0 < rate < float("inf") for rate in rates):
        raise PlanError(f"--rates {text}: write factors on the task's learning rate, such as '0.5|1|2'")
    return tuple(dict.fromkeys(rates))


def _words(text: str) -> list[str]:
    return [str(point) for spec in parse_list(text, grids=True) for point in expand(spec)]


def _family(name: str) -> list[str]:
    """The strategies of one room, each as it trains a small task; systems that are compositions come with `all`."""
    registry.search()
    own = [
        entry.example or title for title, entry in STRATEGIES.items()
        if name == "all" or entry.settings.__module__.startswith(f"covey.{name}.")
    ]  # fmt: skip
    return own + list(SYSTEMS) if name == "all" else own
