"""A task that a function of the user's makes, with arguments that were written as text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import Any

from covey.errors import PlanError
from covey.faults import in_task
from covey.names import meant
from covey.task.arguments import describe
from covey.task.definition import Task

Argument = int | float | bool | str
WORDS: Mapping[str, bool] = {"true": True, "True": True, "false": False, "False": False}

_PAIR = re.compile(r"""\s*([A-Za-z_]\w*)\s*=\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s,()"'=]+)\s*(?:,|$)""")
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


def made(place: str, function: Callable[..., Any], text: str) -> Task:
    """Call the function with what `text` says, such as `rate=0.1, width=32`; others keep their defaults."""
    given, known = read_arguments(place, text), signature(function).parameters
    for name in given:
        if name not in known:
            raise PlanError(f"{place} has no parameter {name!r}{meant(name, known)}")
        if why := misfit(name, given[name], known[name]):
            raise PlanError(f"{place}({text}): {why}")
    missing = [name for name, one in known.items() if one.default is Parameter.empty and name not in given]
    missing = [name for name in missing if known[name].kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)]
    if missing:
        raise PlanError(f"{place} needs {missing[0]}: give it a default, or write '{place}({missing[0]}=…)'")
    with in_task(f"{function.__name__}()"):
        found = function(**given)
    if not isinstance(found, Task):
        raise PlanError(f"{place}() must return a covey.Task; it returned {describe(found)}")
    return found


def misfit(name: str, value: Argument, parameter: Parameter) -> str:
    """Why the function cannot take this: a word where it wants a number, or a fraction where it wants a whole one."""
    told = getattr(parameter.annotation, "__name__", parameter.annotation)
    usual = type(parameter.default) in (int, float)
    if told not in ("int", "float") and not (usual and parameter.annotation is Parameter.empty):
        return ""
    if isinstance(value, str):
        return f"the task wants a number for {name!r}, not {value!r}"
    return f"the task wants {name}: int, not {value}" if told == "int" and value % 1 else ""


def read_arguments(place: str, text: str) -> dict[str, Argument]:
    """The arguments in `key=value, …`: numbers, true, false, words and quoted strings."""
    found: dict[str, Argument] = {}
    at = 0
    while at < len(text.rstrip()):
        pair = _PAIR.match(text, at)
        if pair is None:
            raise PlanError(f"{place}({text}): write key=value, separated by commas; this is not: {text[at:].strip()}")
        if pair[1] in found:
            raise PlanError(f"{place}({text}): {pair[1]} is given twice")
        found[pair[1]] = _value(pair[2])
        at = pair.end()
    return found


def _value(word: str) -> Argument:
    if word[0] in "\"'":
        return re.sub(r"\\(.)", r"\1", word[1:-1], flags=re.DOTALL)
    if word in WORDS:
        return WORDS[word]
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


def written_arguments(given: Mapping[str, Argument]) -> str:
    """The same arguments as text."""
    return ", ".join(f"{name}={_written(value)}" for name, value in given.items())


def _written(value: Argument) -> str:
    if not isinstance(value, str):
        return repr(value)
    if _PLAIN.fullmatch(value) and _value(value) == value:
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
