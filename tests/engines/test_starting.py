"""A long start says what is being done."""

from __future__ import annotations

import sys
import time

import pytest
import torch

from covey.cli.training import importing
from covey.engines.process.launcher.role_notices import Starting
from covey.message import Address

WORKERS = [Address("worker", rank) for rank in range(5)]


def test_a_long_start_says_what_is_done_now_and_then() -> None:
    said: list[str] = []
    at = [100.0]
    start = Starting("importing torch", said.append, lambda: at[0])
    for at[0] in (101.0, 104.9):
        start.tell(WORKERS)
    assert not said, "a short start says nothing"
    at[0] = 106.0
    start.tell(WORKERS)
    assert said.pop() == "starting: worker 0, worker 1, worker 2 and 2 more: importing torch, 6 s so far"
    start.hear(WORKERS[0], "building the model")
    at[0] = 109.0
    start.tell(WORKERS)
    assert not said
    at[0] = 112.0
    start.tell(WORKERS[:2])
    assert said.pop() == (
        "starting:\n  worker 0: building the model, 6 s so far\n  worker 1: importing torch, 12 s so far"
    )
    for at[0] in (113.0, 120.0, 125.0, 300.0):
        start.tell(WORKERS[:1])
    assert len(said) == 2, "ever more rarely"
    for at[0] in (9000.0, 9000.1, 9000.2):
        start.tell(WORKERS[:1])
    assert len(said) == 3, "once, also after a long silence"
    start.tell([])


def test_of_those_that_do_the_same_the_longest_time_is_told() -> None:
    at = [100.0]
    start = Starting("importing torch", print, lambda: at[0])
    for at[0], who in zip((103.0, 107.0), WORKERS, strict=False):
        start.hear(who, "building the model")
    at[0] = 110.0
    assert start.lines(WORKERS[:2]) == ["worker 0, worker 1: building the model, 7 s so far"]


def test_the_command_line_says_what_is_imported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert torch
    for what in ("covey", "torch"):
        with importing("normal", every=0.05):
            time.sleep(0.2)
        assert f"importing {what}, 0 s so far" in capsys.readouterr().err
        monkeypatch.delitem(sys.modules, "torch", raising=False)
    with importing("quiet", every=0.01):
        time.sleep(0.05)
    with importing("normal"):
        pass
    assert capsys.readouterr().err == ""
