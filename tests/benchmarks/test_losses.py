"""What the measure of lost workers does with programs that cannot run here."""

from __future__ import annotations

import pytest

from benchmarks.kept import Kept
from benchmarks.losses import programs
from benchmarks.losses.__main__ import kills
from benchmarks.losses.pieces import Pieces


def test_a_program_whose_package_is_missing_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(programs.NEEDS, "torchrun", "no_such_package")
    assert kills("torchrun", Pieces(Kept(None), 1.0, 1)) == {"skipped": "torchrun needs no_such_package"}


def test_what_a_program_needs_is_told_of_programs_that_there_are() -> None:
    assert set(programs.NEEDS) <= set(programs.PROGRAMS)
