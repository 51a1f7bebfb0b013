"""The charts of federated runs: who was there, who took part, who dropped out, and how long rounds took."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from statistics import mean
from typing import Any

from covey.observe.membership import RoundRecord
from covey.report.charts import Chart, Named, colour

LONG = 7200.0  # seconds from which on an axis counts hours
POINTS = 300  # of a line: of more rounds, each point is a mean of several


def all_of(runs: Sequence[Named]) -> list[Chart]:
    """The charts of the federated runs among these."""
    federated = [
        (number, label, result.participation.rounds)
        for number, (label, result) in enumerate(runs)
        if result.participation and result.participation.rounds
    ]
    if not federated:
        return []
    longest = max(rounds[-1].seconds for _, _, rounds in federated)
    unit, size = ("hours", 3600.0) if longest > LONG else ("seconds", 1.0)
    found = [_reports(federated, unit, size)]
    if any(record.there for _, _, rounds in federated for record in rounds):
        found.append(_there(federated, unit, size))
    return [*found, _ends(federated, unit, size)]


Rounds = Sequence[tuple[int, str, Sequence[RoundRecord]]]


def _reports(runs: Rounds, unit: str, size: float) -> Chart:
    data = []
    for number, label, rounds in runs:
        begun = [record for record in rounds if record.state != "not begun"]
        data.append(_line(f"{label}: reports that count", begun, "reports", size, {"color": colour(number)}))
        if any(record.dropped for record in begun):
            dashed = {"color": colour(number), "dash": "dash"}
            data.append(_line(f"{label}: dropped out", begun, "dropped", size, dashed))
    return Chart(
        name="reports", title="Clients in each round", data=data, layout=_axes(unit, "clients"),
        caption="Reports that make up each round, and the chosen clients that went away without one (dashed).",
    )  # fmt: skip


def _there(runs: Rounds, unit: str, size: float) -> Chart:
    data = [_line(label, rounds, "there", size, {"color": colour(number)}) for number, label, rounds in runs]
    return Chart(
        name="there", title="Clients that were there", data=data, layout=_axes(unit, "clients"),
        caption="How many clients were available, as the service saw it: those that checked in within one cycle.",
    )  # fmt: skip


def _ends(runs: Rounds, unit: str, size: float) -> Chart:
    data = []
    for number, label, rounds in runs:
        ends = [record.seconds / size for record in rounds]
        for words, states, line in (
            ("committed", ("committed",), {"color": colour(number)}),
            ("abandoned or not begun", ("abandoned", "not begun"), {"color": colour(number), "dash": "dash"}),
        ):
            counts = list(accumulate(record.tries * (record.state in states) for record in rounds))
            if counts[-1]:
                step = 1 + len(rounds) // POINTS
                data.append(_trace(f"{label}: {words}", [0.0, *ends[::step]], [0, *counts[::step]], line))
    return Chart(
        name="rounds", title="Rounds", data=data, layout=_axes(unit, "rounds"),
        caption="How many rounds have changed the model, and how many have not (dashed).",
    )  # fmt: skip


def _line(name: str, rounds: Sequence[RoundRecord], field: str, size: float, line: dict[str, Any]) -> dict[str, Any]:
    """A line of means over a few rounds each."""
    step = 1 + len(rounds) // POINTS
    groups = [rounds[at : at + step] for at in range(0, len(rounds), step)]
    return _trace(
        name, [group[-1].seconds / size for group in groups],
        [mean(getattr(record, field) for record in group) for group in groups], line,
    )  # fmt: skip


def _trace(name: str, x: list[float], y: list[float], line: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "lines", "name": name, "legendgroup": name, "x": x, "y": y,
        "line": {"width": 2, **line}, "hovertemplate": "%{y:.4g} after %{x:.3g}",
    }  # fmt: skip


def _axes(unit: str, what: str) -> dict[str, Any]:
    across = {"title": {"text": f"{unit} of the run"}}
    return {"xaxis": across, "yaxis": {"title": {"text": what}, "rangemode": "tozero"}}
