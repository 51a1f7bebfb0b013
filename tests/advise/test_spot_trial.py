"""Whether spot machines pay, in worlds where the answer is known."""

from __future__ import annotations

import shlex
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

import covey
from covey.advise.choose import advise
from covey.advise.ranked import Advice, RankedStrategy
from covey.advise.situation import Situation, look
from covey.advise.trials import spot
from covey.advise.trials.allocations import by_worth, part_of, tried
from covey.advise.trials.spot import weigh
from covey.errors import PlanError
from covey.run.options import options
from covey.run.request import request
from covey.simulate import BytesPerSecond, Cluster, Link, Seconds, from_flags
from covey.simulate.cluster_file import read
from covey.simulate.spot_trace import read_trace
from covey.task import Task, load_task

DIGITS = "examples/digits.py"
TRACE = "time,worker,event,notice\n100ms,1,depart,20ms\n100ms,2,depart,\n300ms,1,arrive,\n"


@pytest.fixture(scope="module")
def task() -> Task:
    return load_task(DIGITS)


@cache
def looked() -> Situation:
    return look(load_task(DIGITS), 3, Cluster(), spot=True)


def world(task: Task, prices: str) -> Situation:
    cluster = read(f"[compute]\nbatch = '10ms'\n[[group]]\nworkers = 3\n{prices}")
    return replace(looked(), cluster=cluster)


def only(spec: str) -> RankedStrategy:
    return RankedStrategy(
        spec=spec, workers=3, relative=1.0, relative_interval=(1.0, 1.0), step=0.01, timing="formulas", exchange=0.0,
        basis="formulas", family="",
    )  # fmt: skip


def found(task: Task, now: Situation, tmp_path: Path, trace: str = TRACE) -> Advice:
    (tmp_path / "spot.csv").write_text(trace)
    advice = Advice(
        task=DIGITS, workers=3, until=None, choices=[only(spec) for spec in ("allreduce", "bsp", "asynchronous")],
        findings=["what else is to be said"], sure="a rough guess", why_sure="", compute=now.compute, model=now.model,
    )  # fmt: skip
    weigh(advice, task, now, tmp_path / "spot.csv")
    return advice


def test_cheap_spot_machines_pay_and_dear_ones_do_not(task: Task, tmp_path: Path) -> None:
    cheap = found(task, world(task, "price = 0.9\nspot_price = 0.1"), tmp_path)
    dear = found(task, world(task, "price = 0.9\nspot_price = 1.5"), tmp_path)
    assert {one.spec for one in cheap.spot} == {"allreduce", "bsp", "asynchronous"}
    for one in (*cheap.spot, *dear.spot):
        assert one.seconds > one.fixed_seconds and one.money and one.fixed_money and 0 < one.counted <= 1
    assert all(one.money < one.fixed_money for one in cheap.spot)  # type: ignore[operator]
    assert all(one.money > one.fixed_money for one in dear.spot)  # type: ignore[operator]
    assert "they pay" in cheap.findings[0] and "they do not pay" in dear.findings[0]
    assert [one.money for one in cheap.spot] == sorted(one.money or 0.0 for one in cheap.spot), "the cheapest first"
    assert '"spot"' in cheap.to_json()


def by_hand(task: Task, tmp_path: Path, price: str, trace: str) -> Advice:
    """Two machines that stay, and one that may depart, at this price; messages take no time."""
    link = "[link]\nbandwidth = '9000gbit'\nlatency = '0ms'"
    stay, may = "[[group]]\nworkers = 2\nprice = 0.9", f"[[group]]\nworkers = 1\nprice = 0.9\nspot_price = {price}"
    cluster = read(f"[compute]\nbatch = '10ms'\n{link}\n{stay}\n{may}")
    (tmp_path / "spot.csv").write_text(trace)
    advice = Advice(
        task=DIGITS, workers=3, until=None, choices=[replace_seconds(only("bsp"), 0.3)], findings=[],
        sure="a rough guess", why_sure="", compute=0.01, model=looked().model,
    )  # fmt: skip
    weigh(advice, task, replace(looked(), cluster=cluster), tmp_path / "spot.csv")
    return advice


