"""How do written settings become a settings dataclass?"""

from __future__ import annotations

import types
import typing
from dataclasses import MISSING, Field, fields
from typing import Any, Literal, TypeVar

from covey.spec.call import Call, SpecError, nearest, written

T = TypeVar("T")

_TRUTH = {"true": True, "false": False}
_SPOKEN = {int: "a whole number", float: "a number", bool: "true or false", str: "a word or a quoted string"}


def bind(call: Call, owner: type[T], what: str, text: str) -> T:
    """Build a settings dataclass from what was written in the parentheses."""
    if call.made:
        return call.made.settings  # type: ignore[no-any-return]  # it was bound where the name is known
    known = _settings_of(owner)
    values: dict[str, Any] = {}
    for key, value in call.settings.items():
        at = call.places.get(key, call.at)
        if key not in known:
            has = ", ".join(_listing(*one) for one in known.values()) or "no settings"
            why = f"{what} '{call.name}' has no setting '{key}'{nearest(key, known)} It has: {has}"
            raise SpecError(text, at, why)
        hint = known[key][1]
        values[key] = _fit(value, hint)
        if values[key] is None:
            raise SpecError(text, at, f"{key} must be {_type_name(hint)}, not {written(value)}")
    for key, (one, hint) in known.items():
        if _required(one) and key not in values:
            raise SpecError(text, call.at, f"{what} '{call.name}' needs {key}=... ({_type_name(hint)})")
    return owner(**values)


def _settings_of(owner: type) -> dict[str, tuple[Field[Any], Any]]:
    """The fields that may be set, each with its type."""
    hints = typing.get_type_hints(owner)
    return {f.name: (f, hints[f.name]) for f in fields(owner) if f.init}


def _required(one: Field[Any]) -> bool:
    """Must this field be given?"""
    return one.default is MISSING and one.default_factory is MISSING


def _fit(value: object, hint: Any) -> Any:
    """The value as the field wants it, or None when it does not fit."""
    while isinstance(hint, typing.NewType):
        hint = hint.__supertype__
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        fitting = (_fit(value, option) for option in _options(hint))
        return next((found for found in fitting if found is not None), None)
    if typing.get_origin(hint) is Literal:
        return value if value in _options(hint) else None
    if hint is bool:
        return _TRUTH.get(value.lower()) if isinstance(value, str) else None
    if hint is float:
        return float(value) if isinstance(value, int | float) else None
    assert hint in (int, str), f"a setting cannot be a {hint}"
    return value if isinstance(value, hint) else None


def _type_name(hint: Any) -> str:
    """What a field takes, in words."""
    while isinstance(hint, typing.NewType):
        hint = hint.__supertype__
    if typing.get_origin(hint) is Literal:
        return " or ".join(map(str, _options(hint)))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(_type_name(option) for option in _options(hint))
    return _SPOKEN[hint]


def _listing(one: Field[Any], hint: Any) -> str:
    """A field with its default, or with what it takes when it has none."""
    default = one.default_factory() if one.default_factory is not MISSING else one.default
    if default is MISSING or default is None:
        return f"{one.name} ({_type_name(hint)}{', optional' if default is None else ''})"
    return f"{one.name}={str(default).lower() if isinstance(default, bool) else default}"


def _options(hint: Any) -> tuple[Any, ...]:
    return tuple(option for option in typing.get_args(hint) if option is not type(None))
