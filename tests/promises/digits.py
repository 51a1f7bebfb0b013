"""Runs on the digits whose bytes are counted: what an entry's traffic formula is asked about."""

from __future__ import annotations

from covey import catalog
from covey.data.shards import Shards
from covey.strategy import CountedRun, TrafficFormula
from tests.promises.specs import SPECS

LAYERS = ((64, 64), (10, 64))  # outputs and inputs of the model's layers
NUMBERS = sum(outputs * inputs + outputs for outputs, inputs in LAYERS)


def formula(name: str) -> TrafficFormula:
    """What the entry of a name says that it sends."""
    found = catalog.STRATEGIES[name].traffic
    assert found is not None, f"the entry of {name} has no traffic"
    return found


def counted(name: str, workers: int, steps: int) -> CountedRun:
    """The first steps of an epoch, before anything has been sent."""
    settings = catalog.resolve(SPECS.get(name, name), workers).settings
    batch = Shards(1437, workers, 32, 0).batch
    return CountedRun(
        workers=workers, steps=steps, numbers=NUMBERS, settings=settings, layers=LAYERS, batch=batch
    )  # fmt: skip


def positive(links: dict[str, int]) -> dict[str, int]:
    return {link: size for link, size in links.items() if size}
