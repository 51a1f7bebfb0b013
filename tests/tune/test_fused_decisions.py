"""A policy decides for fused trials as it does for separate ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from covey.tune import StudyResult, running, studying, tune
from covey.tune.segment import KEPT, Segment, SegmentOutcome

pytest.importorskip("optuna")

FILE = """
import covey, torch
def task(rate=0.1):
    x = torch.zeros(8, 2)
    return covey.Task(
        model=lambda: torch.nn.Linear(2, 2), data=(x, x[:, 0].long()), loss=torch.nn.functional.cross_entropy,
        optimizer=lambda params: torch.optim.SGD(params, lr=rate), evaluate=covey.accuracy((x, x[:, 0].long())),
    )
"""


class InStep:
    """Trials whose scores follow from their settings; all that are under way end at the same time."""

    def __init__(self) -> None:
        self.begun: list[Segment] = []
        self.passes: list[int] = []

    def __enter__(self) -> InStep:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def prepare(self, task: str) -> None:
        pass

    def start(self, segments: Sequence[Segment]) -> None:
        self.begun += segments
        self.passes.append(len(segments))

    def finished(self, patience: float) -> list[SegmentOutcome]:
        begun, self.begun = self.begun, []
        return [self.outcome(one) for one in begun]

    def outcome(self, one: Segment) -> SegmentOutcome:
        (Path(one.folder) / KEPT).mkdir(exist_ok=True)
        rate = float(one.task.rpartition("=")[2].rstrip(")"))
        top = 0.9 - 0.2 * abs(math.log10(rate) + 1)
        curve = [*one.curve, *((epoch, top * (1 - 0.5 / epoch)) for epoch in range(one.begun + 1, one.until + 1))]
        return SegmentOutcome(trial=one.trial, curve=curve, samples=1, seconds=1.0)


def searched(
    folder: Path, monkeypatch: pytest.MonkeyPatch, policy: str, fuse: str, slots: int
) -> tuple[StudyResult, list[int]]:
    (folder / "task.py").write_text(FILE)
    pool = InStep()
    monkeypatch.setattr(studying, "pool_of", lambda engine: pool)
    found = tune(
        str(folder / "task.py"), "rate=log(1e-4, 1)", policy=policy, trials=16, epochs=8, slots=slots, fuse=fuse,
        runs=False,
    )  # fmt: skip
    return found, pool.passes


@pytest.mark.parametrize("policy", [
    "random", "asha(factor=2)", "hyperband", "pop", "pop(target=0.85)", "tupaq(batch=4)", "pbt(population=4)",
])  # fmt: skip
def test_fused_trials_are_decided_like_separate_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    """Passes of four on one slot, and four slots: the same trials, copies and ends, after the same epochs."""
    monkeypatch.setattr(running, "FUSED", 4)
    fused, passes = searched(tmp_path, monkeypatch, policy, "always", 1)
    apart, single = searched(tmp_path, monkeypatch, policy, "never", 4)
    assert max(passes) == 4 and max(single) == 1
    assert decided(fused) == decided(apart)


def decided(found: StudyResult) -> list[object]:
    return [(one.point, one.parent, one.status, one.curve) for one in found.trials]


def test_pbt_copies_the_best_however_its_trials_are_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a pass, in as many slots as trials, and one after the other: the best never goes on before it is copied."""
    ways = (("always", 1), ("always", 2), ("never", 1), ("never", 2), ("never", 4))
    found = [searched(tmp_path, monkeypatch, "pbt(population=4)", fuse, slots)[0] for fuse, slots in ways]
    assert all(decided(one) == decided(found[0]) for one in found)
    copies = [one for one in found[0].trials if one.parent is not None]
    assert [one.curve[0] for one in copies] == [found[0].trials[one.parent].curve[0] for one in copies]
    assert len(copies) == len([one for one in found[0].trials if one.status == "ended"]) == 7
