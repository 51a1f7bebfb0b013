"""How is a run shown in a notebook? Below its cell, in a few lines that change at most twice a second."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from importlib import import_module
from math import isfinite

from covey import faults
from covey.observe.progress import Progress, Watcher
from covey.simulate.units import format_bytes, format_duration

EVERY = 0.5  # seconds between two pictures
LINES = 5  # of what was said
POINTS = 120  # of a curve
WINDOW = 24  # reports over which speed is measured
WIDE, TALL = 240, 48  # of a curve
TABLE = "border-collapse:collapse;font-variant-numeric:tabular-nums"
CELL = "text-align:right;padding:2px 8px;white-space:nowrap"  # not every notebook has room between cells of its own


class NotebookDisplay:
    """A watcher; `show` puts HTML where it put it before."""

    def __init__(
        self, title: str, show: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:  # fmt: skip
        self._title, self._show, self._clock = title, show, clock
        self._now, self._failed = Progress(phase="starting"), False
        self._seen: deque[Progress] = deque(maxlen=WINDOW)
        self._curves: dict[str, list[float]] = {}
        self._said: deque[str] = deque(maxlen=LINES)
        self._shown = clock()
        show(self.html())

    def update(self, progress: Progress) -> None:
        self._now = progress
        if not self._seen or progress.seconds > self._seen[-1].seconds:
            self._seen.append(progress)
        for name, value in progress.metrics.items():
            curve = self._curves.setdefault(name, [])
            if isfinite(value) and curve[-1:] != [value]:
                curve.append(value)
        self._draw()

    def say(self, line: str) -> None:
        self._said.append(line)
        self._draw()

    def close(self, why: str = "") -> None:
        """The last picture; `why` says how the run failed, if it did: without a traceback, which the cell shows."""
        if why:
            self._failed = True
            self._said.append(why.strip().split("\n\n")[0])
        self._show(self.html())

    def html(self) -> str:
        now, phase = self._now, "failed" if self._failed else self._now.phase
        pairs = {"phase": phase, "time": format_duration(now.seconds), "samples": f"{now.samples:,}"}
        if (speed := self._speed()) is not None:
            pairs["samples/s"] = f"{speed:,.0f}"
        pairs["sent"] = format_bytes(now.bytes)
        pairs |= {"loss": f"{now.loss:.4g}"} if now.loss is not None else {}
        pairs |= {name: f"{value:.4g}" for name, value in now.metrics.items()}
        heads = "".join(f"<th style='{CELL}'>{escape(name)}</th>" for name in pairs)
        cells = "".join(f"<td style='{CELL}'>{escape(value)}</td>" for value in pairs.values())
        done = min(1.0, now.samples / now.budget) if now.budget else None
        bar = f"<progress value='{done:.3f}' style='width:100%'></progress>" if done is not None else ""
        curves = "".join(_curve(name, values) for name, values in self._curves.items() if len(values) > 1)
        said = "".join(f"<div style='opacity:.7;white-space:pre-wrap'>{escape(line)}</div>" for line in self._said)
        return (
            f"<div style='font-family:system-ui,sans-serif;max-width:960px'><b>{escape(self._title)}</b>{bar}"
            f"<div style='overflow-x:auto'><table style='{TABLE}'><tr>{heads}</tr><tr>{cells}</tr></table></div>"
            f"{curves}{said}</div>"
        )

    def _speed(self) -> float | None:
        if len(self._seen) < 2:
            return None
        first, last = self._seen[0], self._seen[-1]
        return (last.samples - first.samples) / (last.seconds - first.seconds)

    def _draw(self) -> None:
        if self._clock() - self._shown >= EVERY:
            self._shown = self._clock()
            self._show(self.html())


def _curve(name: str, values: Sequence[float]) -> str:
    """The scores so far, as a line."""
    shown = values[:: 1 + len(values) // POINTS]
    low, high = min(shown), max(shown)
    points = " ".join(
        f"{place * WIDE / (len(shown) - 1):.1f},{TALL - 2 - (value - low) / ((high - low) or 1) * (TALL - 4):.1f}"
        for place, value in enumerate(shown)
    )
    line = f"<polyline fill='none' stroke='#0072b2' stroke-width='2' points='{points}'/>"
    return (
        f"<figure style='display:inline-block;margin:4px 16px 4px 0'><svg width='{WIDE}' height='{TALL}'>{line}</svg>"
        f"<figcaption>{escape(name)}: {values[0]:.4g} → {values[-1]:.4g}</figcaption></figure>"
    )


@contextmanager
def shown(watcher: Watcher | None, title: str) -> Iterator[Watcher | None]:
    """The watcher that was given; in a notebook one that shows the run there, if nobody else does."""
    display = None if watcher else _display(title)
    if display is None:
        yield watcher
        return
    try:
        yield display
    except BaseException as error:
        display.close(faults.words(error) if isinstance(error, Exception) else type(error).__name__)
        raise
    display.close()


def _display(title: str) -> NotebookDisplay | None:
    """A display in the notebook that this process is the kernel of; None elsewhere, as in IPython on a terminal."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if getattr(shell, "kernel", None) is None:
        return None
    tools = import_module("IPython.display")
    handle = tools.display(tools.HTML(""), display_id=True)
    return NotebookDisplay(title, lambda html: handle.update(tools.HTML(html)))
