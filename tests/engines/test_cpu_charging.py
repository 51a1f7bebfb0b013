"""Virtual time where messages, sums and shared cores cost what the cluster file says."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import covey
from covey.engines.virtual.agenda import Agenda
from covey.engines.virtual.cores import Cores, RoleThread
from covey.engines.virtual.cpu_charging import ChargedLinks, CpuChargingEngine, _portion
from covey.engines.virtual.effort import Effort
from covey.exchange.codec_observer import told
from covey.program import Send
from covey.simulate import BytesPerSecond, Cluster, CodecTime, CpuTime, Handling, Link, Machine, Seconds
from covey.simulate.cluster import Sharing
from covey.vector import Vector
from tests.engines.stage import YOU, Ping

TASK = "examples/digits.py"
BATCH = 0.01
CALM = Cluster(compute=Seconds(BATCH), link=Link(latency=Seconds(0)))


def ends(cores: Cores, agenda: Agenda, jobs: list[tuple[float, float, int]]) -> list[float]:
    """When jobs end that come at a time, and need so much work on so many cores."""
    found = [0.0] * len(jobs)

    def note(place: int, _: object) -> None:
        found[place] = agenda.now

    for place, (at, work, width) in enumerate(jobs):
        agenda.at(at, lambda p, w: cores.run(w[0], w[1], note, p, None), place, (work, width))
    while agenda.due:
        agenda.step()
    return found


def test_jobs_share_a_core_equally() -> None:
    agenda = Agenda()
    # From 1 on both have half a core; the second has its 1 at 3, the first what is left of its 2 at 3 as well.
    assert ends(Cores(agenda, Machine(cores=1)), agenda, [(0, 2, 1), (1, 1, 1)]) == pytest.approx([3, 3])


def test_a_job_has_one_core_at_most_and_a_wide_one_several() -> None:
    agenda = Agenda()
    assert ends(Cores(agenda, Machine(cores=8)), agenda, [(0, 2, 1), (0, 1, 4)]) == pytest.approx([2, 1])
    agenda = Agenda()
    assert ends(Cores(agenda, Machine(cores=2)), agenda, [(0, 1, 4)]) == pytest.approx([2])


def test_a_quota_is_spent_at_full_speed_and_then_stops_everything() -> None:
    quota = Machine(cores=0.25, period=Seconds(0.02))
    agenda = Agenda()  # 5 ms in every 20 ms: 4 ms at once, and 12 ms in three periods
    assert ends(Cores(agenda, quota), agenda, [(0, 0.004, 1)]) == pytest.approx([0.004])
    agenda = Agenda()
    assert ends(Cores(agenda, quota), agenda, [(0, 0.012, 1)]) == pytest.approx([0.042])
    agenda = Agenda()  # two at once spend it twice as fast
    assert ends(Cores(agenda, quota), agenda, [(0, 0.005, 1), (0, 0.005, 1)]) == pytest.approx([0.0225, 0.0225])


def test_a_quota_is_spent_by_all_that_run_when_another_begins() -> None:
    """2 ms are gone after 1; then three spend 3 ms in 1, 5 ms in 1.67 and, with two of them through, 4 ms in 1.33."""
    agenda, quota = Agenda(), Machine(cores=0.25, period=Seconds(0.02))
    found = ends(Cores(agenda, quota), agenda, [(0, 0.005, 1), (0, 0.005, 1), (0.001, 0.0045, 1)])
    assert found == pytest.approx([0.041333, 0.041333, 0.041833], abs=1e-6)


def test_half_a_core_runs_for_half_of_each_period() -> None:
    agenda = Agenda()  # 10 ms at once, 10 ms of waiting, and the other 5
    quota = Machine(cores=0.5, period=Seconds(0.02))
    assert ends(Cores(agenda, quota), agenda, [(0, 0.015, 1)]) == pytest.approx([0.025])


def test_periods_begin_at_their_phase() -> None:
    agenda = Agenda()  # the first period is half over
    quota = Machine(cores=0.25, period=Seconds(0.02))
    assert ends(Cores(agenda, quota, phase=0.5), agenda, [(0, 0.006, 1)]) == pytest.approx([0.011])


def test_a_long_run_on_a_quota_gets_its_share_exactly() -> None:
    agenda, quota = Agenda(), Machine(cores=0.15, period=Seconds(0.02))
    (end,) = ends(Cores(agenda, quota), agenda, [(0, 15.0, 1)])
    assert end == pytest.approx(100, rel=1e-3)


def test_who_wakes_up_waits_only_where_all_cores_are_in_use() -> None:
    agenda = Agenda()  # the second finds a core free; the third comes half a second before one is
    busy = Machine(cores=2, wake=Seconds(1))
    assert ends(Cores(agenda, busy), agenda, [(0, 1, 1), (0, 1, 1), (0.5, 1, 1)]) == pytest.approx([1, 1, 2.5])
    agenda, quota = Agenda(), Machine(cores=0.25, period=Seconds(0.02), wake=Seconds(1))
    assert ends(Cores(agenda, quota), agenda, [(0, 0.004, 1)]) == pytest.approx([0.004]), "a quota has cores enough"


def test_a_thread_does_one_thing_after_the_other() -> None:
    agenda, told = Agenda(), []
    hand = RoleThread(Cores(agenda, None))

    def tell(what: str, _: object) -> None:
        told.append((what, round(agenda.now, 6)))
        if what == "a":
            hand.do(1, tell, "a goes on", first=True)

    for what in "abc":
        hand.do(1, tell, what)
    while agenda.due:
        agenda.step()
    assert told == [("a", 1), ("a goes on", 2), ("b", 3), ("c", 4)]


def test_what_comes_first_stays_in_its_order() -> None:
    agenda, told = Agenda(), list[str]()
    hand = RoleThread(Cores(agenda, None))
    for what, first in (("busy", False), ("later", False), ("one program", True), ("another", True)):
        hand.do(1, lambda what, _: told.append(what), what, first=first)
    while agenda.due:
        agenda.step()
    assert told == ["busy", "one program", "another", "later"]


@pytest.mark.parametrize("rate", [1e6, 1e7, 1e8])
def test_two_programs_of_a_role_send_in_the_order_in_which_they_wanted_to(rate: float) -> None:
    """A server of bosen answers a read while another program of it gives rows: no copy may go back in time."""
    slow = CpuTime(each=Seconds(4e-4), byte=Seconds(1e-9))
    world = replace(
        CALM, jitter=0.05, machines=(Machine(cores=0.45, period=Seconds(0.02)),) * 4,
        link=Link(bandwidth=BytesPerSecond(rate), latency=Seconds(0), cpu=slow),
        handling=Handling(send=slow, receive=slow),
    )  # fmt: skip
    assert step("bosen(row=64)", world, workers=4) > BATCH


def step(strategy: str, cluster: Cluster, workers: int = 2, **given: object) -> float:
    """Seconds of a step."""
    given = {"timing_only": True, **given}
    return covey.fit(TASK, strategy, workers, steps=10, engine="simulated", cluster=cluster, **given).seconds / 10


@pytest.mark.parametrize(("workers", "longer"), [(1, 1), (2, 1), (4, 2), (8, 4)])
def test_roles_share_the_cores_of_their_machine(workers: int, longer: float) -> None:
    shared = replace(CALM, machines=(Machine(cores=2),))
    assert step("local_sgd(period=100)", shared, workers) == pytest.approx(longer * BATCH, rel=0.01)


def test_roles_live_on_machines_as_engines_place_them() -> None:
    """Two workers on two machines: a slow one holds back only the worker that lives there."""
    slow = replace(CALM, machines=(Machine(cores=2), Machine(cores=0.5)))
    assert step("local_sgd(period=100)", slow) == pytest.approx(2 * BATCH, rel=0.01)
    assert step("local_sgd(period=100)", replace(slow, place="workers:node0")) == pytest.approx(BATCH, rel=0.01)


def test_messages_on_one_machine_do_not_touch_its_network_card() -> None:
    slow = replace(CALM, link=Link(bandwidth=1e4, latency=Seconds(0)))
    near = replace(slow, machines=(Machine(cores=8),), local=Link(bandwidth=1e12, latency=Seconds(0)))
    assert step("allreduce", slow) > 10 * BATCH
    assert step("allreduce", near) == pytest.approx(BATCH, rel=0.01)
    # A ring of two sends two messages after the other, each with its latency.
    far = replace(near, local=Link(bandwidth=1e12, latency=Seconds(0.005)))
    assert step("allreduce", far) == pytest.approx(BATCH + 2 * 0.005, rel=0.01)


@pytest.mark.parametrize(
    ("handling", "more"),
    [
        (Handling(send=CpuTime(each=Seconds(0.001))), 0.002),  # a ring of two: two messages
        (Handling(receive=CpuTime(each=Seconds(0.001))), 0.002),
        (Handling(receive=CpuTime(byte=Seconds(1e-7))), 4810 * 4 * 1e-7),
        (Handling(step=Seconds(0.003)), 0.003),
    ],
)
def test_what_covey_itself_does_takes_time(handling: Handling, more: float) -> None:
    fast = replace(CALM, link=Link(bandwidth=1e12, latency=Seconds(0)))
    assert step("allreduce", replace(fast, handling=handling)) == pytest.approx(BATCH + more, rel=0.02)


def test_sums_cost_by_their_bytes_with_real_numbers_too() -> None:
    fast = replace(CALM, link=Link(bandwidth=1e12, latency=Seconds(0)))
    byte = replace(fast, handling=Handling(sums=CpuTime(byte=Seconds(1e-7))))
    # dpsgd scales its model (one reading), and adds a share (two): three models; the same numbers on meta tensors.
    timed, trained = step("dpsgd over ring", byte), step("dpsgd over ring", byte, timing_only=False)
    assert timed == pytest.approx(BATCH + 3 * 4810 * 4 * 1e-7, rel=0.02)
    assert trained == pytest.approx(timed, rel=0.02)


def test_the_network_works_on_large_messages_while_they_travel() -> None:
    """100 MB at 100 MB/s, with 10 ns of CPU time for a byte: what comes and what goes take 2 s, the wire no more."""
    cluster = replace(CALM, link=Link(bandwidth=1e8, latency=Seconds(0), cpu=CpuTime(byte=Seconds(1e-8))))
    big = covey.Task(
        model=lambda: torch.nn.Linear(5000, 5000, bias=False), data=covey.data.digits(),
        optimizer=lambda pairs: torch.optim.SGD(pairs, lr=0.1), loss=torch.nn.functional.mse_loss,
    )  # fmt: skip
    took = covey.fit(big, "dpsgd over ring", 2, steps=1, engine="simulated", cluster=cluster, timing_only=True).seconds
    assert 2.0 <= took < 2.1


@pytest.mark.parametrize(("sharing", "synchronous", "asynchronous"), [("fair", 4, 4), ("tcp", 4, 2)])
def test_workers_of_a_server_drift_apart_under_tcp(sharing: Sharing, synchronous: int, asynchronous: int) -> None:
    """Steps in transfers. A barrier lets all begin together; without, they drift until each has the link for itself."""
    wide = covey.Task(
        model=lambda: torch.nn.Linear(300, 300, bias=False), data=covey.data.digits(),
        optimizer=lambda pairs: torch.optim.SGD(pairs, lr=0.1), loss=torch.nn.functional.mse_loss,
    )  # fmt: skip
    transfer = 4 * 300 * 300 / 1e6
    world = Cluster(
        compute=Seconds(transfer / 100), link=Link(bandwidth=1e6, latency=Seconds(0), cpu=CpuTime(each=Seconds(1e-3))),
        jitter=0.01, sharing=sharing,
    )  # fmt: skip

    def last_step(strategy: str) -> float:
        """On average, of the last four of 16."""
        long, short = (
            covey.fit(wide, strategy, 2, steps=n, engine="simulated", cluster=world, timing_only=True).seconds
            for n in (16, 12)
        )
        return (long - short) / 4

    assert last_step("bsp") == pytest.approx(synchronous * transfer, rel=0.1)
    assert last_step("asynchronous") == pytest.approx(asynchronous * transfer, rel=0.1)


def test_messages_of_a_link_stay_in_order() -> None:
    """A goodbye without numbers takes no time, and still comes after the large push before it."""
    near = replace(CALM, machines=(Machine(cores=8),), local=Link(bandwidth=1e6, latency=Seconds(0)))
    assert step("asynchronous", near) > BATCH


def test_the_same_seed_gives_the_same_bytes() -> None:
    world = replace(
        CALM, jitter=0.2, machines=(Machine(cores=0.5, period=Seconds(0.02)),) * 2, local=Link(latency=Seconds(1e-5)),
        handling=Handling(send=CpuTime(each=Seconds(1e-4)), sums=CpuTime(byte=Seconds(1e-9)), report=Seconds(1e-4)),
    )  # fmt: skip
    one, other = (
        covey.fit(TASK, "asynchronous", 3, steps=8, engine="simulated", cluster=world, seed=3).to_json()
        for _ in range(2)
    )
    assert one == other


@pytest.mark.parametrize("timing_only", [False, True])
def test_a_codec_costs_what_the_cluster_says(timing_only: bool) -> None:
    """A worker encodes once a step, and the server decodes two gradients one after the other."""
    price = CodecTime(encode=CpuTime(each=Seconds(0.1)), decode=CpuTime(each=Seconds(0.01)))
    fast = replace(CALM, link=Link(latency=Seconds(0), bandwidth=BytesPerSecond(1e15)))

    def seconds(strategy: str, coding: dict[str, CodecTime]) -> float:
        cluster = replace(fast, coding=coding)
        return covey.fit(
            TASK, strategy, 2, engine="simulated", cluster=cluster, steps=4, timing_only=timing_only
        ).seconds  # fmt: skip

    free = seconds("bsp + topk", {})
    assert seconds("bsp + topk", {"topk": price}) == pytest.approx(free + 4 * 0.12, rel=0.01)
    assert seconds("bsp + topk(density=0.1)", {"topk(density=0.1)": price}) == pytest.approx(free + 4 * 0.12, rel=0.01)
    assert seconds("bsp + clip + topk", {"topk": price}) == pytest.approx(free + 4 * 0.12, rel=0.01)
    assert seconds("bsp + topk", {"int8": price}) == pytest.approx(free, rel=0.01)
    assert seconds("allreduce + fp16", {"fp16": price}) == pytest.approx(4 * (BATCH + 0.11), rel=0.01)


def test_what_a_priced_codec_computes_is_in_its_price() -> None:
    """Its sums cost nothing besides; those of a codec without a price do."""
    summing = replace(CALM, handling=Handling(sums=CpuTime(each=Seconds(0.001))))

    def seconds(coding: dict[str, CodecTime]) -> float:
        cluster = replace(summing, coding=coding)
        return covey.fit(TASK, "bsp + int8", 2, engine="simulated", cluster=cluster, steps=2).seconds

    assert seconds({"int8": CodecTime()}) < seconds({"topk": CodecTime()}) - 0.002


def test_a_priced_codec_within_another_is_in_the_price_of_the_outer_one() -> None:
    outer, inner = (CodecTime(encode=CpuTime(each=Seconds(each))) for each in (0.1, 0.01))
    effort = Effort(replace(CALM, coding={"outer": outer, "inner": inner}))
    with effort.watching():
        with told(("outer",), "encode", 1000), told(("inner",), "encode", 1000):
            pass
        assert effort.take() == 0.1
        with told(("inner",), "encode", 1000):
            pass
        assert effort.take() == 0.01


# -- by hand ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("loan", "seconds"), [(False, 1.0 + 8 * 0.5), (True, 1.0)])
def test_what_is_lent_is_not_copied_and_costs_no_time_for_its_bytes(loan: bool, seconds: float) -> None:
    asked, work = list[float](), CpuTime(each=Seconds(1.0), byte=Seconds(0.5))
    engine: Any = SimpleNamespace(
        _cluster=SimpleNamespace(handling=Handling(send=work)), _performed=None,
        _work=lambda actor, cost, *_, **__: asked.append(cost),
    )  # fmt: skip
    thread: Any = SimpleNamespace(actor=None)
    effect = Send(YOU, Ping(0, Vector([torch.zeros(2)])), loan=loan)
    CpuChargingEngine._asked(engine, thread, effect, SimpleNamespace(debt=0.0))  # type: ignore[arg-type]
    assert asked == [seconds]


def test_a_role_reports_at_intervals_and_not_with_all_that_it_does() -> None:
    done = list[float]()
    threads = SimpleNamespace(reported=0.0, driver=SimpleNamespace(do=lambda seconds, *_: done.append(seconds)))
    agenda = SimpleNamespace(now=1.0)
    engine: Any = SimpleNamespace(
        _agenda=agenda, _desks={None: threads}, _cluster=SimpleNamespace(handling=Handling(report=Seconds(0.5)))
    )
    for agenda.now in (1.0, 1.01, 1.03):
        CpuChargingEngine._work(engine, None, 0.1, None, None, None)  # type: ignore[arg-type]
    assert done == pytest.approx([0.6, 0.1, 0.6])


class Endpoint:
    receiver = YOU


def test_a_short_message_waits_for_a_long_one_that_left_before_it() -> None:
    link, came = Endpoint(), list[Any]()
    long, short = (SimpleNamespace(link=link, priority=0, stages=1) for _ in range(2))
    network = SimpleNamespace(do=lambda work, act, flight: came.append(flight))
    links: Any = SimpleNamespace(
        _order={(link, 0): deque([long, short])}, desks={YOU: SimpleNamespace(network=network)},
        _pieces=lambda flight: (0.0, 0.0), _arrive=None,
    )  # fmt: skip
    ChargedLinks._through(links, short)  # type: ignore[arg-type]
    assert came == []
    ChargedLinks._through(links, long)  # type: ignore[arg-type]
    assert came == [long, short]


@pytest.mark.parametrize(("rate", "apart"), [(1e6, 5000), (4e6, 19_240)])
def test_what_takes_long_on_its_link_is_worked_on_meanwhile(rate: float, apart: int) -> None:
    """A model of 19,240 bytes, 0.1 us of either end for each: 5 ms of a slow link are worked on before and after."""
    link = Link(bandwidth=BytesPerSecond(rate), latency=Seconds(0))
    free = replace(CALM, compute=Seconds(1e-3), link=link, machines=(Machine(cores=9),) * 2)
    dear = replace(free, link=replace(link, cpu=CpuTime(byte=Seconds(1e-7))))
    assert step("dpsgd over ring", dear) - step("dpsgd over ring", free) == pytest.approx(2 * 1e-7 * apart)


def test_the_slower_end_of_a_link_says_what_takes_long_on_it() -> None:
    uneven = replace(CALM, link=Link(bandwidth=BytesPerSecond(1e8)), links={"b": Link(bandwidth=BytesPerSecond(1e6))})
    assert _portion(uneven, "a", "b") == _portion(uneven, "b", "a") == 5000 < _portion(uneven, "a", "c")
