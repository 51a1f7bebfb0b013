"""Timetables: their order, their bubble by formula, what is in flight, and which weights are used when."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.errors import PlanError, Stalled
from covey.parallelism import Gantt, MachineRow, Move, Schedule, Times, Timetable, simulate, timetable


def table(name: str, stages: int, batches: int | None = None, **settings: Any) -> Timetable:
    return timetable(Schedule(name=name, **settings), (1,) * stages, batches)


def balanced(plan: Timetable, forward: int = 3, backward: int = 5) -> Gantt:
    """All parts alike; in whole seconds, so that floats are exact."""
    parts = len(plan.machines) * plan.schedule.chunks
    return simulate(plan, Times(forward=[forward] * parts, backward=[backward] * parts))


def bubble(run: Gantt) -> Fraction:
    return Fraction(run.idle()) / Fraction(run.makespan * len(run.timetable.rows))


def overhead(run: Gantt) -> Fraction:
    """The bubble relative to the ideal, without one."""
    return Fraction(run.idle()) / Fraction(run.makespan * len(run.timetable.rows) - run.idle())


def test_the_orders() -> None:
    assert str(table("1f1b", 4, microbatches=6).rows[0]) == "F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5 U0"
    assert str(table("gpipe", 2, microbatches=3).rows[1]) == "F0 F1 F2 B2 B1 B0 U0"
    assert str(table("plain", 2, 2).rows[0]) == "F0 B0 U0 F1 B1 U1"
    assert str(table("pipedream", 3, 4).rows[1]) == "F0 F1 B0 U0 F2 B1 U1 F3 B2 U2 B3 U3"
    assert str(table("2bw", 2, 4, microbatches=2).rows[1]) == "F0 B0 F1 B1 U0 F2 B2 F3 B3 U1"
    assert str(table("interleaved", 2, microbatches=2, chunks=2).rows[1]) == "F0 F1 F0b B0b F1b B1b B0 B1 U0"


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("batches", [1, 2, 4, 8, 13])
def test_bubbles_equal_the_formulas(stages: int, batches: int) -> None:
    p, m = stages, batches
    for name in ("gpipe", "1f1b"):
        run = balanced(table(name, p, microbatches=m))
        assert bubble(run) == Fraction(p - 1, m + p - 1), name
        assert run.makespan == (m + p - 1) * (3 + 5)
        assert overhead(run) == Fraction(p - 1, m)
    assert bubble(balanced(table("plain", p, m))) == Fraction(p - 1, p)


@pytest.mark.parametrize(
    ("p", "v", "m"), [(2, 2, 2), (2, 2, 4), (2, 3, 8), (3, 2, 6), (4, 2, 8), (4, 3, 4), (4, 4, 16)]
)
def test_the_bubble_of_interleaved_is_smaller_by_the_chunks(p: int, v: int, m: int) -> None:
    run = balanced(table("interleaved", p, microbatches=m, chunks=v))
    assert bubble(run) == Fraction(p - 1, v * m + p - 1)
    assert overhead(run) == Fraction(p - 1, v * m)
    whole = balanced(table("1f1b", p, microbatches=m), 3 * v, 5 * v)
    assert run.makespan < whole.makespan


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_without_a_flush_there_is_no_bubble_in_the_steady_state(stages: int) -> None:
    for plan in (table("pipedream", stages, 48), table("2bw", stages, 48, microbatches=4)):
        run = balanced(plan)
        assert run.bubble(run.makespan // 3, run.makespan * 2 // 3) == 0
        assert bubble(run) == Fraction(stages - 1, 48 + stages - 1)


def test_what_is_in_flight() -> None:
    assert [row.in_flight() for row in table("1f1b", 4, microbatches=8).rows] == [4, 3, 2, 1]
    assert [row.in_flight() for row in table("gpipe", 4, microbatches=8).rows] == [8, 8, 8, 8]
    assert [row.in_flight() for row in table("1f1b", 4, microbatches=2).rows] == [2, 2, 2, 1]
    assert [row.in_flight() for row in table("plain", 4, 3).rows] == [1, 1, 1, 1]
    assert [row.in_flight() for row in table("pipedream", 4, 20).rows] == [4, 3, 2, 1]


@pytest.mark.parametrize("p", [1, 2, 3, 5])
def test_pipedream_uses_the_same_weights_forward_and_backward_older_on_earlier_stages(p: int) -> None:
    for row in table("pipedream", p, 30).rows:
        forward = {move.batch: move.version for move in row.moves if move.what == "F"}
        assert forward == {j: max(0, j - (p - 1 - row.stage)) for j in range(30)}
        assert {move.batch: move.version for move in row.moves if move.what == "B"} == forward
        assert row.versions() == p - row.stage
        made = 0
        for move in row.moves:  # the version is there when it is used
            assert move.what == "U" or move.version <= made
            made += move.what == "U"


@pytest.mark.parametrize("p", [1, 2, 4])
def test_vertical_sync_uses_the_first_stages_version_everywhere(p: int) -> None:
    for row in table("pipedream", p, 30, vertical=True).rows:
        used = {(move.batch, move.version) for move in row.moves if move.what != "U"}
        assert used == {(j, max(0, j - (p - 1))) for j in range(30)}
        assert row.versions() == p == Schedule(name="pipedream", vertical=True).versions(p - row.stage, 1, p)


@pytest.mark.parametrize(("p", "m"), [(1, 1), (2, 2), (2, 5), (4, 4), (4, 7)])
def test_two_buffers_have_a_delay_of_one_and_two_versions(p: int, m: int) -> None:
    for row in table("2bw", p, 6 * m, microbatches=m).rows:
        for move in row.moves:
            assert move.what == "U" or move.version == max(0, move.batch // m - 1)
        assert row.versions() == 2
        made = 0
        for move in row.moves:
            assert move.what == "U" or made - 1 <= move.version <= made, "a third version would be needed"
            made += move.what == "U"


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(PlanError, match="at least 4 micro-batches"):
        table("2bw", 4, microbatches=3)
    Schedule(name="2bw", microbatches=4).check((2, 2))
    with pytest.raises(PlanError, match="4 machines a third version of the weights would be needed"):
        Schedule(name="2bw", microbatches=3).check((2, 2))
    with pytest.raises(PlanError, match="use 12, not 10"):
        table("interleaved", 4, microbatches=10, chunks=2)
    with pytest.raises(PlanError, match="there are plain, gpipe"):
        Schedule(name="2f2b")
    with pytest.raises(PlanError, match="goes with interleaved"):
        Schedule(name="1f1b", chunks=2)
    with pytest.raises(PlanError, match="goes with pipedream"):
        Schedule(name="2bw", vertical=True)
    with pytest.raises(PlanError, match="one machine for each stage"):
        timetable(Schedule(name="pipedream", vertical=True), (2, 1))


NAMES = ("plain", "gpipe", "1f1b", "interleaved", "pipedream", "2bw")


@st.composite
def plans(draw: st.DrawFn) -> Timetable:
    name = draw(st.sampled_from(NAMES))
    alone = name in ("plain", "interleaved")
    machines = tuple(draw(st.lists(st.integers(1, 1 if alone else 3), min_size=1, max_size=5)))
    many = draw(st.integers(1, 3)) * len(machines) if name == "interleaved" else draw(st.integers(1, 12))
    if name == "2bw":
        many = max(many, sum(machines))
    chunks = draw(st.integers(1, 3)) if name == "interleaved" else 1
    vertical = name == "pipedream" and max(machines) == 1 and draw(st.booleans())
    batches = many * 3 if name == "2bw" else draw(st.integers(1, 20)) if name in ("plain", "pipedream") else None
    return timetable(Schedule(name=name, microbatches=many, chunks=chunks, vertical=vertical), machines, batches)


@settings(max_examples=120, deadline=None)
@given(plans(), st.data())
def test_every_timetable_ends_and_keeps_its_order(plan: Timetable, data: st.DataObject) -> None:
    parts, rows = len(plan.machines) * plan.schedule.chunks, plan.rows
    seconds = st.lists(st.integers(0, 9), min_size=parts, max_size=parts)
    forward, backward, ahead, back = (data.draw(seconds) for _ in range(4))
    update = data.draw(st.lists(st.integers(0, 9), min_size=len(plan.machines), max_size=len(plan.machines)))
    times = Times(forward=forward, backward=backward, ahead=ahead, back=back, latency=1, update=update)
    run = simulate(plan, times)  # it would say if it could not go on
    assert len(run.slots) == sum(len(row.moves) for row in rows)
    at = {}
    for slot in run.slots:
        if slot.move.what != "U":
            part = slot.move.chunk * len(plan.machines) + rows[slot.row].stage
            at[slot.move.what, slot.move.batch, part] = slot
    wait = 1 if len(plan.machines) > 1 else 0
    for (what, batch, part), slot in at.items():
        if what == "B":
            assert at["F", batch, part].end <= slot.begin, "backward before its forward"
            assert at["F", batch, part].row == slot.row, "the replica that did the forward does the backward"
            assert at["F", batch, part].move.version == slot.move.version
        before = at.get((what, batch, part - 1 if what == "F" else part + 1))
        if before:
            takes = wait and (ahead[part - 1] if what == "F" else back[part])
            assert before.end + takes + wait <= slot.begin, "begun before its values were there"
    for row in range(len(rows)):
        mine = [slot for slot in run.slots if slot.row == row]
        assert [slot.move for slot in mine] == list(rows[row].moves)
        assert all(one.end <= other.begin for one, other in pairwise(mine)), "two moves at once"


@settings(max_examples=60, deadline=None)
@given(plans())
def test_formulas_of_memory_hold_for_the_rows(plan: Timetable) -> None:
    machines, schedule = plan.machines, plan.schedule
    long = {"pipedream": 8 * sum(machines), "2bw": 6 * schedule.microbatches}.get(schedule.name)
    if schedule.chunks > 1:
        return  # chunks share a machine: rows only
    for row in timetable(schedule, machines, long).rows:
        left, here = sum(machines[row.stage :]), machines[row.stage]
        assert row.in_flight() <= schedule.in_flight(left, here)
        assert row.versions() <= schedule.versions(left, here, sum(machines))
        if row.replica == 0:
            assert row.in_flight() == schedule.in_flight(left, here)
            assert row.versions() == schedule.versions(left, here, sum(machines))


def test_a_timetable_that_cannot_go_on_says_so() -> None:
    rows = (MachineRow(0, 0, (Move("B", 0), Move("F", 0))), MachineRow(1, 0, (Move("F", 0), Move("B", 0))))
    with pytest.raises(Stalled, match="stage 0: B0, stage 1: F0"):
        simulate(Timetable(Schedule(), (1, 1), rows), Times(forward=[1, 1], backward=[1, 1]))


def test_messages_of_one_machine_follow_one_another() -> None:
    plan = table("gpipe", 2, microbatches=3)
    run = simulate(plan, Times(forward=[1, 1], backward=[1, 1], ahead=[5], back=[0]))
    begins = [slot.begin for slot in run.slots if slot.row == 1 and slot.move.what == "F"]
    assert begins == [6, 11, 16]  # the link is the bottleneck: one message every 5


def test_each_stage_updates_when_its_own_machines_are_through() -> None:
    run = simulate(table("gpipe", 2, microbatches=2), Times(forward=[1, 1], backward=[1, 1], update=[4, 2]))
    updates = {slot.row: (slot.begin, slot.end) for slot in run.slots if slot.move.what == "U"}
    assert updates == {0: (6, 10), 1: (5, 7)}


def test_gaps_are_the_bubble() -> None:
    run = balanced(table("1f1b", 3, microbatches=4))
    assert sum(end - begin for _, begin, end in run.gaps()) == run.idle()
