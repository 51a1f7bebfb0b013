"""A comparison as a page of the report."""

from __future__ import annotations

from covey.catalog import resolve
from covey.compare.figures import Column, Figure, StrategyRow, best, columns, metric_of, rows, written
from covey.compare.outcomes import Comparison
from covey.errors import PlanError
from covey.report import Cell, DrawnRun, Page
from covey.simulate.units import format_duration
from covey.target import parse_target


def page(whole: Comparison) -> Page:
    """The table, the runs in the middle of their repetitions, and what they were."""
    found = rows(whole)
    shown = columns(found)
    finished = [row for row in found if row.results]
    metric = parse_target(whole.until).metric if whole.until else metric_of(finished[0].results[0]) if finished else ""
    return Page(
        title=_title(whole, found), summary=_summary(whole), metric=metric,
        target=parse_target(whole.until).value if whole.until else None,
        headers=["strategy", "rate", *(column.name for column in shown)],
        rows=[_cells(row, shown, found, whole) for row in found],
        runs=[DrawnRun(row.spec, row.middle(), row.recording) for row in finished],
        command=whole.command, remarks=_remarks(whole, found), facts=_facts(finished),
    )  # fmt: skip


def _title(whole: Comparison, found: list[StrategyRow]) -> str:
    timed = [row for row in found if "time to target" in row.figures]
    if not timed:
        return f"{len(found)} strategies on {whole.task}"
    first = min(timed, key=lambda row: row.figures["time to target"].value)
    return f"{first.spec} reached {whole.until} first, in {format_duration(first.figures['time to target'].value)}"


def _summary(whole: Comparison) -> str:
    virtual = "in virtual time" if whole.engine == "simulated" else f"on the engine {whole.engine}"
    repeats = max((outcome.repeat for outcome in whole.outcomes), default=0) + 1
    times = f", each {repeats} times (medians, and the range below)" if repeats > 1 else ""
    return f"{whole.task} on {whole.workers} workers, {virtual}{times}. The same initial weights and samples for all."


def _cells(row: StrategyRow, shown: list[Column], found: list[StrategyRow], whole: Comparison) -> list[Cell]:
    rate = Cell(f"{row.rate:g}x")
    if row.failure and not row.results:
        return [Cell(row.spec, row.failure.splitlines()[-1].strip(" ^")), rate, *(Cell("–") for _ in shown)]
    figures = [_cell(row.figures.get(column.name), column, found, whole) for column in shown]
    return [Cell(row.spec, _rule(row.spec, whole.workers)), rate, *figures]


def _cell(figure: Figure | None, column: Column, found: list[StrategyRow], whole: Comparison) -> Cell:
    if figure is None:
        return Cell("–")
    note = f"{written(figure.low, column.kind)} to {written(figure.high, column.kind)}" if figure.spread else ""
    return Cell(written(figure.value, column.kind), note, figure.value == best(found, column, whole))


def _rule(spec: str, workers: int) -> str:
    try:
        return f"rate {resolve(spec, workers).description.rate}"
    except PlanError:
        return ""


def _remarks(whole: Comparison, found: list[StrategyRow]) -> list[str]:
    late = [row.spec for row in found if row.results and "time to target" not in row.figures]
    remarks = [f"{whole.until} was not reached by {', '.join(late)}."] if whole.until and late else []
    if whole.interrupted:
        remarks.append("The comparison was interrupted; what was finished is shown.")
    return remarks


def _facts(finished: list[StrategyRow]) -> dict[str, dict[str, object]]:
    facts: dict[str, dict[str, object]] = {}
    for row in finished:
        result = row.middle()
        facts[row.strategy] = {**result.taxonomy, **result.settings, "seed": result.seed, "threads": result.threads}
    if finished:
        facts["The machine"] = {**finished[0].middle().machine, **finished[0].middle().versions}
    return facts
