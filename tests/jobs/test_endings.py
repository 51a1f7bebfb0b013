"""What becomes of a job whose processes have ended: from their exit code, and what was asked of it."""

from __future__ import annotations

import pytest

from covey.jobs.attempts import KILLED, how_it_ended
from covey.jobs.job_log import Status

STOPPED = "somebody else ended its process"
LAST = "the last line"


@pytest.mark.parametrize("asked", ["suspended", "stopped"])
@pytest.mark.parametrize("code", [None, 130, -2, -9, -15])
def test_a_job_that_was_asked_to_end_becomes_what_was_asked_whatever_signal_ended_it(
    code: int | None, asked: Status
) -> None:
    assert how_it_ended(code, asked, lambda: LAST) == (asked, "")


@pytest.mark.parametrize("asked", [None, "suspended", "stopped"])
def test_a_job_that_ended_by_itself_is_done_or_failed_whatever_was_asked(asked: Status | None) -> None:
    assert how_it_ended(0, asked, lambda: LAST) == ("done", "")
    assert how_it_ended(2, asked, lambda: LAST) == ("failed", LAST)


@pytest.mark.parametrize(
    ("code", "ended"),
    [
        (None, ("suspended", KILLED)), (-9, ("suspended", KILLED)), (-15, ("stopped", STOPPED)),
        (130, ("stopped", STOPPED)), (-11, ("failed", LAST)),
    ],
)  # fmt: skip
def test_a_job_that_somebody_else_ended_goes_on_later_only_where_it_was_killed(
    code: int | None, ended: tuple[Status, str]
) -> None:
    assert how_it_ended(code, None, lambda: LAST) == ended
