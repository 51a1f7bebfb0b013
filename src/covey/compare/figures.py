"""What do the runs of a comparison come to, strategy by strategy?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from statistics import median

from covey.compare.outcomes import ComparedRun, Comparison
from covey.observe.recording import Recording
from covey.observe.result import Result
from covey.simulate.units import format_bytes, format_duration
from covey.target import Better, direction, parse_target


@dataclass(frozen=True, slots=True)
class Figure:
    """A number over the repetitions of one strategy."""

    value: float
    low: float
    high: float

    @property
    def spread(self) -> bool:
        return self.low != self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of the table."""

    name: str
    measure: Callable[[Result, Comparison], float | None]
    kind: str  # how it is written: time, count, bytes, share, score, number
    short: str  # its name where there is little room
    best: Callable[[Sequence[float]], float] | None = min
    to_target: bool = False  # what it took until the target
    until: bool = False  # a cost of coming to the target: the least is no best where that was not reached
    way: Callable[[Comparison], Better | None] | None = None  # of a score: in which direction it gets better


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyRow:
    """One strategy, at the rate that served it best."""

    spec: str
    strategy: str  # with the settings that it took by default
    rate: float
    figures: Mapping[str, Figure]
    results: Sequence[Result]
    recording: Recording | None = None
    failure: str = ""

    def middle(self) -> Result:
        """The repetition in the middle: the one that is drawn."""
        return sorted(self.results, key=_until)[(len(self.results) - 1) // 2]


def _reached(result: Result, _: Comparison) -> float | None:
    return result.reached.seconds if result.reached else None


def _samples(result: Result, _: Comparison) -> float | None:
    return result.reached.samples if result.reached else None


def _final(result: Result, whole: Comparison) -> float | None:
    name = parse_target(whole.until).metric if whole.until else metric_of(result)
    values = [row[name] for row in result.history if row.get(name) is not None]
    return values[-1] if values else None


def metric_of(result: Result) -> str:
    """The metric of the task; the loss where it has none."""
    ours = ("seconds", "samples", "bytes", "loss", "training_loss")
    named = [name for row in result.history[:1] for name in row if name not in ours]
    return named[0] if named else "loss"


def _best(result: Result, _: Comparison) -> float | None:
    return result.best.value if result.best else None


def _per_second(result: Result, _: Comparison) -> float | None:
    return result.samples / result.seconds if result.seconds else None


def _waiting(result: Result, _: Comparison) -> float | None:
    shares = [share.waiting for name, share in result.roles.items() if name.startswith("worker")]
    return sum(shares) / len(shares) if shares else None


def _until(result: Result) -> float:
    return result.reached.seconds if result.reached else result.seconds


def _money(result: Result, whole: Comparison) -> float | None:
    return sum(whole.prices.values()) * _until(result) / 3600 if whole.prices else None


def _energy(result: Result, whole: Comparison) -> float | None:
    return sum(whole.watts.values()) * _until(result) / 3.6e6 if whole.watts else None


def wanted(whole: Comparison) -> Better | None:
    """In which direction the metric that is aimed at gets better; None where nobody has said."""
    if whole.until:
        return "lower" if parse_target(whole.until).op == "<=" else "higher"
    return next((direction(metric_of(result), whole.better) for result in _results(whole)), None)


def preferred(whole: Comparison) -> Better | None:
    """The same of the metric by which the best score of a run is known."""
    return next((direction(result.best.metric, whole.better) for result in _results(whole) if result.best), None)


def _results(whole: Comparison) -> list[Result]:
    return [outcome.result for outcome in whole.outcomes if outcome.result is not None]


COLUMNS = (
    Column(name="time to target", short="time", measure=_reached, kind="time", to_target=True),
    Column(name="samples to target", short="samples", measure=_samples, kind="count", to_target=True),
    Column(name="final", short="final", measure=_final, kind="score", way=wanted),
    Column(name="best", short="best", measure=_best, kind="score", way=preferred),
    Column(name="sent", short="sent", measure=lambda result, _: result.traffic.bytes, kind="bytes"),
    Column(name="samples/s", short="per s", measure=_per_second, kind="count", best=max),
    Column(name="staleness", short="stale", measure=lambda result, _: result.staleness.mean, kind="number"),
    Column(name="stalest", short="most", measure=lambda result, _: result.staleness.max, kind="number"),
    Column(name="waiting", short="waits", measure=_waiting, kind="share"),
    Column(name="money", short="money", measure=_money, kind="number", until=True),
    Column(name="kWh", short="kWh", measure=_energy, kind="number", until=True),
)  # fmt: skip


BEST: Mapping[Better | None, Callable[[Sequence[float]], float] | None] = {"higher": max, "lower": min, None: None}
"""Of the column of scores."""


def rows(whole: Comparison) -> list[StrategyRow]:
    """A row for each strategy, in the order in which they were asked for."""
    found = []
    for spec in dict.fromkeys(outcome.spec for outcome in whole.outcomes):
        mine = [outcome for outcome in whole.outcomes if outcome.spec == spec]
        rates = dict.fromkeys(outcome.rate for outcome in mine)
        found.append(min((_row(whole, mine, rate) for rate in rates), key=lambda row: _merit(row, whole)))
    return found


def columns(found: Sequence[StrategyRow]) -> list[Column]:
    """The columns in which any row has something to say."""
    return [column for column in COLUMNS if any(column.name in row.figures for row in found)]


def best(found: Sequence[StrategyRow], column: Column, whole: Comparison) -> float | None:
    """The best value of a column, if there is more than one to choose from."""
    fit = [row for row in found if not (column.until and whole.until) or "time to target" in row.figures]
    values = [row.figures[column.name].value for row in fit if column.name in row.figures]
    chosen = BEST[column.way(whole)] if column.way else column.best
    return chosen(values) if chosen and len(values) > 1 else None


def _row(whole: Comparison, mine: Sequence[ComparedRun], rate: float) -> StrategyRow:
    here = [outcome for outcome in mine if outcome.rate == rate]
    results = [outcome.result for outcome in here if outcome.result is not None]
    figures = {}
    for column in COLUMNS:
        values = [value for result in results if (value := column.measure(result, whole)) is not None]
        if column.to_target:  # whoever missed the target would take longer than any number
            values += [inf] * (len(results) - len(values))
        if values and isfinite(median(values)) and (len(values) == len(results) or column.kind == "number"):
            figures[column.name] = Figure(median(values), min(values), max(values))
    return StrategyRow(
        spec=mine[0].spec, strategy=results[0].strategy if results else mine[0].spec, rate=rate,
        figures=figures, results=results, failure=next((outcome.failure for outcome in here if outcome.failure), ""),
        recording=next((outcome.recording for outcome in here if outcome.recording), None),
    )  # fmt: skip


def _merit(row: StrategyRow, whole: Comparison) -> tuple[float, float]:
    """Sorts the rates of one strategy: the soonest at the target, else the best score, else the least loss."""
    soon, kept = row.figures.get("time to target"), row.figures.get("best")
    final, way = (kept, preferred(whole)) if kept else (row.figures.get("final"), wanted(whole))
    if way is None:
        last = [line for result in row.results for line in result.history[-1:]]
        losses = [loss for line in last if (loss := line.get("loss")) is not None]
        score = median(losses) if losses else inf
    else:
        score = inf if final is None else final.value if way == "lower" else -final.value
    return (soon.value if soon else inf, score)


def remarks(whole: Comparison) -> list[str]:
    """What a reader of the table should know besides."""
    found = []
    late = [one for one in whole.strategies if one.reached < one.runs]
    if whole.until and late:
        missed = ", ".join(f"{one.spec} ({one.runs - one.reached} of {one.runs})" for one in late)
        found.append(f"{whole.until} was not reached by {missed}.")
    untrained = {run.repeat for run in whole.outcomes if run.untrained}
    if untrained:
        many = len({run.repeat for run in whole.outcomes})
        found.append(f"The initial weights of {len(untrained)} of {many} seeds meet {whole.until}; these do not count.")
    disturbed = sum(bool(run.disturbed) for run in whole.outcomes)
    if disturbed:
        found.append(f"Other programs disturbed {disturbed} of {len(whole.outcomes)} runs, which do not count.")
    real = [run for run in whole.outcomes if run.result is not None and run.result.engine != "simulated"]
    if unknown := sum(run.disturbed is None for run in real):
        why = "this system does not tell, or roles were lost or came"
        found.append(f"Whether other programs disturbed {unknown} of {len(real)} runs was not checked: {why}.")
    if whole.interrupted:
        found.append("The comparison was interrupted; what was finished is shown.")
    return found


def written(value: float, kind: str) -> str:
    """A number as a person reads it; infinite is what it takes to a target that was missed."""
    if value == inf:
        return "missed"
    match kind:
        case "time":
            return format_duration(value)
        case "bytes":
            return format_bytes(value)
        case "count":
            return f"{value:,.0f}"
        case "share":
            return f"{value:.0%}"
    return f"{value:.4g}"
