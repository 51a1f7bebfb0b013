"""Check all that a file registers, law by law."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from covey import catalog, registry
from covey.check.codec_laws import CODEC_LAWS
from covey.check.engine_law import alike_on
from covey.check.laws import STRATEGY_LAWS
from covey.check.reach import beyond
from covey.engines.entries import ENGINES
from covey.errors import CoveyError
from covey.run.clusters import engine_of
from covey.run.options import options


@dataclass(frozen=True, slots=True)
class LawFinding:
    """A law, what it was asked of, and why it is broken, if it is."""

    name: str
    law: str
    why: str = ""


def check(file: Path, engine: str | None = None) -> Iterator[LawFinding]:
    """Each law of each strategy and codec that the file registers, one after the other; codecs with bsp, too.

    With an engine, each is also trained there.
    """
    names = registry.load(file)
    if engine:
        engine_of(options({"engine": engine}))  # refuses one that is not there
    past = beyond(file)
    yield LawFinding(file.name, "allowed imports only", "\n".join(past))
    for name in names:
        if name in ENGINES:
            continue  # what an engine must keep, only a run on its hosts can show
        if name not in registry.STRATEGIES:
            codec = catalog.codec(name)
            for law, holds in CODEC_LAWS.items():
                yield LawFinding(name, law, _why(lambda holds=holds, codec=codec: holds(codec)))  # type: ignore[misc]
        entry = registry.STRATEGIES.get(name)
        spec = (entry.example or name) if entry else f"bsp + {name}"
        for law, keeps in STRATEGY_LAWS.items():
            yield LawFinding(spec, law, _why(lambda keeps=keeps, spec=spec: keeps(spec)))  # type: ignore[misc]
        if engine:
            yield LawFinding(spec, f"alike on {engine}", _why(partial(alike_on, engine, spec)))


def _why(law: Callable[[], str]) -> str:
    """Why a law is broken; what its program raises is a reason too."""
    try:
        return law()
    except CoveyError as error:
        return str(error)
    except Exception as error:  # of a user's codec or strategy
        return f"{type(error).__name__}: {error}"
