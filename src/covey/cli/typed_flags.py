"""Which flags did a person type? A command refuses those that it would not read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

import typer

from covey.cli.options import FlagGroup


def typed(context: typer.Context, names: Iterable[str]) -> str:
    """The flags of these parameters that were typed, such as `--count, --seed`; empty where none was."""
    flags = {parameter.name: max(parameter.opts, key=len) for parameter in context.command.params}
    return ", ".join(flags[name] for name in names if _was_typed(context, name))


def names_of(*groups: type[FlagGroup]) -> list[str]:
    """The parameters of groups of flags."""
    return [field.name for group in groups for field in fields(group)]  # type: ignore[arg-type]


def _was_typed(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name in ("COMMANDLINE", "ENVIRONMENT")
