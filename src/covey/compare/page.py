"""A comparison as a page of the report."""

from __future__ import annotations

from covey.catalog import resolve
from covey.compare.figures import Column, Figure, StrategyRow, best, columns, metric_of, remarks, rows, written
from covey.compare.outcomes import Comparison
from covey.compare.verdict import spread
from covey.errors import PlanError
from covey.report import Cell, DrawnRun, Page
from covey.report.charts import Chart, colour
from covey.target import parse_target


def page(whole: Comparison) -> Page:
    """The table, the runs in the middle of their repetitions, and what they were."""
    found = rows(whole)
    shown = columns(found)
    finished = [row for row in found if row.results]
    broken = [f"{row.spec} {whole.failed(row.spec, row.rate)}: {row.failure}" for row in finished if row.failure]
    metric = parse_target(whole.until).metric if whole.until else metric_of(finished[0].results[0]) if finished else ""
    return Page(
        title=whole.verdict, summary=_summary(whole), metric=metric,
        target=parse_target(whole.until).value if whole.until else None,
        headers=["strategy", "rate", *(["ratio"] if whole.until else []), *(column.name for column in shown)],
        charts=[dots] if (dots := _dots(whole, found)) else [], labels=[row.spec for row in finished],
        rows=[_cells(row, shown, found, whole) for row in found],
        runs=[DrawnRun(row.spec, row.middle(), row.recording) for row in finished],
        command=whole.command, remarks=[*remarks(whole), *broken], facts=_facts(finished),
    )  # fmt: skip


def _summary(whole: Comparison) -> str:
    virtual = "in virtual time" if whole.engine == "simulated" else f"on the engine {whole.engine}"
    repeats = max((outcome.repeat for outcome in whole.outcomes), default=0) + 1
    times = f", each {repeats} times (medians, and the range below)" if repeats > 1 else ""
    return f"{whole.task} on {whole.workers} workers, {virtual}{times}. The same initial weights and samples for all."


def _cells(row: StrategyRow, shown: list[Column], found: list[StrategyRow], whole: Comparison) -> list[Cell]:
    rate = Cell(f"{row.rate:g}x")
    if row.failure and not row.results:
        empty = len(shown) + (whole.until is not None)
        return [Cell(row.spec, row.failure.splitlines()[-1].strip(" ^")), rate, *(Cell("–") for _ in range(empty))]
    figures = [_cell(row.figures.get(column.name), column, found, whole) for column in shown]
    ratios = [_ratio(row.spec, whole)] if whole.until else []
    return [Cell(row.spec, _rule(row.spec, whole.workers)), rate, *ratios, *figures]


def _ratio(spec: str, whole: Comparison) -> Cell:
    """The interval of its time in that of the fastest."""
    one = next(one for one in whole.strategies if one.spec == spec)
    note = f"{one.reached} of {one.runs} runs reached the target"
    if one.ratio is None or (one.ratio.low == 0 and one.ratio.high is None):
        return Cell("–", note)
    return Cell(spread(one.ratio) if one.ratio.low != one.ratio.high else "1x", note, spec == whole.winner)


def _dots(whole: Comparison, found: list[StrategyRow]) -> Chart | None:
    """A dot for each run, at its time; grey ones ended there without reaching the target."""
    if not whole.until:
        return None
    data = []
    rows = [row for row in found if row.results]
    for number, row in enumerate(rows):
        for reached, paint in ((True, colour(number)), (False, "#888888")):
            times = [
                result.reached.seconds if result.reached else result.seconds
                for result in row.results if (result.reached is not None) is reached
            ]  # fmt: skip
            if times:
                name = row.spec if reached else "missed the target"
                data.append(
                    {
                        "type": "scatter", "mode": "markers", "name": name, "x": times, "y": [row.spec] * len(times),
                        "marker": {"color": paint, "size": 8}, "hovertemplate": "%{x:.4g} s",
                    }
                )  # fmt: skip
    if not data:
        return None
    return Chart(
        name="runs", title="Each run", caption="A dot for each run, at its time to the target, on a logarithmic axis.",
        data=data, height=90 + 30 * len(rows),
        layout={"xaxis": {"title": {"text": "seconds of training"}, "type": "log"}, "yaxis": {"automargin": True}},
    )  # fmt: skip


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


def _facts(finished: list[StrategyRow]) -> dict[str, dict[str, object]]:
    facts: dict[str, dict[str, object]] = {}
    for row in finished:
        result = row.middle()
        facts[row.strategy] = {**result.taxonomy, **result.settings, "seed": result.seed, "threads": result.threads}
    if finished:
        facts["The machine"] = {**finished[0].middle().machine, **finished[0].middle().versions}
    return facts
