"""What keeps a study: Optuna, which also says what to try next, and covey's own files of each trial, in one folder."""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Self

import msgspec

from covey import atomic_file
from covey.checkpoint.files import opened
from covey.decoding import UNREADABLE, WireFormat
from covey.errors import CheckpointError, PlanError, WireError
from covey.names import option
from covey.spec.call import Scalar
from covey.tune.outcomes import TrialRow
from covey.tune.space import NumberRange, Point
from covey.tune.study_request import StudyRequest

JOURNAL, ASKED, TRIALS, ROW = "optuna.log", "study.json", "trials", "trial.json"
NAME = "covey"
LARGE = 1 << 20  # bytes that say which study a folder holds
LARGEST_JOURNAL = 1 << 28

_asked: WireFormat[dict[str, Any]] = WireFormat("study of a folder", dict[str, Any], "json", most=LARGE)
_rows: WireFormat[TrialRow] = WireFormat("trial of a study", TrialRow, "json")


class StudyFolder:
    """The trials of one study in a folder; while its block lasts, no other study uses the folder."""

    def __init__(
        self, path: Path, asked: dict[str, Any], fit: Callable[[TrialRow], None] = lambda row: None
    ) -> None:  # fmt: skip
        """`fit` makes the command of a trial anew, of its point; it raises where that is none of the space."""
        self.path, self.asked, self._fit, self._lock = path, asked, fit, -1
        self._new = False

    def __enter__(self) -> Self:
        try:
            (self.path / TRIALS).mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._check()
        except BlockingIOError:
            self.__exit__()
            raise PlanError(f"another study uses {self.path}: wait for its end, or choose another folder") from None
        except OSError as error:
            self.__exit__()
            raise PlanError(
                f"{option('folder', self.path)} cannot hold a study: {error.strerror}; choose another folder"
            ) from None
        except PlanError:
            self.__exit__()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None = None, *_: object) -> None:
        if self._new and kind is not None and issubclass(kind, PlanError):
            (self.path / ASKED).unlink(missing_ok=True)  # nothing ran: the folder is free for another
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    def _check(self) -> None:
        """Refuse a folder with another study; an empty one becomes this one's."""
        if (self.path / TRIALS).is_symlink():
            raise PlanError(f"{self.path / TRIALS} is a link, which is not followed: choose another folder")
        place = self.path / ASKED
        if not os.path.lexists(place):
            self._new = True
            atomic_file.write(place, json.dumps(self.asked, indent=1) + "\n", ours=True)
            return
        try:
            theirs = _asked.read_file(place)
        except WireError as error:
            raise PlanError(f"{place} does not say which study this folder holds ({error}): choose another") from None
        unlike = [name for name in {**self.asked, **theirs} if self.asked.get(name) != theirs.get(name)]
        if unlike:
            told = "; ".join(
                f"{name} {theirs.get(name)!r:.60}, now {self.asked.get(name)!r:.60}" for name in unlike[:4]
            )
            raise PlanError(f"{self.path} holds another study ({told}): ask for the same, or choose another folder")

    def folder(self, trial: int) -> Path:
        """Where the checkpoints and the model of a trial are."""
        place = self.path / TRIALS / f"{trial:04}"
        if place.is_symlink() or (os.path.lexists(place) and not place.is_dir()):
            raise PlanError(f"{place} is not a folder of covey's own: move it away")
        place.mkdir(exist_ok=True)
        return place

    def write(self, row: TrialRow) -> None:
        text = msgspec.json.format(msgspec.json.encode(row), indent=1).decode()
        atomic_file.write(self.folder(row.number) / ROW, text + "\n", ours=True)

    def rows(self) -> list[TrialRow]:
        """All trials so far, in order; one whose file is torn, and those after it, are tried anew."""
        found: list[TrialRow] = []
        while os.path.lexists(place := self.path / TRIALS / f"{len(found):04}" / ROW):
            try:
                row = _rows.read_file(place)
                row.check(len(found))
                self._fit(row)
            except (WireError, PlanError, *UNREADABLE):
                break
            found.append(row)
        return found


