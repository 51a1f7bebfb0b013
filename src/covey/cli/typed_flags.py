"""What did a person type? Numbers that can be read, one of workers where no range is taken, flags that are not read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any

import typer

from covey.errors import PlanError
from covey.spec.worker_range import parse_workers


def typed(context: typer.Context, names: Iterable[str]) -> str:
    """The flags of these parameters that were typed, such as `--count, --seed`; empty where none was."""
    flags = {parameter.name: max(parameter.opts, key=len) for parameter in context.command.params}
    return ", ".join(flags[name] for name in names if _was_typed(context, name))


def names_of(*groups: type[Any]) -> list[str]:
    """The parameters of groups of flags."""
    return [field.name for group in groups for field in fields(group)]


def _was_typed(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name in ("COMMANDLINE", "ENVIRONMENT")


def one_number(text: str | int) -> int:
    """The number that was typed; a range is refused with the commands that take one."""
    try:
        found = parse_workers(text)
    except PlanError:
        raise typer.BadParameter(f"{text}: write a number from 1 up, such as 4") from None
    if found.least or found.auto:
        raise typer.BadParameter(
            f"{text}: this command needs one number, such as {found.most}; ranges are for covey run and covey simulate"
        )
    return found.most


def whole(least: int) -> Callable[[str | int], int]:
    """Reads a whole number from this one up; a refusal shows what was typed, whatever the version of typer."""

    def whole_number(text: str | int) -> int:
        try:
            found = int(text)
        except ValueError:
            found = least - 1
        if found < least:
            raise typer.BadParameter(f"{text}: write a whole number from {least} up, such as {max(least, 4)}")
        return found

    return whole_number


def decimal(text: str | float) -> float:
    """The number that was typed."""
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text}: write a number, such as 0.5") from None
