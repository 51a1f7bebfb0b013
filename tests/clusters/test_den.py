"""The directory of an embedded engine's daemons: swept when its covey was killed, and left alone while that lives."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from covey.engines.cluster import daemon_directory
from covey.engines.cluster.daemon_directory import DaemonDirectory


def test_only_what_a_killed_covey_left_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_directory, "home", lambda: tmp_path)
    living, killed = DaemonDirectory("ray"), DaemonDirectory("ray")
    os.close(killed.lock)  # as the kernel does when a process ends
    newest = DaemonDirectory("ray")
    assert living.path.exists() and newest.path.exists() and not killed.path.exists()
    living.close()
    newest.close()
    assert not list(tmp_path.iterdir())