def replace_seconds(choice: RankedStrategy, seconds: float) -> RankedStrategy:
    choice.seconds = seconds
    return choice


GONE = "time,worker,event\n105ms,2,depart\n"


def test_what_is_cheapest_is_as_worked_out_by_hand(task: Task, tmp_path: Path) -> None:
    """30 rounds of three batches take 300 ms on machines that stay.

    The spot machine goes in the 11th round: 10 rounds have done 30 batches, and two machines do the other 60 in 30
    rounds, until 400 ms. It is paid for 105 ms. Two machines alone do 90 batches in 45 rounds, 450 ms.
    """
    (cheap,) = by_hand(task, tmp_path, "0.3", GONE).spot
    assert cheap.fixed_seconds == pytest.approx(0.3, rel=1e-3) and cheap.seconds == pytest.approx(0.4, rel=1e-3)
    assert cheap.fixed_money == pytest.approx(3 * 0.9 * 0.3 / 3600, rel=1e-3)
    assert cheap.money == pytest.approx((2 * 0.9 * 0.4 + 0.3 * 0.105) / 3600, rel=1e-3)
    assert [one.spot for one in cheap.allocations] == [[2], []], "0.7515 against 0.81, both over 3600"
    alone = cheap.allocations[1]
    assert alone.seconds == pytest.approx(0.45, rel=1e-3)
    assert alone.money == pytest.approx(2 * 0.9 * 0.45 / 3600, rel=1e-3)


def test_a_machine_that_is_lost_too_soon_for_its_price_is_advised_against(task: Task, tmp_path: Path) -> None:
    """At 3.0 an hour the same costs (0.72 + 0.315) / 3600, and the two that stay cost 0.81 / 3600 alone."""
    advice = by_hand(task, tmp_path, "3.0", GONE)
    assert [one.spot for one in advice.spot[0].allocations] == [[], [2]]
    assert any("It is cheapest without spot machines: it then costs 0.78 times" in line for line in advice.findings)


def test_machines_with_the_most_time_for_their_money_are_taken_first() -> None:
    trace = read_trace("time,worker,event\n2s,3,depart\n5s,1,depart\n5s,2,depart\n8s,3,arrive\n")
    cluster = Cluster(price=dict.fromkeys(range(4), 1.0), spot_price={1: 0.5, 2: 0.4, 3: 0.5})
    assert by_worth(trace, cluster, 10.0) == [2, 1, 3], "5 s for 0.4, 5 s and 4 s for 0.5"
    assert tried(1, 0) == [0] and tried(1, 1) == [] and tried(9, 0) == [0, 2, 4, 6]


def test_a_part_of_a_cluster_numbers_its_workers_anew() -> None:
    slow = Link(bandwidth=BytesPerSecond(1.0))
    whole = Cluster(
        links={"worker 2": slow, "worker 1": slow, "server 0": slow}, slowdowns={2: 4.0, 0: 2.0}, workers=3,
        price={0: 1.0, 1: 2.0, 2: 3.0}, spot_price={2: 0.5}, kills={"worker 2": Seconds(1.0), "worker 1": Seconds(2.0)},
    )  # fmt: skip
    part = part_of(whole, [0, 2])
    assert part.links == {"worker 1": slow, "server 0": slow} and part.slowdowns == {0: 2.0, 1: 4.0}
    assert part.price == {0: 1.0, 1: 3.0} and part.spot_price == {1: 0.5} and part.workers == 2
    assert part.kills == {"worker 1": 1.0}


def test_without_prices_it_says_what_departures_cost_in_time(task: Task, tmp_path: Path) -> None:
    advice = found(task, world(task, ""), tmp_path)
    assert advice.spot[0].money is None and "no cluster file gives prices" in advice.findings[0]


