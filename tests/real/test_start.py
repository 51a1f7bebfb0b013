"""A long start on processes says what each role does."""

from __future__ import annotations

import re

import pytest

from tests.real.harness import Room, Watch, fit


class Enough(Exception):
    """The report was made; the run need not go on."""


class Listener(Watch):
    def say(self, line: str) -> None:
        super().say(line)
        if "building the model" in line:
            raise Enough


def test_what_takes_long_is_named(room: Room) -> None:
    listener = Listener()
    with pytest.raises(Enough):
        fit(room.task(before_build="time.sleep(60)"), "local_sgd", 1, epochs=1, stall="100s", watcher=listener)
    assert re.search(r"worker 0.*: building the model, \d+ s so far", listener.said[-1]), listener.said
    assert not any("nothing heard" in line for line in listener.said)
