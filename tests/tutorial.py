"""Follow a tutorial as a reader would: put its files into a copy of the project, and make its changes there."""

from __future__ import annotations

import re
from pathlib import Path

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)


def follow(page: Path, project: Path) -> None:
    """Blocks of `py` begin with the name of a new file; blocks of `diff` change one that is there."""
    for language, body in FENCE.findall(page.read_text()):
        if language == "py":
            name, _, text = body.partition("\n")
            (project / name.removeprefix("# ")).write_text(text)
        elif language == "diff":
            _change(project, body)


def _change(project: Path, diff: str) -> None:
    head, *hunks = re.split(r"^@@\n", diff, flags=re.M)
    file = project / head.splitlines()[0].removeprefix("--- a/")
    text = file.read_text()
    for hunk in hunks:
        old = "".join(f"{line[1:]}\n" for line in hunk.splitlines() if line[0] != "+")
        new = "".join(f"{line[1:]}\n" for line in hunk.splitlines() if line[0] != "-")
        assert text.count(old) == 1, f"{file.name} does not have, or has twice:\n{old}"
        text = text.replace(old, new)
    file.write_text(text)
