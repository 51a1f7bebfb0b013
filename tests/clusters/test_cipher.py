"""Runs on several hosts whose tensors travel with a cipher of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

import covey
from covey.engines.lab import iproute
from covey.engines.transport.cipher.stream import CipherStream
from tests.real.harness import Room, differing

pytestmark = [pytest.mark.xdist_group("lab"), pytest.mark.skipif(bool(iproute.missing()), reason=iproute.missing())]

MARKED = """
from pathlib import Path
from covey.engines.transport.cipher import stream
ATTACH = stream.CipherStream.attach
def attach(self, line, number):
    Path(__file__).with_name(f"{self.link.sender}.sealed").touch()
    ATTACH(self, line, number)
stream.CipherStream.attach = attach
"""


@pytest.mark.parametrize("strategy", ["bsp", pytest.param("allreduce", marks=pytest.mark.full)])
def test_the_weights_are_those_of_a_run_with_curve(room: Room, strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit; and each role that sends tensors to another host has sealed them."""
    monkeypatch.setattr(CipherStream, "attach", CipherStream.attach)  # the task is imported here, too
    task = room.task(model="nn.Sequential(nn.Linear(6, 4000), nn.Linear(4000, 3))", more=MARKED)
    given = {"engine": "lab(hosts=2, rate=100mbit)", "steps": 8, "threads": 1}
    usual = covey.fit(task, strategy, 2, **given)
    marks = {path.name for path in Path(task).parent.glob("*.sealed")}
    sealed = covey.fit(task, strategy, 2, cipher="aes-256-gcm", **given)
    assert not marks and {path.name for path in Path(task).parent.glob("*.sealed")} >= {"worker 1.sealed"}
    assert not differing(sealed.weights, usual.weights)
    assert sealed.traffic.bytes == usual.traffic.bytes and not sealed.failures
