"""How is a run shown while it goes?  A live display on a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from rich.console import Console

from covey.cli.options import Voice
from covey.cli.progress.run_history import RunHistory, number, rates, step, wait
from covey.cli.tables.console import SafeConsole
from covey.observe.progress import Progress, Watcher
from covey.simulate.units import format_bytes, format_duration

if TYPE_CHECKING:
    from covey.cli.progress.live import Live

EVERY = 2.0  # seconds between two plain lines
ROLES = 16  # lines of roles at most: a simulated cluster may have a thousand


@contextmanager
def shown(title: str, until: str | None, voice: Voice) -> Iterator[Watcher]:
    """A watcher that fits the output; all of it goes to stderr, and the terminal is intact afterwards."""
    console = SafeConsole(stderr=True, highlight=False)
    verbose = voice == "verbose"
    if voice == "quiet":
        yield Silent()
    elif not sys.stderr.isatty() or console.is_dumb_terminal:
        yield Lines(console, title, verbose=verbose)
    else:
        with _live(console, title, until, verbose) as live:
            yield live


def _live(console: Console, title: str, until: str | None, verbose: bool) -> Live:
    from covey.cli.progress.live import Live

    return Live(console, title, until, verbose=verbose)


class Silent:
    """Shows nothing but what failed."""

    def update(self, progress: Progress) -> None:
        pass

    def say(self, line: str) -> None:
        pass

    def warn(self, line: str) -> None:
        """The run goes on, and something that was to come of it does not, such as its record."""
        with suppress(OSError):
            SafeConsole(stderr=True, highlight=False).print(line, soft_wrap=True, markup=False)


class Lines:
    """A line now and then and one for each score, for logs and pipes."""

    def __init__(
        self, console: Console, title: str, *, verbose: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console, self._title, self._verbose, self._clock = console, title, verbose, clock
        self._moments = RunHistory()
        self._printed = clock()
        self._begun = False

    def update(self, progress: Progress) -> None:
        if not self._begun:
            self._print(self._title)
            self._begun = True
        scored = self._moments.add(progress)
        now = self._clock()
        if scored or (now - self._printed >= EVERY and progress.phase not in ("starting", "ended")):
            self._print(summary(self._moments))
            if self._verbose:
                self._print_roles(progress)
            self._printed = now

    def say(self, line: str) -> None:
        self._print(line)

    def _print_roles(self, progress: Progress) -> None:
        for name, role in list(progress.roles.items())[:ROLES]:
            waiting = f"  waits for {role.waiting} ({format_duration(role.waited)})" if role.waiting else ""
            sent = format_bytes(role.bytes)
            self._print(f"    {name:<10} step {step(role)}  {role.samples:,} samples  {sent} sent{waiting}")
        if len(progress.roles) > ROLES:
            self._print(f"    … and {len(progress.roles) - ROLES:,} more roles")

    def _print(self, line: str) -> None:
        with suppress(OSError):  # a terminal that was closed must not end the run before it is kept
            self._console.print(line, soft_wrap=True, markup=False)


def summary(moments: RunHistory) -> str:
    """A run in one line."""
    now = moments.now
    found = [format_duration(now.seconds), f"{now.samples:,} samples"]
    if moments.share is not None:
        found[-1] += f" ({moments.share:.0%})"
    if now.phase != "training":
        found.insert(0, now.phase)
    found += [f"{name} {number(value)}" for name, value in _measured(now).items()]
    found += rates(moments)
    if waits := moments.longest_waits(2):
        found.append("waiting: " + ", ".join(wait(*one) for one in waits))
    return "  ".join(found)


def _measured(now: Progress) -> dict[str, float]:
    """The training loss and the metrics; a metric `loss` of the user's goes before ours."""
    return {**({"loss": now.loss} if now.loss is not None else {}), **now.metrics}
