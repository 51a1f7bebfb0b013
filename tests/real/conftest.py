"""Every test on real processes gets a room, and must leave it empty."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest

from tests.real.harness import Room


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Iterator[Room]:
    room = Room()
    for name in ("COVEY_ROOM", "TMPDIR"):
        monkeypatch.setenv(name, room.environment[name])
    monkeypatch.setattr(tempfile, "tempdir", None)
    try:
        yield room
        room.wait_empty()
    finally:
        room.close()
