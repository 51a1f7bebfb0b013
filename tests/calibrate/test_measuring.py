"""What is read off the measurements, by hand."""

from __future__ import annotations

import pytest

from covey.calibrate.measuring import SMALL, MeasuredMeans
from covey.simulate import CpuTime, Seconds


def test_a_link_from_messages_that_went_there_and_back() -> None:
    """A small one takes 3 ms each way, of which both ends work 1 ms; a big one 13 ms, of which they work 3 ms."""
    big = 1_000_064
    found = MeasuredMeans({f"there and back {SMALL}": 0.006, f"there and back {big}": 0.026}, big)
    byte = 0.001 / (big - SMALL)
    tolls = [CpuTime(each=Seconds(0.0005 - SMALL * byte), byte=Seconds(byte))] * 2
    assert found.latency("there and back", tolls) == pytest.approx(0.002)
    assert found.bandwidth(tolls) == pytest.approx(big / (0.013 - 0.002 - 0.003))
