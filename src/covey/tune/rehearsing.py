"""Which policy would have been best? The curves of a finished study, replayed under each, in virtual time."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import msgspec

from covey.decoding import WireFormat
from covey.engines import machine
from covey.errors import PlanError, WireError
from covey.observe.facts import RESULT
from covey.policy.rehearsal import Recorded, rehearse
from covey.policy.search import WORST, SearchLimits
from covey.target import Better
from covey.tune.outcomes import StudyResult, TrialRow, turned
from covey.tune.policies import POLICIES, policy_of
from covey.tune.storage import ASKED, StudyFolder

LEFT_OUT = ("pbt",)  # its trials change their settings, so no recorded curve is theirs
NEAR = 0.002  # of the best score: as good
EPOCHS = 10_000  # of a trial, at most
LARGEST = 1e100  # score; a number of 32 bits ends at 3.4e38
LONGEST = 1e9  # seconds of a trial

studies: WireFormat[StudyResult] = WireFormat("study", StudyResult, "json")


class PolicyRehearsal(msgspec.Struct, kw_only=True):
    """What a policy would have found, and what that would have taken."""

    policy: str
    best: float | None
    epochs: int
    trials: int
    seconds: float
    found: float  # seconds after which the best had been seen


class StudyRehearsal(msgspec.Struct, kw_only=True):
    """All policies beside each other; the best is the fastest of those that find a score as good as any."""

    schema: str = "covey.rehearsal/1"
    metric: str
    better: Better
    slots: int
    recorded: int  # trials
    expected: int  # of them, whose curves end before the last epoch and were continued
    policies: list[PolicyRehearsal] = []
    best: str = ""
    verdict: str = ""

    def to_json(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode() + "\n"


def rehearsal_of(place: Path, slots: int | None) -> StudyRehearsal:
    """Rehearse the study that a file of `--json`, or the folder of a record or of `--continue`, holds."""
    file = place / RESULT if place.is_dir() else place
    try:
        whole = studies.read_file(file) if file.exists() or not place.is_dir() else _kept(place)
        _check(whole)
    except FileNotFoundError:
        raise PlanError(f"there is no study {file}: name a file that covey tune --json wrote, or a folder") from None
    except WireError as error:
        raise PlanError(f"{file} is no study that covey tune wrote: {error}") from None
    return rehearsed(whole, slots or machine.cores())


def _kept(place: Path) -> StudyResult:
    """What a study in a folder has come to: the folder says what was asked, and has a file for each trial."""
    whole = studies.read_file(place / ASKED)
    whole.trials = StudyFolder(place, {}).rows()
    return whole


def _check(whole: StudyResult) -> None:
    """Refuse what no search can have written."""
    if not 1 <= whole.epochs <= EPOCHS:
        raise WireError(f"`$.epochs` is {whole.epochs}, and a search writes 1 to {EPOCHS:,} there")
    for place, row in enumerate(whole.trials):
        where = f"`$.trials[{place}]"
        epochs = [0, *(when for when, _ in row.curve), whole.epochs + 1]
        if any(later <= earlier for earlier, later in pairwise(epochs)):
            raise WireError(f"{where}.curve` is not scored after rising epochs from 1 to {whole.epochs}")
        if any(score is not None and not abs(score) <= LARGEST for _, score in row.curve):
            raise WireError(f"{where}.curve` has a score beyond {LARGEST:g}: a search writes smaller ones")
        if not 0 <= row.seconds <= LONGEST:
            raise WireError(f"{where}.seconds` is {row.seconds:g}, and a search writes 0 to {LONGEST:g} there")


def rehearsed(whole: StudyResult, slots: int) -> StudyRehearsal:
    """Every policy with the trials of a study, in their order."""
    recorded = [_recorded(row, whole.better) for row in whole.trials if row.curve or row.status == "failed"]
    if not any(score > WORST for one in recorded for _, score in one.curve):
        raise PlanError("this study has no curves: no trial of it was scored")
    limits = SearchLimits(epochs=whole.epochs, trials=len(recorded), slots=slots, seed=whole.seed)
    found = StudyRehearsal(
        metric=whole.metric, better=whole.better, slots=slots, recorded=len(recorded),
        expected=sum(row.reached < whole.epochs for row in whole.trials if row.curve),
    )  # fmt: skip
    for name in POLICIES:
        if name in LEFT_OUT:
            continue
        done = rehearse(policy_of(name), recorded, limits)
        best = None if done.best == WORST else done.best if whole.better == "higher" else -done.best
        found.policies.append(PolicyRehearsal(
            policy=name, best=best, epochs=done.epochs, trials=done.trials, seconds=done.seconds, found=done.found
        ))  # fmt: skip
    _conclude(found)
    return found


def _conclude(found: StudyRehearsal) -> None:
    """Name the fastest of those that are as good as any."""
    top = max(turned(one.best, found.better) for one in found.policies)
    good = [one for one in found.policies if turned(one.best, found.better) >= top - abs(top) * NEAR]
    winner = min(good, key=lambda one: (one.seconds, one.epochs))
    usual = next(one for one in found.policies if one.policy == "random")
    found.best = winner.policy
    found.verdict = f"{winner.policy} is the best for this search: {found.metric} {winner.best:.4g}"
    if winner.epochs < usual.epochs:
        found.verdict += f" with {winner.epochs / usual.epochs:.2f}x of the epochs of random"


def _recorded(row: TrialRow, better: Better) -> Recorded:
    curve = tuple((epochs, turned(value, better)) for epochs, value in row.curve)
    if row.status == "failed":
        curve = (*curve[:-1], (max(1, row.reached), WORST))
    return Recorded(curve, row.seconds / row.reached if row.reached and row.seconds else 1.0)
