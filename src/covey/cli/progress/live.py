"""The live display: a few lines on a terminal that change as the run goes."""

from __future__ import annotations

import time
from contextlib import suppress
from types import TracebackType
from typing import Literal

from rich.console import Console, Group, RenderableType
from rich.live import Live as Region
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from covey.cli.progress.run_history import RunHistory, number, rates, step, wait
from covey.errors import PlanError
from covey.observe.progress import Progress
from covey.simulate.units import format_bytes, format_duration
from covey.target import Target, parse_target

EVERY = 0.1  # seconds between two pictures
AROUND = 8  # lines of the terminal that are not for roles

_SIDES: tuple[Literal["left", "right"], ...] = ("left", "right", "right", "right")


class Live:
    """Draws when it is told something: a thread that draws by itself would be in the way of the roles' fork."""

    def __init__(self, console: Console, title: str, until: str | None, *, verbose: bool = False) -> None:
        self._console, self._title, self._verbose = console, title, verbose
        self._target = _target(until)
        self._moments = RunHistory()
        self._drawn = 0.0
        # Its roles inherit sys.stdout, so it must stay what it is.
        self._region = Region(
            console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False, transient=True
        )

    def __enter__(self) -> Live:
        self._region.start()
        self._draw()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._region.transient = error is None  # after a failure the last picture says how far it came
        with suppress(OSError):
            self._region.stop()

    def update(self, progress: Progress) -> None:
        changed = progress.phase != self._moments.now.phase
        scored = self._moments.add(progress)
        if changed or scored or time.monotonic() - self._drawn >= EVERY:
            self._draw()

    def say(self, line: str) -> None:
        with suppress(OSError):
            self._console.print(line, markup=False)

    def _draw(self) -> None:
        with suppress(OSError):  # a terminal that was closed must not end the run before it is kept
            self._region.update(self.picture(), refresh=True)
        self._drawn = time.monotonic()

    def picture(self) -> RenderableType:
        """The run as it is now; always equally high, so that nothing jumps."""
        lines: list[RenderableType] = [self._heading(), self._bar(), self._measured(), self._rates(), self._waits()]
        return Group(*lines, self._roles()) if self._verbose else Group(*lines)

    def _heading(self) -> Table:
        now = self._moments.now
        line = _line("left", "right")
        trained = f" {format_duration(now.seconds)}" if now.seconds else ""
        line.add_row(Text(self._title, "bold"), Text(now.phase + trained, "cyan"))
        return line

    def _bar(self) -> Table:
        moments = self._moments
        now, share = moments.now, moments.share
        line = Table.grid(padding=(0, 2, 0, 0), expand=True)
        line.add_column(ratio=1)
        line.add_column(justify="right", no_wrap=True)
        bar = ProgressBar(total=now.budget or None, completed=now.samples, pulse=now.budget is None)
        counted = f"{now.samples:,} samples" if share is None else f"{now.samples:,} of {now.budget:,} samples"
        left = f"  {format_duration(moments.left)} left" if moments.left is not None else ""
        line.add_row(bar, Text.assemble(counted, f"  {share:.0%}" if share is not None else "", (left, "dim")))
        return line

    def _measured(self) -> Text:
        now, metrics = self._moments.now, self._moments.now.metrics
        loss = {"loss": now.loss} if now.loss is not None else {}
        pieces = [self._metric(name, value) for name, value in metrics.items()]
        pieces += [Text.assemble(("loss ", "dim"), number(value)) for value in loss.values() if "loss" not in metrics]
        return _joined(pieces or [Text("not scored yet", "dim")])

    def _metric(self, name: str, value: float) -> Text:
        aim = self._target if self._target and self._target.metric == name else None
        spark = "" if self._console.options.ascii_only else self._moments.spark(name, 16)
        piece = Text.assemble((f"{name} ", "dim"), (number(value), "bold green" if aim else ""))
        piece.append(f" {spark}" if spark else "", "green")
        return piece.append(f" until {aim.op or ':'} {number(aim.value)}" if aim else "", "dim")

    def _rates(self) -> Text:
        return _joined([Text(piece) for piece in rates(self._moments)] or [Text("no speed yet", "dim")])

    def _waits(self) -> Text:
        waits = self._moments.longest_waits(2)
        if not waits:
            return Text("nobody waits long", "dim", no_wrap=True, overflow="ellipsis")
        text = Text.assemble(("waiting: ", "yellow"), ", ".join(wait(*one) for one in waits))
        text.no_wrap, text.overflow = True, "ellipsis"
        return text

    def _roles(self) -> Table:
        roles = self._moments.now.roles
        room = max(2, self._console.height - AROUND)
        table = Table.grid(padding=(0, 2, 0, 0))
        for justify in _SIDES:
            table.add_column(justify=justify, no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis")
        table.add_row("role", "step", "samples", "sent", "waits for", style="dim")
        for name, role in list(roles.items())[:room]:
            waits = f"{role.waiting} ({format_duration(role.waited)})" if role.waiting else ""
            table.add_row(name, step(role), f"{role.samples:,}", format_bytes(role.bytes), waits)
        if len(roles) > room:
            table.add_row(f"and {len(roles) - room:,} more", style="dim")
        return table


def _line(*justify: Literal["left", "right"]) -> Table:
    line = Table.grid(padding=(0, 2, 0, 0), expand=True)
    for side in justify:
        line.add_column(justify=side, no_wrap=True, overflow="ellipsis")
    return line


def _joined(pieces: list[Text]) -> Text:
    text = Text("   ").join(pieces)
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _target(until: str | None) -> Target | None:
    """The target to show; one that cannot be read is refused by the run, not by its picture."""
    try:
        return parse_target(until) if until else None
    except PlanError:
        return None
