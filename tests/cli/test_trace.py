"""covey trace shows the part of the run that was asked for, in every file that it writes."""

from __future__ import annotations

import json
import xml.etree.ElementTree as tree
from pathlib import Path

import pytest
from typer.testing import CliRunner

from covey.cli import app

DIGITS = str(Path("examples/digits.py").resolve())
SVG = "{http://www.w3.org/2000/svg}"


def axis(picture: Path) -> list[str]:
    """What is written below a picture, from its first moment to its last."""
    texts = tree.fromstring(picture.read_text()).iter(f"{SVG}text")
    return [text.text or "" for text in texts if text.get("text-anchor") in ("start", "middle", "end")][:9]


@pytest.mark.parametrize(
    ("asked", "first", "last"),
    [
        (["--from", "20ms", "--length", "30ms"], "20 ms", "50 ms"),
        (["--length", "30ms"], "0 s", "30 ms"),
        (["--from", "20ms"], "20 ms", None),
    ],
)
def test_from_and_length(
    runner: CliRunner, tmp_path: Path, asked: list[str], first: str, last: str | None
) -> None:  # fmt: skip
    files = {name: tmp_path / name for name in ("picture", "chrome", "json")}
    given = [part for name, path in files.items() for part in (f"--{name}", str(path))]
    told = runner.invoke(app, ["trace", DIGITS, "--compute", "10ms", "--steps", "6", "--quiet", *given, *asked])
    assert told.exit_code == 0, told.stderr
    shown = axis(files["picture"])
    assert shown[0] == first and (last is None or shown[-1] == last)
    events, recorded = (json.loads(files[name].read_text()) for name in ("chrome", "json"))
    slices = [event for event in events["traceEvents"] if event["ph"] == "X"]
    assert len(slices) == len(recorded["spans"]) > 0, "the files for other programs have all of the run"
