"""A search that was interrupted after trials were kept, and before their scores were written down."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from covey.errors import CoveyError
from covey.tune import StudyResult, studying, tune
from covey.tune.running import RunningStudy
from covey.tune.segment import KEPT, MODEL, Segment
from covey.tune.trial_pool import ForkedTrials
from tests.tune.test_study import FILE, TrialsHere

pytest.importorskip("optuna")


class Unheard(TrialsHere):
    """Everything ends when a process has trained its trials, and before it can tell."""

    def __init__(self, last: int) -> None:
        self.left = last

    def start(self, segments: Sequence[Segment]) -> None:
        super().start(segments)
        self.left -= 1
        if self.left == 0:
            raise SystemError("the power is cut")


def search(folder: Path, **given: object) -> StudyResult:
    file = folder.parent / "task.py"
    file.write_text(FILE)
    return tune(
        str(file), "rate=0.0005|0.001|0.002|0.004", policy="asha(factor=2)", trials=4, epochs=4, slots=1, runs=False,
        folder=folder, **given,
    )  # fmt: skip


@pytest.mark.parametrize(("fuse", "cut"), [("never", 1), ("never", 3), ("always", 2)])
def test_no_trial_is_lost_or_trained_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fuse: str, cut: int
) -> None:
    """The first part of a trial, and a later one."""
    monkeypatch.setattr(studying, "pool_of", lambda engine: TrialsHere())
    whole = search(tmp_path / "whole", fuse=fuse)
    with monkeypatch.context() as patch:
        patch.setattr(studying, "pool_of", lambda engine: Unheard(cut))
        with pytest.raises(SystemError):
            search(tmp_path / "cut", fuse=fuse)
    found = search(tmp_path / "cut", fuse=fuse)
    assert [row.why for row in found.trials] == [""] * 4
    for mine, theirs in zip(found.trials, whole.trials, strict=True):
        assert mine.status == theirs.status and dict(mine.curve) == pytest.approx(dict(theirs.curve), abs=1e-6)
        if fuse == "always":
            one, other = (load_file(tmp_path / kind / f"trials/{mine.number:04}/{MODEL}") for kind in ("cut", "whole"))
            assert all(torch.allclose(one[name], other[name], atol=1e-5) for name in one)


def test_a_copy_that_no_file_tells_of_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With pbt a new trial begins with a checkpoint; one may be there already, of a search that ended meanwhile."""
    monkeypatch.setattr(studying, "pool_of", lambda engine: TrialsHere())
    begun = RunningStudy._new

    def after_a_cut(self: RunningStudy, parent: int | None) -> object:
        (self.store.folder(len(self.rows)) / KEPT).mkdir()
        return begun(self, parent)

    monkeypatch.setattr(RunningStudy, "_new", after_a_cut)
    file = tmp_path / "task.py"
    file.write_text(FILE)
    found = tune(
        str(file), "rate=log(0.00001, 0.1)", policy="pbt(population=4)", trials=6, epochs=3, slots=2, runs=False,
        fuse="never",
    )  # fmt: skip
    assert any(row.parent is not None for row in found.trials) and not any(row.why for row in found.trials)


def test_a_folder_of_others_names_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files may say what they want: trials are of the file that was asked for."""
    monkeypatch.setattr(studying, "pool_of", lambda engine: Unheard(1))
    with pytest.raises(SystemError):
        search(tmp_path / "cut")
    for trial in (tmp_path / "cut/trials").glob("*/trial.json"):
        assert str(tmp_path / "task.py") in trial.read_text()
        trial.write_text(trial.read_text().replace("task.py", "hostile.py"))
    started: list[Segment] = []

    class Watched(TrialsHere):
        def start(self, segments: Sequence[Segment]) -> None:
            started.extend(segments)
            super().start(segments)

    monkeypatch.setattr(studying, "pool_of", lambda engine: Watched())
    search(tmp_path / "cut")
    assert started and all(one.task.startswith(f"{tmp_path / 'task.py'}:") for one in started)


def test_a_trial_server_that_was_killed_is_told_in_one_line() -> None:
    with ForkedTrials() as pool:
        pool.process.kill()
        pool.process.wait()
        with pytest.raises(CoveyError, match="the trial server .*"):
            pool.start([])
