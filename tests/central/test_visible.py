"""Whatever a schedule does can be seen in the trace of a run: who sent what when, who waited for it, what was found."""

from __future__ import annotations

import pytest

from tests.central.test_priorities import SLOW, deep
from tests.worlds import run, slowed

GATE = "for an answer for its work"  # of forward, before a parameter that is not fresh yet


FORCED = ["notes forced", "notes forced back"]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("p3(slice=50)", ["worker 0 -> server 0", "Gradient", "Updated", GATE]),
        ("tictac", ["Gradient", "Updated", GATE]),
        ("bytescheduler(partition=256, credit=512)", ["Gradient", "Confirmed", "Updated", GATE]),
        ("bytescheduler(partition=256, credit=auto)", ["Tuned", "notes credit", "notes partition"]),
        ("bytescheduler(partition=256, credit=512, exchange=allreduce)", ["worker 0 -> worker 1", "Begin", GATE]),
        ("staggered", ["PushRequest", "Turn", "Gradient"]),
        ("bosen(bound=1, rate=51.2kbit, row=8)", ["RowChanges", "Tick", "Renewed", *FORCED]),
        ("poseidon", ["worker 0 -> worker 1", "Factors"]),
        ("bsp over proxies(groups=1, first=lagging)", ["worker 0 -> proxy 0", "proxy 0 -> server 0", "Push", "Params"]),
        ("allreduce(pattern=auto, bucket=auto)", ["LinkProbe", "notes pattern", "notes bucket", "notes link latency"]),
    ],
    ids=lambda given: given.partition("(")[0] if isinstance(given, str) else "",
)  # fmt: skip
def test_what_a_schedule_does_is_in_the_trace(spec: str, words: list[str]) -> None:
    steps = 21 if "credit=auto" in spec else 4
    trace = run(deep(samples=400), spec, 2, steps=steps, cluster=slowed(SLOW, w1=2)).trace
    assert not [word for word in words if word not in trace]


def test_and_what_it_does_not_do_is_not() -> None:
    trace = run(deep(), "bsp", 2, steps=3, cluster=slowed(SLOW, w1=2)).trace
    assert GATE not in trace and "Gradient" not in trace
