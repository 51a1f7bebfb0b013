"""Traces of spot machines: what is read, what is refused and where, and what a machine costs while it is there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from covey.errors import PlanError
from covey.observe.membership import MembershipEvent, RunCost, seconds_present
from covey.simulate import Cluster
from covey.simulate.cluster_file import read
from covey.simulate.spot_trace import load_trace, read_trace
from covey.simulate.units import parse_duration

HEADER = "time,worker,event,notice\n"


def test_a_trace_is_a_plan_of_leaves_notices_and_joins() -> None:
    lines = "0s,0,arrive,\n5s,1,arrive,\n20s,0,depart,2s\n30s,1,depart,\n40s,1,arrive\n"
    trace = read_trace(f"# an afternoon\n\n{HEADER}{lines}")
    assert str(trace.plan()) == "join worker 1@5s; notice worker 0@18s for 2s; leave worker 1@30s; join worker 1@40s"
    assert trace.workers == {0, 1} and trace.absent == {1} and trace.plan().absent == ["worker 1"]
    assert all(fault.optional for fault in trace.plan().faults), "a trace may be longer than a run"
    assert str(trace.plan(begins_full=True)).startswith("leave worker 1@0ms; join worker 1@5s; ")
    assert not trace.plan(begins_full=True).absent


def test_who_departs_first_and_comes_back_is_there_at_the_beginning() -> None:
    assert read_trace(f"{HEADER}20s,0,depart,2s\n30s,0,arrive,\n").plan().absent == []
    assert read_trace("time,worker,event\n20s,0,depart\n").plan().faults[0].kind == "leave"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "the trace: the first line must be the header 'time,worker,event,notice'"),
        ("20s,1,depart,2s\n", "the first line must be the header"),
        (HEADER, "no line below its header"),
        (f"{HEADER}\n20s,1\n", "line 3: 2 values for 4 columns; write for example '20s,1,depart,2s'"),
        (f"{HEADER}20s,1,depart,2s,x\n", "line 2: 5 values for 4"),
        (f"{HEADER}20,1,depart,\n", "line 2: cannot read the duration"),
        (f"{HEADER}20s,-1,depart,\n", "line 2: '-1' is not the number of a worker"),
        (f"{HEADER}20s,1,leave,\n", "line 2: 'leave' is neither arrive nor depart"),
        (f"{HEADER}20s,1,arrive,1s\n", "line 2: notice 1s: only who departs"),
        (f"{HEADER}20s,1,depart,21s\n", "line 2: a notice of 21s before 20s would come before the run begins"),
        (f"{HEADER}20s,1,depart,\n10s,2,depart,\n", "line 3: it is earlier than the line before"),
        (f"{HEADER}20s,1,depart,\n30s,1,depart,\n", "line 3: worker 1 is gone already"),
        (f"{HEADER}20s,1,arrive,\n30s,1,arrive,\n", "line 3: worker 1 is there already"),
        (f"{HEADER}20s,1,arrive,\n30s,1,depart,11s\n", "line 3: the notice comes before worker 1 arrives"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_told_by_its_line(text: str, told: str) -> None:
    with pytest.raises(PlanError) as error:
        read_trace(text)
    assert told in str(error.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"spot_trace.*none.csv.*: the file cannot be read: No such file"):
        load_trace(tmp_path / "none.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PlanError, match=r"binary.csv.*: the file cannot be read"):
        load_trace(tmp_path / "binary.csv")


def event(kind: str, who: int, seconds: float) -> MembershipEvent:
    return MembershipEvent(
        seconds=seconds, view=1, event=kind, who=f"worker {who}", cause="", workers=1, stalled=0.0  # type: ignore[arg-type]
    )  # fmt: skip


def test_a_machine_costs_while_it_is_there_also_while_its_process_is_replaced() -> None:
    events = [event("leave", 1, 10), event("rebirth", 0, 20), event("join", 2, 30), event("join", 1, 40)]
    events += [event("restart", 0, 50), event("leave", 2, 60), event("join", 2, 90), event("leave", 1, 95)]
    assert seconds_present(events, 4, 100.0) == [100.0, 65.0, 40.0, 100.0], "worker 1 stayed twice"
    cost = RunCost.of([3600.0, 1800.0, 7200.0], {0: 0.9, 1: 0.2}, samples=500_000)
    assert (cost.money, cost.hours, cost.per_million) == (1.0, 3.5, 2.0)


def test_a_machine_that_is_absent_at_first_and_never_comes_costs_nothing() -> None:
    assert seconds_present([], 3, 50.0, absent={2}) == [50.0, 50.0, 0.0]
    assert seconds_present([event("join", 2, 20), event("leave", 2, 30)], 3, 50.0, absent={2}) == [50.0, 50.0, 10.0]


def test_a_machine_of_a_trace_is_there_from_its_arrival_to_its_departure() -> None:
    trace = read_trace(f"{HEADER}0s,0,arrive,\n20s,1,arrive,\n30s,0,depart,20s\n40s,1,depart,\n60s,0,arrive,\n")
    assert trace.seconds_present(100.0) == {0: 70.0, 1: 20.0}
    assert trace.seconds_present(25.0) == {0: 25.0, 1: 5.0}, "after the notice the machine is still there"
    assert trace.seconds_present(10.0) == {0: 10.0, 1: 0.0}, "the second has not come"
    assert [trace.departures(seconds) for seconds in (10.0, 11.0, 50.0)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("lines", "fewest"),
    [
        ("1s,1,depart,300ms\n1500ms,2,depart,\n2s,3,arrive,\n2500ms,1,arrive,\n3s,0,depart,", 1),
        ("1s,1,depart,\n2s,1,arrive,\n3s,2,depart,", 3),
        ("1s,1,arrive,\n2s,2,depart,", 3),
        ("1s,1,depart,\n2s,2,depart,500ms\n1900ms,1,arrive,", 2),
        ("0s,1,arrive,\n2s,1,depart,", 3),
        ("0s,1,depart,\n5s,1,arrive,", 3),
        ("1s,0,depart,\n1s,1,depart,\n1s,2,depart,\n1s,3,depart,", 0),
    ],
)
def test_the_fewest_workers_that_a_trace_leaves(lines: str, fewest: int) -> None:
    lines = "\n".join(sorted(lines.splitlines(), key=lambda line: float(parse_duration(line.split(",")[0]))))
    assert read_trace(f"time,worker,event,notice\n{lines}\n").fewest(4) == fewest


def test_a_trace_of_twice_the_lines_takes_twice_the_work() -> None:
    def calls(lines: int) -> int:
        text = HEADER + "".join(f"{at}s,{at % 2},{'depart' if at % 4 < 2 else 'arrive'},\n" for at in range(lines))
        found: list[str] = []
        sys.setprofile(lambda frame, event, of: found.append(event) if event == "call" else None)
        try:
            read_trace(text).seconds_present(1e6)
        finally:
            sys.setprofile(None)
        return len(found)

    assert calls(400) < 2.2 * calls(200)


def test_spot_machines_have_a_price_of_their_own() -> None:
    world = read("[[group]]\nworkers = 2\nprice = 0.9\nspot_price = 0.3\n[[group]]\nworkers = 1\nprice = 0.5\n")
    assert world.prices() == {0: 0.9, 1: 0.9, 2: 0.5}
    assert world.prices({1, 2}) == {0: 0.9, 1: 0.3, 2: 0.5}
    assert Cluster().prices({0}) == {}