def test_a_run_that_is_simulated_in_part_says_so_and_is_judged_only_by_departures(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = world(task, "price = 0.9\nspot_price = 0.1")
    assert not any(one.simulated for one in found(task, now, tmp_path).spot), "as a whole"
    monkeypatch.setattr(spot, "EFFECTS", 10 * 3 * 15)  # 15 steps of 10 ms
    part = found(task, now, tmp_path)
    assert all(one.simulated == one.seconds > 0.1 and one.departures == 2 for one in part.spot)
    assert "only the first 0." in part.findings[0] and "with 2 departures" in part.findings[0]
    assert "they pay" in part.findings[1]
    monkeypatch.setattr(spot, "EFFECTS", 10 * 3 * 4)
    early = found(task, now, tmp_path)
    assert [one.departures for one in early.spot] == [0, 0, 0]
    assert all("nothing can be said: only the first 0.0" in line for line in early.findings[:3])
    assert not any("pay" in line for line in early.findings)


def test_who_cannot_go_on_says_so(task: Task, tmp_path: Path) -> None:
    gone = "time,worker,event\n10ms,0,depart\n10ms,1,depart\n10ms,2,depart\n"
    advice = found(task, world(task, "price = 1"), tmp_path, gone)
    assert all("only 0 workers are left" in one.failure for one in advice.spot)
    assert "cannot go on" in advice.findings[0]
    with pytest.raises(PlanError, match="names worker 7, and 3 workers are numbered 0 to 2"):
        found(task, world(task, ""), tmp_path, "time,worker,event\n10ms,7,depart\n")


def test_only_strategies_whose_workers_come_and_go_are_tried(task: Task, tmp_path: Path) -> None:
    now = world(task, "price = 1")
    advice = found(task, now, tmp_path)
    advice.choices, advice.findings, advice.spot = [only("sparknet")], [], []
    weigh(advice, task, now, tmp_path / "spot.csv")
    assert advice.spot == [] and "None of the strategies" in advice.findings[0]


@pytest.mark.parametrize("spec", ["allreduce", "local_sgd(period=2)"])
def test_workers_that_are_only_timed_take_over_states_without_numbers(spec: str) -> None:
    faults = "leave worker 1@30ms; join worker 1@60ms"
    found = covey.fit(
        DIGITS, spec, "1:3", engine="simulated", epochs=1, timing_only=True, faults=faults, runs=False
    )  # fmt: skip
    assert found.samples == 1437 and [one.event for one in found.membership] == ["leave", "join"]


def test_a_trace_of_more_workers_than_there_are_is_refused_with_the_number_that_it_needs() -> None:
    trace, now = read_trace("time,worker,event\n5s,3,depart\n"), SimpleNamespace(workers=3)
    with pytest.raises(PlanError, match=r"names worker 3, and 3 workers are numbered 0 to 2: use --workers 4"):
        spot.check(trace, now)  # type: ignore[arg-type]
    now.workers = 4
    spot.check(trace, now)  # type: ignore[arg-type]


def test_where_machines_may_vanish_every_command_survives_the_loss_of_one(task: Task) -> None:
    steady = look(task, 4, from_flags(bandwidth="1mbit", compute="1ms"))
    spot = replace(steady, spot=True)
    assert any(one.spec.startswith("adpsgd +") for one in advise(task, DIGITS, steady).choices), "which cannot go on"
    advice = advise(task, DIGITS, spot)
    assert any("with --engine ray --workers 2:4 --on-failure continue" in line for line in advice.findings)
    assert len(advice.choices) > 10 and not any(one.spec.startswith("adpsgd +") for one in advice.choices)
    for choice in [*advice.choices[:4], *(one for one in advice.choices if one.workers == 1)]:
        words = shlex.split(choice.command)
        given = {name: words[words.index(f"--{name}") + 1] for name in ("workers", "on-failure")}
        assert given == {"workers": "2:4" if choice.workers > 1 else "1", "on-failure": given["on-failure"]}
        kept = {"checkpoint": "kept"} if "--checkpoint" in words else {}
        asked = options({"epochs": 1, "on_failure": given["on-failure"], "engine": "simulated", **kept})
        request(task, choice.spec, given["workers"], asked)  # or it refuses
    one_left = advise(task, DIGITS, replace(spot, fewest=1))
    assert any("--workers 1:4 --on-failure" in line for line in one_left.findings)
    assert all("--workers 1:4 " in one.command for one in one_left.choices if one.workers > 1)
    far = advise(task, DIGITS, spot, command="--engine 'lab(hosts=4)'").choices
    assert any("--workers 4 --checkpoint kept --on-failure restart --engine 'lab" in one.command for one in far)
