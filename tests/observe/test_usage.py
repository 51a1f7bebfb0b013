"""What the roles of a real run use: rates between two rows, and no more rows than a result has room for."""

from __future__ import annotations

import pytest

from covey.address import Address
from covey.observe.usage import EVERY, ROWS, Meter, Use

WORKERS = [Address("worker", 0), Address("worker", 1)]


def metered(rows: int, every: float = EVERY) -> Meter:
    """Two roles that use half a core, 10 bytes and 2 threads each, and send 1,000 bytes a second together."""
    meter = Meter()
    for number in range(rows):
        seconds = 3 + number * every
        for who in WORKERS:
            meter.note(who, Use(7 + 0.5 * number * every, 10, 2))
        meter.read(seconds, round(500 + 1000 * number * every), len(WORKERS))
    return meter


def test_a_row_is_what_was_used_since_the_row_before() -> None:
    rows = metered(4).rows
    assert [row["seconds"] for row in rows] == pytest.approx([3 + EVERY, 3 + 2 * EVERY, 3 + 3 * EVERY])
    for row in rows:
        assert row == pytest.approx(
            {"seconds": row["seconds"], "cpu": 1.0, "memory": 20, "threads": 4, "network": 1000.0}
        )


def test_there_is_no_row_before_every_role_was_heard_nor_too_soon() -> None:
    meter = Meter()
    meter.note(WORKERS[0], Use(1.0, 10, 2))
    for second in range(5):
        meter.read(float(second), 0, len(WORKERS))
    assert meter.rows == [] and meter.before is None
    assert len(metered(9, every=EVERY / 2).rows) == 4


def test_a_long_run_has_fewer_rows_further_apart_up_to_its_end() -> None:
    meter = metered(3 * ROWS)
    assert ROWS / 2 < len(meter.rows) <= ROWS and meter.every > EVERY
    assert all(row["network"] == pytest.approx(1000.0, rel=1e-3) for row in meter.rows)
    assert meter.rows[-1]["seconds"] > 3 + (3 * ROWS - 8) * EVERY
