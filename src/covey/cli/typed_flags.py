"""What did a person type? One number of workers where no range is taken, and flags that a command would not read."""

from __future__ import annotations

from collections.abc import Iterable
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
