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


@pytest.mark.parametrize("fixed", [0.0, 0.4, 1.0])
def test_the_fixed_share_of_a_batch_from_the_time_of_a_quarter_of_it(fixed: float) -> None:
    times = {"batch": 0.012, "report": 0.001, "reports in a batch": 2.0, "jitter": 0.1, "step": 0.0, "model": 8.0}
    parts = {"part": 4.0, "part of a step": 0.5, "part of a batch": fixed + (1 - fixed) / 4}
    found = MeasuredMeans({**times, **parts}, 1_000_064).compute()
    assert found["fixed"] == pytest.approx(fixed) and found["compute"] == pytest.approx(0.010)


def test_a_report_in_a_long_wait_is_no_work_on_a_message() -> None:
    """A small message comes before a report is due; a big one takes so long that one falls into its wait."""
    big = 1_000_064
    notes = {f"send {SMALL}": 0.0, f"send {big}": 0.0, "tiny sum": 0.0, "sum": 0.0, "model": 8.0, "step": 0.0}
    notes |= {f"receive {SMALL}": 0.0003, f"receive {big}": 0.0003 + 0.0005 + 0.0004, "report": 0.0005}
    notes |= {f"reports while receiving {SMALL}": 0.0, f"reports while receiving {big}": 1.0}
    notes |= {"part": 4.0, "part of a step": 0.5}
    found = MeasuredMeans(notes, big).handling()
    assert found.receive.of(big) == pytest.approx(0.0003 + 0.0004, rel=1e-3)


def test_sums_messages_and_steps_by_their_bytes() -> None:
    """Vectors of 8,000 bytes; an eighth of the parameters, 1,000 bytes, takes 30 % of a whole step of 1 ms."""
    notes = {f"send {SMALL}": 0.001, "send 1064": 0.003, f"receive {SMALL}": 0.0, "receive 1064": 0.0, "report": 0.0}
    notes |= {f"reports while receiving {size}": 0.0 for size in (SMALL, 1064)}
    notes |= {"tiny sum": 1e-6, "sum": 17e-6, "model": 8000.0}
    notes |= {"step": 0.001, "part": 1000.0, "part of a step": 0.3}
    found = MeasuredMeans(notes, 1064).handling()
    assert found.send == CpuTime(each=Seconds(0.001), byte=Seconds(pytest.approx(0.002 / 1000)))
    assert found.sums == CpuTime(each=Seconds(1e-6), byte=Seconds(pytest.approx(1e-9))), "two vectors are read"
    byte = 0.0007 / 7000
    assert found.step == pytest.approx(0.001 - 8000 * byte), "what does not depend on the bytes"
