"""A search as charts want it: the curve of each trial, and which is the best so far."""

from __future__ import annotations

import os
from math import isfinite
from pathlib import Path
from typing import Any

import msgspec

from covey.decoding import WireFormat
from covey.errors import WireError
from covey.observe.facts import RESULT

MOST = 1000  # trials that are shown, the newest
ASKED, TRIALS, TRIAL = "study.json", "trials", "trial.json"  # in the folder of a study, as `covey.tune` writes them


class TrialCurve(msgspec.Struct, kw_only=True):
    """A trial: its settings, and its metric after so many epochs."""

    number: int
    status: str = "running"
    point: dict[str, Any] = {}
    curve: list[tuple[int, float | None]] = []
    why: str = ""

    @property
    def score(self) -> float | None:
        """The last one; None of a trial that has failed or has none."""
        last = self.curve[-1][1] if self.curve and self.status != "failed" else None
        return last if last is not None and isfinite(last) else None


class StudyView(msgspec.Struct, kw_only=True):
    """All that the page shows of a search."""

    metric: str = ""
    better: str = "higher"
    trials: list[TrialCurve] = []
    best: int | None = None


_trials: WireFormat[TrialCurve] = WireFormat("trial of a search", TrialCurve, "json", most=1 << 22)
_studies: WireFormat[StudyView] = WireFormat("recorded search", StudyView, "json", most=1 << 28)


def study(record: Path) -> StudyView | None:
    """The search of a record; None where there is none, or none of its trials can be read."""
    found = _going(record / "study") or _read(_studies, record / RESULT)
    if found is None or not found.trials:
        return None
    sign = -1 if found.better == "higher" else 1
    ranked = [
        (sign * trial.score, trial.curve[-1][0], trial.number) for trial in found.trials if trial.score is not None
    ]
    found.best = min(ranked)[2] if ranked else None
    for trial in found.trials:
        trial.curve = [(epochs, value if value is None or isfinite(value) else None) for epochs, value in trial.curve]
    return found


def _going(folder: Path) -> StudyView | None:
    """From the files of its trials, which are written while it goes."""
    if folder.is_symlink() or (folder / TRIALS).is_symlink():
        return None
    asked = _read(_studies, folder / ASKED)
    try:
        names = sorted(name for name in os.listdir(folder / TRIALS) if name.isdecimal() and len(name) < 10)
    except OSError:
        return None
    places = [folder / TRIALS / name for name in names[-MOST:]]
    trials = [trial for place in places if not place.is_symlink() and (trial := _read(_trials, place / TRIAL))]
    return StudyView(metric=asked.metric, better=asked.better, trials=trials) if asked else None


def _read(form: WireFormat[Any], path: Path) -> Any:
    try:
        return form.read_file(path)
    except (OSError, WireError):
        return None
