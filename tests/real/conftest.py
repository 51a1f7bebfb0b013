"""Every test on real processes gets a room, and must leave it empty."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest

from tests.real.harness import Room
from tests.warm import Warm


@pytest.fixture
def room(
    monkeypatch: pytest.MonkeyPatch, warm: Warm, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Room]:  # fmt: skip
    tmp_path_factory.getbasetemp()  # pytest's own folder, which would lie in the first room else
    room = Room(warm)
    for name in ("COVEY_ROOM", "TMPDIR"):
        monkeypatch.setenv(name, room.environment[name])
    monkeypatch.setattr(tempfile, "tempdir", None)
    try:
        yield room
        room.wait_empty()
    finally:
        room.close()
