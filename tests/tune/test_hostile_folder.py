"""Files in the folder of a study that are torn, or that somebody has put there, end no search and lead nowhere else."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from covey.errors import PlanError
from covey.tune import StudyResult, studying, tune
from covey.tune.storage import JOURNAL
from tests.tune.test_study import FILE, TrialsHere

pytest.importorskip("optuna")

Damage = Callable[[Path], object]


def search(place: Path, trials: int) -> StudyResult:
    return tune(
        str(place / "task.py"), "rate=log(0.01, 1)", trials=trials, epochs=2, slots=1, folder=place / "kept", runs=False
    )


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a study of two trials, which is copied back before each test."""
    place = tmp_path_factory.mktemp("searched")
    (place / "task.py").write_text(FILE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(studying, "pool_of", lambda engine: TrialsHere())
        search(place, 2)
        (place / "kept").rename(place / "untouched")
        yield place


@pytest.fixture
def place(searched: Path) -> Path:
    shutil.rmtree(searched / "kept", ignore_errors=True)
    shutil.copytree(searched / "untouched", searched / "kept")
    shutil.rmtree(searched / "outside", ignore_errors=True)
    (searched / "outside").mkdir()
    (searched / "outside" / "file").write_text("somebody else's\n")
    return searched


def instead(make: Callable[[Path], object]) -> Damage:
    """Something else where Optuna's file was."""

    def damage(place: Path) -> None:
        (place / "kept" / JOURNAL).unlink()
        make(place / "kept" / JOURNAL)

    return damage


def text(data: bytes) -> Damage:
    return lambda place: (place / "kept" / JOURNAL).write_bytes(data)


def cut(place: Path) -> None:
    """As a full disk leaves it: the last line is only half there."""
    os.truncate(place / "kept" / JOURNAL, (place / "kept" / JOURNAL).stat().st_size - 20)


MENDED: dict[str, Damage] = {
    "noise": text(os.urandom(300)), "null": text(b"null\n"), "deep": text(b"[" * 100_000 + b"\n"), "nothing": text(b""),
    "another kind": text(b'{"op_code": 99}\n'), "gone": lambda place: (place / "kept" / JOURNAL).unlink(), "cut": cut,
    "a lock of a killed search": lambda place: (place / "kept" / f"{JOURNAL}.lock").touch(),
    "a lock that is a link": lambda place: (place / "kept" / f"{JOURNAL}.lock").symlink_to(place / "outside" / "file"),
}  # fmt: skip


@pytest.mark.parametrize("damage", MENDED.values(), ids=MENDED)
def test_a_damaged_file_of_optuna_is_made_anew_of_covey_s(place: Path, damage: Damage) -> None:
    """Twice: what is appended after half a line is lost, and makes the whole file unreadable."""
    before = [row.curve for row in search(place, 2).trials]
    damage(place)
    assert [row.curve for row in search(place, 3).trials[:2]] == before
    found = search(place, 4)
    assert len(found.trials) == 4 and found.best is not None
    assert (place / "outside" / "file").read_text() == "somebody else's\n"


REFUSED: dict[str, Damage] = {
    "a pipe": instead(os.mkfifo), "a folder": instead(Path.mkdir),
    "a link out": instead(lambda file: file.symlink_to(file.parents[1] / "outside" / "file")),
    "a link to nothing": instead(lambda file: file.symlink_to(file.parents[1] / "outside" / "new")),
    "endless": instead(lambda file: file.symlink_to("/dev/zero")),
    "a terabyte": lambda place: os.truncate(place / "kept" / JOURNAL, 1 << 40),
    "the folder of a trial leads out": lambda place: (place / "kept/trials/0002").symlink_to(place / "outside"),
    "the folder of all leads out": lambda place: shutil.move(place / "kept/trials", place / "outside/trials")
    and (place / "kept/trials").symlink_to(place / "outside/trials"),
}  # fmt: skip


@pytest.mark.parametrize("damage", REFUSED.values(), ids=REFUSED)
def test_what_leads_elsewhere_is_refused_and_nothing_is_written_there(place: Path, damage: Damage) -> None:
    damage(place)
    before = {path: path.read_bytes() for path in (place / "outside").rglob("*") if path.is_file()}
    with pytest.raises(PlanError) as refused:
        search(place, 4)
    assert str(place) in str(refused.value)
    assert {path: path.read_bytes() for path in (place / "outside").rglob("*") if path.is_file()} == before


ROWS: dict[str, dict[str, object]] = {
    "of another trial": {"number": 7}, "before the first": {"number": -1}, "negative samples": {"samples": -5},
    "many samples": {"samples": 2**63 - 1}, "negative epochs": {"curve": [[-5, 0.5]]}, "parent": {"parent": 99},
    "epochs that fall": {"curve": [[2, 0.5], [1, 0.6]]}, "a point of another space": {"point": {"zz": 1}},
}  # fmt: skip


@pytest.mark.parametrize("changes", ROWS.values(), ids=ROWS)
def test_a_trial_that_no_search_has_written_is_tried_anew(place: Path, changes: dict[str, object]) -> None:
    file = place / "kept" / "trials" / "0000" / "trial.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    found = search(place, 2)
    assert [row.number for row in found.trials] == [0, 1] and all(row.samples > 0 for row in found.trials)


def test_the_command_at_the_end_names_the_task_that_was_asked_for(place: Path) -> None:
    file = place / "kept" / "trials" / "0000" / "trial.json"
    best = {**json.loads(file.read_text()), "curve": [[2, 1.0]], "task": "/tmp/other.py", "strategy": "rm -rf"}
    file.write_text(json.dumps(best))
    found = search(place, 2)
    assert found.best == 0 and "other.py" not in found.train and "rm -rf" not in found.train
