"""Layouts that a search has saved: what the file says is what runs, and what is no layout is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from covey.errors import CoveyError
from tests.parallelism.divided_runs import apart, run
from tests.parallelism.test_tensor import task


def saved(place: Path, strategy: str, workers: int = 4, schema: str = "covey.plan/1") -> str:
    (place / "plan.json").write_text(json.dumps({"schema": schema, "strategy": strategy, "workers": workers}))
    return str(place / "plan.json")


def test_a_saved_layout_is_what_runs(tmp_path: Path) -> None:
    given, mesh = task("mlp"), 'mesh(replica=2, tensor=2, split="1:column 4:row")'
    found = run(given, f'bsp with mesh(plan="{saved(tmp_path, f"allreduce with {mesh}")}")', 4)
    asked = run(given, f"bsp with {mesh}", 4)
    assert found.strategy == asked.strategy and apart(found, asked) == 0
    whole = run(given, f'allreduce with mesh(plan="{saved(tmp_path, "allreduce")}")', 4)
    assert whole.strategy == run(given, "allreduce", 4).strategy


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "no covey.plan/1"), ("\x00", "no covey.plan/1"), (None, "No such file.* covey search --save"),
        ('{"schema": "covey.cut/1", "strategy": "allreduce", "workers": 2}', "is 'covey.cut/1', not covey.plan/1"),
        ('{"schema": "covey.plan/1", "strategy": "allreduce", "workers": 3}', "for 3 workers, not 2"),
        ('{"schema": "covey.plan/1", "strategy": "allreduce with", "workers": 2}', "expected a mesh"),
    ],
)  # fmt: skip
def test_files_that_are_no_layouts_are_refused(text: str | None, said: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "plan.json").write_text(text)
    with pytest.raises(CoveyError, match=said):
        run(task("mlp"), f'allreduce with mesh(plan="{tmp_path / "plan.json"}")', 2)
    with pytest.raises(CoveyError, match="omit the other settings"):
        run(task("mlp"), f'allreduce with mesh(plan="{tmp_path / "plan.json"}", replica=2)', 2)
