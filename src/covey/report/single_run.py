"""The report of one run, or of several: scores, where the time went, what it was; in a notebook in its own frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape

import msgspec

from covey.errors import PlanError
from covey.names import meant
from covey.observe.result import Result
from covey.report.page import Cell, DrawnRun, Page, render
from covey.simulate.units import format_bytes, format_duration

WHERE = ("seconds", "samples", "bytes")
OURS = (*WHERE, "loss", "training_loss")
POINTS = 200  # of a curve; a notebook is kept with all that it shows
TALL = 520  # pixels of the frame; what is longer scrolls


@dataclass(frozen=True, slots=True)
class Overlay:
    """Several runs in the same charts; a cell of a notebook that ends with it shows it."""

    page: Page

    def _repr_html_(self) -> str:
        return _frame(self.page)


def overlay(*results: Result, metric: str = "") -> Overlay:
    """Draw several runs in the same charts, each in a colour of its own.

    Args:
        results: What `covey.fit` returned.
        metric: The metric of the curves; by default the target's, or the first of the task's.

    >>> covey.report.overlay(covey.fit(task, "bsp", workers=4), covey.fit(task, "easgd", workers=4))
    """
    wrong = [type(one).__name__ for one in results if not isinstance(one, Result)]
    if not results or wrong:
        raise PlanError(f"overlay takes results of covey.fit, not {', '.join(wrong) or 'nothing'}")
    known = sorted({name for result in results for row in result.history for name in row} - set(WHERE))
    if metric and metric not in known:
        raise PlanError(f"overlay(metric={metric!r}): no run has that metric{meant(metric, known)}")
    return Overlay(_page(results, metric or _metric(results[0])))


def framed(result: Result) -> str:
    """The report of a run for a notebook."""
    return _frame(page_of(result))


def page_of(result: Result) -> Page:
    """One run as a page."""
    page = _page([result], _metric(result))
    recording = result.recording.excerpt() if result.recording else None
    return replace(page, runs=[replace(page.runs[0], recording=recording)])


def _frame(page: Page) -> str:
    """A frame without scripts, whose styles touch nothing outside."""
    inside = escape(render(page), quote=True)
    style = f"width:100%;height:{TALL}px;border:1px solid #8884;border-radius:6px"
    return f'<iframe sandbox="" title="covey: a run" style="{style}" srcdoc="{inside}"></iframe>'


def _page(results: Sequence[Result], metric: str) -> Page:
    first, *others = results
    labels = _labels(results)
    cells = [_cells(label, result, metric) for label, result in zip(labels, results, strict=True)]
    headers = list({name: None for row in cells for name in row})  # a run without far data has fewer
    target = first.reached
    return Page(
        title=" and ".join(labels) if len(labels) < 3 else f"{len(labels)} runs", summary=_summary(first, others),
        metric=metric, target=target.target if target and target.metric == metric else None,
        headers=headers, rows=[[row.get(name, Cell("–")) for name in headers] for row in cells],
        runs=[DrawnRun(label, _drawn(result)) for label, result in zip(labels, results, strict=True)],
        command=first.command if not others else "",
        remarks=[line for result in results for line in result.failures[:5]],
        facts={
            "Settings": {**first.taxonomy, **first.settings, "seed": first.seed, "threads": first.threads},
            "The machine": {**first.machine, **first.versions},
        } if not others else {},
    )  # fmt: skip


def _labels(results: Sequence[Result]) -> list[str]:
    """The strategies; with a number where two runs have the same."""
    strategies = [result.strategy for result in results]
    return [
        f"{name} ({strategies[: at + 1].count(name)})" if strategies.count(name) > 1 else name
        for at, name in enumerate(strategies)
    ]


def _summary(first: Result, others: Sequence[Result]) -> str:
    many = f"{first.workers:,} {'client' if first.participation else 'worker'}{'s' if first.workers > 1 else ''}"
    where = "in virtual time" if first.engine == "simulated" else f"on the engine {first.engine}"
    asked = (first.task, first.workers, first.engine)
    alike = all((other.task, other.workers, other.engine) == asked for other in others)
    return f"{first.task} on {many}, {where}." if alike else f"{len(others) + 1} runs of different tasks or clusters."


def _cells(label: str, result: Result, metric: str) -> dict[str, Cell]:
    scores = [value for row in result.history if (value := row.get(metric)) is not None]
    return {
        "run": Cell(label), "stopped by": Cell(result.stopped), "time": Cell(format_duration(result.seconds)),
        "samples": Cell(f"{result.samples:,}"), "updates": Cell(f"{result.updates:,}"),
        "sent": Cell(format_bytes(result.traffic.bytes)),
        **_read(result),
        metric: Cell(f"{scores[-1]:.4g}" if scores else "–"),
    }  # fmt: skip


def _read(result: Result) -> dict[str, Cell]:
    """Bytes of far data, by where they were, in a run that read some."""
    names = ("backend bytes", "peer bytes", "cached bytes")
    return {name: Cell(format_bytes(int(result.notes.get(name) or 0))) for name in names if name in result.notes}


def _drawn(result: Result) -> Result:
    """The same with fewer points."""
    history = result.history[:: 1 + len(result.history) // POINTS]
    if result.history and history[-1] is not result.history[-1]:
        history.append(result.history[-1])
    return msgspec.structs.replace(result, history=history, usage=result.usage[:: 1 + len(result.usage) // POINTS])


def _metric(result: Result) -> str:
    """What the curves show: the target's metric, or the first of the task's."""
    if result.reached:
        return result.reached.metric
    own = (name for row in result.history for name in row if name not in OURS)
    return next(own, "loss")
