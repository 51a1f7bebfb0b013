"""What may a setting be? Asked of the code: values are tried, and the strategy refuses those that cannot work."""

from __future__ import annotations

import typing
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from covey import catalog
from covey.errors import PlanError
from covey.spec import parse

LARGE = 10**6


def allowed(spec: str, owner: str, setting: str, hint: Any, workers: int) -> str:
    """What a setting of the strategy or codec `owner` may be, in words; empty when nothing was refused.

    `1 or more`, `more than 0, up to 1`, `keep or reset or average`.
    """
    kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)] or [hint]
    if typing.get_origin(hint) is Literal:
        return " or ".join(map(str, typing.get_args(hint)))
    if kinds == [bool]:
        return "true or false"
    if int not in kinds and float not in kinds:
        return ""
    works = _works(spec, owner, setting, workers)
    return _counted(works) if float not in kinds else _measured(works)


def _works(spec: str, owner: str, setting: str, workers: int) -> Callable[[float], bool]:
    asked = parse(spec)

    def works(value: float) -> bool:
        strategy, *codecs = (
            replace(call, settings={**call.settings, setting: value}) if call.name == owner else call
            for call in (asked.strategy, *asked.codecs)
        )
        try:
            catalog.resolve(replace(asked, strategy=strategy, codecs=tuple(codecs)), workers)
        except PlanError:
            return False
        return True

    return works


def _counted(works: Callable[[float], bool]) -> str:
    fit = [value for value in range(-1, 33) if works(value)]
    if not fit or fit[0] < 0:
        return ""
    if works(LARGE):
        return f"{fit[0]} or more"
    last, beyond = fit[-1], LARGE if works(32) else fit[-1] + 1
    while beyond - last > 1:
        middle = (last + beyond) // 2
        last, beyond = (middle, beyond) if works(middle) else (last, middle)
    return f"{fit[0]} to {last}" if last > fit[0] else ""


def _measured(works: Callable[[float], bool]) -> str:
    inside = next((value for value in (0.5, 0.1, 0.01, 2.0) if works(value)), None)
    if inside is None:
        return ""
    low = _edge(works, inside, -float(LARGE), "or more", "more than")
    high = _edge(works, inside, float(LARGE), "up to", "less than")
    return ", ".join(edge for edge in (low, high) if edge)


def _edge(works: Callable[[float], bool], inside: float, outside: float, with_it: str, without: str) -> str:
    """Where it ceases to work, in words; empty when it works everywhere."""
    if works(outside):
        return ""
    while abs(outside - inside) > 1e-9:
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if works(middle) else (inside, middle)
    limit = round(inside, 6) + 0.0
    if abs(limit - inside) > 1e-8 or not works(limit):
        return f"{without} {limit:g}"
    return f"{limit:g} {with_it}" if with_it == "or more" else f"{with_it} {limit:g}"
