"""What tests share: golden files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

Golden = Callable[[str, str], None]

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def golden() -> Golden:
    """Compare a text with tests/golden/NAME; with COVEY_GOLDEN=write in the environment, make it so."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if os.environ.get("COVEY_GOLDEN") == "write":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"there is no {path}: look at the text, then write it with COVEY_GOLDEN=write"
        assert text == path.read_text(encoding="utf-8")

    return compare
