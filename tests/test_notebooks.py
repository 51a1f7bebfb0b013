"""The notebooks of examples/ run from top to bottom, in a real kernel, and are kept without what they show."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_it_is_kept_without_outputs(path: Path) -> None:
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None, "clear all outputs before it is kept"


def executed(path: Path, folder: Path) -> list[list[dict[str, Any]]]:
    """What each cell of code has shown."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    nbclient.NotebookClient(book, timeout=240, resources={"metadata": {"path": str(folder)}}).execute()
    return [cell.outputs for cell in book.cells if cell.cell_type == "code"]


def shown(outputs: list[dict[str, Any]]) -> list[str]:
    return [output["data"]["text/html"] for output in outputs if "text/html" in output.get("data", {})]


def test_a_first_run() -> None:
    _, run, report, last = executed(ROOT / "examples/first_run.ipynb", ROOT / "examples")
    (display,) = shown(run)
    assert "<b>bsp · 2 workers · local</b>" in display and "ended" in display and "<polyline" in display
    assert [output for output in run if output["output_type"] == "stream"] == []
    (frame,) = shown(report)
    assert frame.startswith('<iframe sandbox=""') and "Accuracy against time" in frame
    assert float(last[-1]["data"]["text/plain"]) > 0.8


def test_a_slow_worker() -> None:
    _, runs, table, picture, report = executed(ROOT / "examples/slow_worker.ipynb", ROOT)
    assert len(shown(runs)) == 4
    assert len(re.findall(r"reached 0.9 after +[\d.]+ s", table[0]["text"])) >= 3
    assert "<svg" in picture[-1]["data"]["image/svg+xml"] and shown(report)[0].startswith("<iframe")
