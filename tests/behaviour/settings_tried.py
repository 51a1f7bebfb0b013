"""Which settings are tried: every other member of an enumeration, and of numbers those that a table names."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, Literal

Settings = dict[str, Any]


def variants(kind: type[Any], tried: Mapping[str, tuple[Any, ...]], base: Settings) -> Iterator[tuple[Settings, bool]]:
    """The base with one setting at each of its other values; and whether that is a member, or the first of numbers."""
    hints = typing.get_type_hints(kind)
    for one in fields(kind):
        if one.init:
            usual, found = base.get(one.name, one.default), members(hints[one.name])
            numbers = tried.get(one.name, () if found else around(usual, hints[one.name]))
            assert found or numbers, f"say which values of {kind.__name__}.{one.name} are to be tried"
            for value in (*found, *numbers):
                if value != usual:
                    yield {**base, one.name: value}, value in (*found, *numbers[:1])


def around(usual: Any, hint: Any) -> tuple[Any, ...]:
    """Two other values of a number, where no table names any."""
    if isinstance(usual, int):
        return usual + 1, 2 * usual + 2
    if isinstance(usual, float) and usual:
        return usual / 2, usual * 2
    kinds = typing.get_args(hint) or (hint,)
    return (1, 2) if int in kinds else (0.2, 0.6) if float in kinds else ()


def members(hint: Any) -> list[Any]:
    """All values of an enumeration."""
    while isinstance(hint, typing.NewType):
        hint = hint.__supertype__
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return [value for option in typing.get_args(hint) for value in members(option)]
    if typing.get_origin(hint) is Literal:
        return list(typing.get_args(hint))
    return [False, True] if hint is bool else []


def written(name: str, settings: Mapping[str, Any]) -> str:
    """As a SPEC says it."""
    inside = ", ".join(
        f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in settings.items()
    )
    return f"{name}({inside})" if inside else name
