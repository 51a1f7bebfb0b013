"""Is what a person gave of the kind that a parameter takes? Its annotation says which kind that is."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache, wraps
from inspect import signature
from numbers import Integral, Real
from typing import Any, Literal, ParamSpec, SupportsFloat, TypeVar, get_args, get_origin

from covey.errors import PlanError

P = ParamSpec("P")
R = TypeVar("R")
UNIONS = (typing.Union, types.UnionType)

WORDS: Mapping[str, str] = {
    "int": "a whole number", "float": "a number", "bool": "True or False", "str": "a string",
    "PathLike": "a path", "Callable": "a function", "Mapping": "a dict", "Iterable": "something to go through",
    "Module": "a torch.nn.Module", "Optimizer": "a torch.optim.Optimizer", "Task": "a covey.Task",
    "Callback": "a covey.Callback", "Cluster": "a covey.simulate.Cluster",
    "Stateful": "an object with state_dict and load_state_dict", "Watcher": "an object with update and say",
}  # fmt: skip
"""What kinds are called, where their own names do not say it."""


def checked(place: str, omit: Sequence[str] = ()) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Refuse arguments of another kind than the annotations of the function say; `place` is what people call it."""

    def wrap(function: Callable[P, R]) -> Callable[P, R]:
        names = list(signature(function).parameters)

        @wraps(function)
        def call(*args: P.args, **given: P.kwargs) -> R:
            hints = kinds(function)
            named = zip(names, args, strict=False)  # too many or too few of them Python refuses
            for name, value in (*named, *given.items()):
                if name in hints and name not in omit and not fits(value, hints[name]):
                    check_kind(f"{place}: {name}", value, hints[name])
            return function(*args, **given)

        return call

    return wrap


def check_fields(place: str, owner: Any, omit: Sequence[str] = ()) -> None:
    """Refuse fields of a dataclass that are of another kind than it says; `place` is what people call it."""
    hints = kinds(type(owner))
    for one in fields(owner):
        if one.name not in omit:
            check_kind(f"{place}: {one.name}", getattr(owner, one.name), hints[one.name])


def check_kind(name: str, value: object, hint: Any) -> None:
    """Refuse a value of another kind; say what the parameter takes, and what it was given."""
    if not fits(value, hint):
        raise PlanError(f"{name} must be {words(hint)}, not {_misfit(value, hint)}")


kinds: Callable[[Any], dict[str, Any]] = cache(typing.get_type_hints)
"""What each parameter of a function, or field of a dataclass, takes."""


def fits(value: object, hint: Any) -> bool:
    """Whether a value is of a kind; of lists and dicts, whether all that is inside is."""
    kind, inside = get_origin(hint) or hint, get_args(hint)
    if kind in UNIONS:
        return any(fits(value, one) for one in inside)
    if kind is Literal:
        return any(value is one or (isinstance(one, str) and value == one) for one in inside)
    if kind in (int, float):
        return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    if kind is Mapping:
        return isinstance(value, Mapping) and all(fits(one, inside[1]) for one in value.values())
    if kind is Sequence:
        return _is_list(value) and all(fits(one, inside[0]) for one in value)  # type: ignore[attr-defined]
    return kind is Any or isinstance(value, kind)


def words(hint: Any) -> str:
    """A kind, as people say it."""
    kind, inside = get_origin(hint) or hint, get_args(hint)
    if kind in UNIONS:
        return " or ".join(dict.fromkeys(words(one) for one in inside if one is not types.NoneType))
    if kind is Literal:
        return " or ".join(map(repr, inside))
    if kind is Sequence:
        return "a list" if inside[0] is Any else f"a list (each {words(inside[0])})"
    name = kind.__name__
    return WORDS.get(name) or f"{'an' if name[0] in 'AEIO' else 'a'} {name}"


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _misfit(value: object, hint: Any) -> str:
    """What does not fit: the value, or what is in a list that would do."""
    for one in (hint, *get_args(hint)):
        if get_origin(one) is Sequence and _is_list(value):
            wrong = [each for each in value if not fits(each, get_args(one)[0])]  # type: ignore[attr-defined]
            return f"{describe(value)} with {describe(wrong[0])}"
    return describe(value)


def check_call(place: str, name: str, function: Any, arguments: Sequence[str], named: Sequence[str] = ()) -> None:
    """Refuse a function that cannot be called with these arguments, some of them by name; None is none."""
    try:
        takes = None if function is None else signature(function)
    except (TypeError, ValueError):  # of one that is written in C nothing is known
        return
    try:
        if takes is not None:
            takes.bind(*arguments, **dict.fromkeys(named))
    except TypeError:
        raise PlanError(
            f"{place}: {name} is called as {name}({', '.join(arguments)}), and the one given is {name}{takes}: give "
            f"{name}=lambda {', '.join(arguments)}: …".replace("lambda :", "lambda:")
        ) from None


def truth(place: str, value: object) -> bool:
    """Whether it is so; words and functions are no answer, as "no" and what was not called count as true in Python."""
    try:
        if not isinstance(value, str | bytes) and not callable(value):
            return bool(value)
    except (TypeError, ValueError, RuntimeError):  # an array or a tensor of several
        pass
    raise PlanError(f"{place} must be True or False, not {describe(value)}")


def number(place: str, value: object) -> float:
    """The number that it is, also in a tensor or an array."""
    try:
        if isinstance(value, SupportsFloat):
            return float(value)
    except (TypeError, ValueError, RuntimeError):
        pass
    raise PlanError(f"{place} must be one number, not {describe(value)}")


def describe(value: object) -> str:
    """A value in a few words, for a message."""
    if hasattr(value, "shape") and hasattr(value, "device"):  # a tensor; torch need not be imported for it
        place = f" on {value.device}" if str(value.device) != "cpu" else ""
        return f"a tensor of shape {tuple(value.shape)}{place}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"{type(value).__name__} {value!r:.60}" if isinstance(value, int | float | str) else type(value).__name__
