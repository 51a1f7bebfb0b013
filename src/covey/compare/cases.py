"""Which runs does a comparison consist of?"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from covey import registry
from covey.catalog import STRATEGIES, resolve
from covey.errors import PlanError
from covey.exchange.codecs.by_name import CODECS, WRAPPERS
from covey.names import option
from covey.spec import Call, SpecError, bind, expand, parse, parse_list
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


def specs(text: str, *workers: int) -> list[str]:
    """The SPECs that `all`, a family, or a list with grids stands for, on any of these numbers of workers.

    One that cannot be resolved, or that is another one after defaults, is refused. What a family has that cannot run
    with this many workers is left to fail as a run of its own.
    """
    if min(workers) < 1:
        raise PlanError(f"{option('workers', min(workers))}: at least 1 is needed")
    found: dict[Hashable, str] = {}
    for word in _words(text):
        for spec in _family(word) if word in FAMILIES else [word]:
            resolved = _resolved(spec, workers, lenient=word in FAMILIES)
            if resolved in found:
                raise PlanError(_twice(found[resolved], spec))
            found[resolved] = spec
    return list(found.values())


def entrants(text: str, workers: int, rates: Sequence[float] = (1.0,)) -> list[Entrant]:
    """Every strategy at every rate."""
    return [Entrant(spec, rate) for spec in specs(text, workers) for rate in rates]


def parse_rates(text: str) -> tuple[float, ...]:
    """Factors on the learning rate: `0.5|1|2`."""
    try:
        rates = tuple(float(part) for part in text.split("|"))
    except ValueError:
        rates = ()
    if not rates or not all(0 < rate < float("inf") for rate in rates):
        raise PlanError(f"{option('rates', text)}: write factors on the task's learning rate, such as '0.5|1|2'")
    return tuple(dict.fromkeys(rates))


def _words(text: str) -> list[str]:
    return [str(point) for spec in parse_list(text, grids=True) for point in expand(spec)]


def _resolved(spec: str, sizes: Sequence[int], *, lenient: bool) -> Hashable:
    """What two SPECs have in common that are the same strategy: its name, and all settings with their defaults."""
    try:
        strategy = resolve(spec, sizes[0])
    except Exception as error:
        if sizes[1:]:
            return _resolved(spec, sizes[1:], lenient=lenient)
        if lenient:
            return spec
        if isinstance(error, SpecError):
            raise PlanError(f"{spec}: {error.why}") from None
        raise
    codecs = tuple(_bound(call, spec) for call in parse(spec).codecs)
    made_of = strategy.composition
    return strategy.name, repr(sorted(strategy.settings.items())), codecs, made_of.over, repr(made_of.mesh)


def _bound(call: Call, text: str) -> str:
    """A codec, or what goes around one, with all its settings."""
    owner = {**CODECS, **WRAPPERS}.get(call.name)
    return f"{call.name} {bind(call, owner, 'codec', text)!r}" if owner else call.name


def _twice(one: str, other: str) -> str:
    if one == other:
        return f"{option('strategies')} names {one} twice: omit one"
    return (
        f"{option('strategies')} names {one} and {other}, which are the same strategy with the same settings: omit one"
    )


def _family(name: str) -> list[str]:
    """The strategies of a family, each as it trains a small task; systems that are compositions come with `all`."""
    registry.search()
    own = [
        entry.example or title for title, entry in STRATEGIES.items()
        if name == "all" or entry.settings.__module__.startswith(f"covey.{name}.")
    ]  # fmt: skip
    return own + list(SYSTEMS) if name == "all" else own
