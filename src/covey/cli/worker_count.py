"""How many workers? One number, in commands whose workers do not come and go."""

from __future__ import annotations

import typer

from covey.errors import PlanError
from covey.spec.worker_range import parse_workers


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
