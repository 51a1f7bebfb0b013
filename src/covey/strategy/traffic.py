"""How many bytes does a strategy send? A formula for each link, in bytes of payload, and its sum in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from covey.message import Message

LinkBytes = dict[str, int]
"""Bytes by link, such as {"worker 0->server 0": 4096}."""


@dataclass(frozen=True, kw_only=True)
class CountedRun:
    """A run whose bytes are counted: n workers, each with a number of steps, on a model in one vector.

    Args:
        workers: How many there are.
        steps: How many each of them did.
        numbers: How many numbers the model has.
        width: Bytes of a number.
        settings: Of the strategy, with their values.
        layers: (outputs, inputs) of the model's fully connected layers, which also have biases.
        batch: How many samples a worker's batch has, by rank and step.
        counts: By link: messages of the kinds that `TrafficFormula.counted` names.
        sizes: By link: bytes of the messages that `TrafficFormula.sized` names.
    """

    workers: int
    steps: int
    numbers: int
    width: int = 4
    settings: Mapping[str, object] = field(default_factory=dict)
    layers: tuple[tuple[int, int], ...] = ()
    batch: Callable[[int, int], int] = lambda rank, step: 1
    counts: Counter[str] = field(default_factory=Counter)
    sizes: Counter[str] = field(default_factory=Counter)

    @property
    def model(self) -> int:
        """Bytes of the model."""
        return self.numbers * self.width

    @property
    def ranks(self) -> range:
        return range(self.workers)

    @property
    def period(self) -> int:
        """Steps between two exchanges."""
        period = self.settings.get("period")
        return period if isinstance(period, int) else 1


@dataclass(frozen=True, slots=True)
class TrafficFormula:
    """What a strategy sends.

    Args:
        models: How often the model's bytes leave some machine, per step and worker, such as "2 (n-1)/n / period"; n is
            the number of workers, other names are settings. "at most ..." where that depends on the model or the
            network; words where nothing else does.
        links: The bytes on each link of a run.
        counted: Messages of which only chance, or speeds, know how many there are.
        sized: Messages of which only speeds know how large they are.
        beside: Bytes that travel beside the model in every message, where every message holds a model.

    >>> up = covey.TrafficFormula("1", lambda run: {f"worker {r}->server 0": run.steps * run.model for r in run.ranks})
    >>> up.counted
    ()
    """

    models: str
    links: Callable[[CountedRun], LinkBytes]
    counted: tuple[type[Message], ...] = ()
    sized: tuple[type[Message], ...] = ()
    beside: int | None = None