class OptunaBook:
    """The same trials in Optuna's own file, which its dashboard opens; new ones are what its sampler suggests."""

    def __init__(self, store: StudyFolder, asked: StudyRequest) -> None:
        rows, file = store.rows(), store.path / JOURNAL
        self.space, self.optuna = asked.space, imported_optuna()
        _check_journal(file)
        try:
            self._open(file, asked, len(rows))
            mended = any(row.asked not in self.trials for row in rows)
        except Exception:  # of Optuna or of JSON: the file is torn, or was changed
            mended = True
        if mended:  # covey's own files have all that Optuna's had
            if os.path.lexists(file):
                os.replace(file, file.with_name(f"{JOURNAL}.damaged"))
            self._open(file, asked, len(rows))
            for row in rows:
                row.asked, _ = self.ask(row.number, row.point)
                store.write(row)
                self.tell(row)

    def _open(self, file: Path, asked: StudyRequest, known: int) -> None:
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

        optuna = self.optuna
        backend = JournalFileBackend(str(file), lock_obj=JournalFileOpenLock(str(file)))
        samplers = {"random": optuna.samplers.RandomSampler, "tpe": optuna.samplers.TPESampler}
        self.study = optuna.create_study(
            storage=optuna.storages.JournalStorage(backend), study_name=NAME, load_if_exists=True,
            sampler=samplers[asked.sampler](seed=asked.limits.seed + known),  # what was drawn is not drawn again
            direction="maximize" if asked.better == "higher" else "minimize",
        )  # fmt: skip
        self.all_points: list[dict[str, Scalar]] = []
        if asked.space.size <= asked.limits.trials:
            self.all_points = list(asked.space.points())
            Random(asked.limits.seed).shuffle(self.all_points)
        self.trials: dict[int, Any] = {
            one.number: optuna.trial.Trial(self.study, one._trial_id) for one in self.study.trials
        }

    def ask(self, number: int, fixed: Point | None = None) -> tuple[int, dict[str, Scalar]]:
        """Another trial: Optuna's number of it, and a point that the sampler suggests, or this one.

        Of a space with few points the next is taken.
        """
        fixed = fixed or (self.all_points[number] if number < len(self.all_points) else None)
        if fixed is not None:
            self.study.enqueue_trial(dict(fixed))
        trial = self.study.ask()
        self.trials[trial.number] = trial
        return trial.number, self.space.draw(_OptunaChooser(trial))

    def forget_others(self, known: set[int]) -> None:
        """Trials of which covey has no file did not happen."""
        for number, trial in self.trials.items():
            if number not in known and not trial.storage.get_trial(trial._trial_id).state.is_finished():
                self.study.tell(number, state=self.optuna.trial.TrialState.FAIL)

    def tell(self, row: TrialRow) -> None:
        """How a trial went since it was last told."""
        trial = self.trials[row.asked]
        told = trial.storage.get_trial(trial._trial_id).intermediate_values
        for epochs, value in row.curve:
            if epochs not in told and value is not None:
                trial.report(value, epochs)
        states = self.optuna.trial.TrialState
        if row.status == "finished" and row.curve and row.curve[-1][1] is not None:
            self.study.tell(row.asked, row.curve[-1][1], skip_if_finished=True)
        elif row.status == "ended":
            self.study.tell(row.asked, state=states.PRUNED, skip_if_finished=True)
        elif row.status in ("failed", "finished"):
            trial.set_user_attr("why", row.why)
            self.study.tell(row.asked, state=states.FAIL, skip_if_finished=True)


def _check_journal(file: Path) -> None:
    """Refuse what is no plain file, and remove what a killed search left: half a line, and Optuna's lock."""
    file.with_name(f"{JOURNAL}.lock").unlink(missing_ok=True)  # the folder has a lock of covey's own
    if not os.path.lexists(file):
        return
    try:
        with opened(file) as journal:
            if (size := os.fstat(journal.fileno()).st_size) > LARGEST_JOURNAL:
                raise PlanError(f"{file} has {size} bytes; the limit is {LARGEST_JOURNAL}: move it away")
            whole = sum(len(line) for line in journal if line.endswith(b"\n"))
        if whole < size:
            os.truncate(file, whole)
    except (OSError, CheckpointError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not a regular file"
        raise PlanError(f"{file} cannot be used ({why}): move it away; the trials are in files of their own") from None


class _OptunaChooser:
    """Chooses as Optuna's sampler suggests."""

    def __init__(self, trial: Any) -> None:
        self.trial = trial

    def choice(self, path: str, among: tuple[Scalar, ...]) -> Scalar:
        found: Scalar = self.trial.suggest_categorical(path, list(among))
        return found

    def number(self, path: str, among: NumberRange) -> Scalar:
        if among.whole:
            whole: int = self.trial.suggest_int(path, int(among.low), int(among.high), log=among.logarithmic)
            return whole
        found: float = self.trial.suggest_float(path, among.low, among.high, log=among.logarithmic)
        return found


def imported_optuna() -> Any:
    """Optuna, without its lines on each trial; refused with what would help where it is not installed."""
    try:
        import optuna
    except ImportError:
        raise PlanError("covey tune needs Optuna: pip install 'covey[tune]'") from None
    optuna.logging.set_verbosity(logging.WARNING)
    return optuna
