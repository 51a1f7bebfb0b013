"""What requests cost beside the model: measured on a real endpoint, and in virtual time."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import save_file

from covey.errors import PlanError
from covey.inference.path.measured_endpoint import MeasuredWishes
from covey.inference.path.measuring import measured_costs
from covey.inference.path.path_costs import LoadRatio, PathCosts, ProbedLoad, ProbePhase, affine, costs_of
from covey.inference.path.path_probe import PHASES
from covey.inference.path.rehearsal import LOADS, load_ratio
from covey.inference.planning import MachinePrice, forecasts
from covey.inference.request_desk import FrontSettings
from covey.inference.served_model import ModelPlace
from covey.inference.virtual_service import VirtualService
from tests.inference.running import TASK

SETTINGS = FrontSettings(objective=0.05)
COSTS = PathCosts(request=2e-3, batch=4e-3, replica=1e-3)


def seconds(service: VirtualService, *arrivals: float) -> list[float]:
    for at in arrivals:
        service.request(at)
    return [one.seconds for one in service.run()]


def test_requests_that_come_while_the_front_is_busy_are_one_batch() -> None:
    service = VirtualService(SETTINGS, 1, lambda n: 0.5e-3, path=COSTS)
    first, *others = seconds(service, 0.0, 1e-4, 2e-4)
    # The first is read by 1 ms, passed on at 3 and computed at 4.5, while the others are read from 3 to 5. Its answer
    # is read from 5 to 7, then the next batch is passed on, at 9, and it is written at 10.
    assert first == pytest.approx(10e-3)
    # That batch is computed at 10.5, read by 12.5, and written at 13.5 and 14.5.
    assert others == pytest.approx([13.4e-3, 14.3e-3])
    assert [size for _, size in service.batches] == [1, 2]


def test_each_request_of_a_batch_costs_a_replica() -> None:
    """The second batch has two: 1 ms, and 2 ms for each."""
    costs = PathCosts(request=0.0, batch=0.0, replica=1e-3, row=2e-3)
    service = VirtualService(SETTINGS, 1, lambda n: 0.0, path=costs)
    assert seconds(service, 0.0, 1e-3, 2e-3) == pytest.approx([3e-3, 7e-3, 6e-3])
    assert [size for _, size in service.batches] == [1, 2]


def test_a_process_that_waits_takes_a_moment_to_wake_up() -> None:
    """The front, the replica and its thread, that again, the front again, the client; a busy front needs none."""
    costs = PathCosts(request=0.0, batch=0.0, replica=0.0, wakes=(1e-3,))
    assert seconds(VirtualService(SETTINGS, 1, lambda n: 0.0, path=costs), 1.0) == pytest.approx([6e-3])


def test_processes_that_share_cores_slow_each_other_down() -> None:
    """The first batch, of 10 ms, is computed while the front reads 20 requests more, for 10 ms."""
    costs = PathCosts(request=1e-3, batch=0.0, replica=0.0)
    arrivals = [0.0, *[1e-4] * 20]
    both, one = (seconds(VirtualService(SETTINGS, 1, lambda n: 0.01, path=costs, cores=n), *arrivals) for n in (2, 1))
    assert both[0] < 0.012 and one[0] > 0.018


def test_costs_explain_what_was_seen() -> None:
    """A request costs the front 2 ms, a batch 3 ms; a replica takes 1 ms for a batch and 0.5 ms for each request of it,
    beside the model."""

    def phase(requests: int, batches: int) -> ProbePhase:
        front = 2e-3 * requests + 3e-3 * batches
        times = (17.5e-3, 11.5e-3, 10e-3)
        return ProbePhase(
            requests=requests, batches=batches, front=front, replica=5e-3 * batches + 0.5e-3 * requests,
            client=1e-3 * requests,
            seconds=times,
        )  # fmt: skip

    found = costs_of([phase(100, 100), phase(400, 300), phase(400, 160), phase(800, 90)], lambda size: 4e-3)
    for name, value in {"request": 2e-3, "batch": 3e-3, "replica": 1e-3, "row": 0.5e-3, "client": 1e-3}.items():
        assert getattr(found, name) == pytest.approx(value), name
    assert found.wakes == pytest.approx((1e-3, 0.0, 0.0)), "what is left of each, for six wake-ups"


def test_an_endpoint_that_has_sent_no_batch_has_no_costs() -> None:
    phase = ProbePhase(requests=9, batches=0, front=1e-3, replica=0.0, client=0.0, seconds=(1e-3,))
    with pytest.raises(PlanError, match="has sent no batch to a replica: serve it without a cache"):
        costs_of([phase, phase], lambda size: 4e-3)


def test_the_measured_endpoint_computes_every_answer_and_has_room_for_all_clients() -> None:
    front = FrontSettings(objective=0.05, queue=2, cache=100)
    wishes = MeasuredWishes(place=ModelPlace(file="m"), front=front, threads=1, stages=1, body=1)
    most = max(clients for clients, _ in PHASES)
    assert wishes.served.front.cache == 0 and wishes.served.front.queue >= most
    front = FrontSettings(objective=0.05, queue=5000)
    assert MeasuredWishes(place=ModelPlace(file="m"), front=front, threads=1, stages=1, body=1).served.front == front


def test_the_time_of_waking_knows_of_threads_and_stages() -> None:
    """Two threads compute for 4 ms: 8 ms of CPU time, of which whoever asks waits for 4."""
    phases = [
        ProbePhase(requests=n, batches=n, front=1e-3 * n, replica=9e-3 * n, client=0.0, seconds=(15e-3,))
        for n in (100, 200)
    ]  # fmt: skip
    for stages, wakes in ((1, 6), (2, 9), (4, 15)):
        found = costs_of(phases, lambda size: 4e-3, threads=2, stages=stages)
        assert found.row == pytest.approx(1e-3) and found.wakes == pytest.approx((9e-3 / wakes,))
        path = PathCosts(request=0.0, batch=0.0, replica=0.0, wakes=found.wakes)
        service = VirtualService(SETTINGS, 1, [lambda n: 0.0] * stages if stages > 1 else lambda n: 0.0, path=path)
        assert seconds(service, 1.0) == pytest.approx([9e-3]), "as long as was seen"


def test_costs_are_never_negative() -> None:
    assert affine([(1, 1, 5e-3), (1, 2, 12e-3)]) == pytest.approx((0.0, 5.5e-3))
    assert affine([(1, 1, 5e-3), (1, 4, 1e-3)])[1] == pytest.approx(0.0, abs=1e-6)
    assert affine([(1, 1, 5e-3), (1, 1, 7e-3)]) == pytest.approx((0.0, 6e-3)), "batches of one say nothing"


SEEN = (LoadRatio(busy=0.2, ratios=(1.0, 1.5, 2.0)), LoadRatio(busy=0.6, ratios=(2.0, 2.5, 4.0)))


def test_waits_are_stretched_as_at_the_loads_around_theirs() -> None:
    costs = PathCosts(request=0.0, batch=0.0, replica=0.0, slower=SEEN)
    waits = [1.0] * 50 + [2.0] * 49 + [3.0]
    for busy, first, last in ((0.1, 1.0, 6.0), (0.4, 1.5, 9.0), (0.9, 2.0, 12.0)):
        found = costs.stretched(waits, busy)
        assert (found[0], found[-1]) == pytest.approx((first, last))
    assert costs.stretched(waits, 0.2)[69] == pytest.approx(2 * 1.25), "halfway between the median and the 90th"
    assert COSTS.stretched(waits, 0.5) == waits and costs.stretched([math.inf], 0.3) == [math.inf]


def test_a_load_that_took_longer_than_in_virtual_time_says_by_how_much() -> None:
    """A request of 10 ms every 50 ms; the client is the probe, and has its own costs."""
    arrivals = tuple(number / 20 for number in range(200))
    seen = ProbedLoad(arrivals=arrivals, seconds=(20e-3,) * 150 + (30e-3,) * 50, client=1e-3)
    costs = PathCosts(request=2e-3, batch=4e-3, replica=3e-3, client=9e-3)
    found = load_ratio(seen, costs, SETTINGS, [lambda n: 0.0], 2)
    assert found.ratios == pytest.approx((2.0, 3.0, 3.0)) and found.busy == pytest.approx(6 / 50, rel=0.01)


def test_a_plan_counts_on_what_virtual_time_does_not_know() -> None:
    prices = {"small": MachinePrice(1.0)}
    costs = PathCosts(request=0.0, batch=0.0, replica=20e-3)
    path = msgspec.structs.replace(costs, slower=(LoadRatio(busy=0.0, ratios=(1.0, 1.0, 3.0)),))
    found = [forecasts([0.0, 1.0], lambda n: 0.0, prices, SETTINGS, 0.99, most=2, path=one)[0] for one in (costs, path)]
    assert [one.keeps for one in found] == [True, False] and found[1].seconds == pytest.approx(60e-3)


def test_the_front_may_be_what_limits_a_plan() -> None:
    """It takes 15 ms for a request, and 100 come in a second: no number of replicas helps."""
    arrivals = [number / 100 for number in range(200)]
    prices = {"small": MachinePrice(1.0)}
    path = PathCosts(request=15e-3, batch=0.0, replica=0.0)
    (found,) = forecasts(arrivals, lambda n: 1e-3, prices, SETTINGS, 0.99, most=4, path=path)
    assert not found.keeps and found.replicas == 4
    (found,) = forecasts(arrivals, lambda n: 1e-3, prices, SETTINGS, 0.99, most=4)
    assert found.keeps and found.replicas == 1


def test_a_faster_machine_does_faster_what_is_beside_the_model() -> None:
    prices = {"small": MachinePrice(1.0), "fast": MachinePrice(2.0, 10.0)}
    path = PathCosts(request=0.0, batch=0.0, replica=20e-3, row=5e-3)
    small, fast = forecasts([0.0, 1.0], lambda n: 1e-3, prices, SETTINGS, 0.99, path=path)
    assert (small.seconds, fast.seconds) == pytest.approx((26e-3, 2.6e-3))


@pytest.mark.full
def test_a_real_endpoint_is_measured(tmp_path: Path) -> None:
    """Its model sleeps for 2 ms: that is no CPU time, but the time of a request has it."""
    (tmp_path / "picky.py").write_text(TASK)
    save_file({"scale": torch.tensor([2.0])}, tmp_path / "model.safetensors")
    place = ModelPlace(file=str(tmp_path / "model.safetensors"), task=str(tmp_path / "picky.py"))
    wishes = MeasuredWishes(place=place, front=SETTINGS, threads=1, stages=1, body=1 << 10)
    found = measured_costs(wishes, torch.ones(2), [lambda size: 0.0])
    assert 1e-5 < found.request < 0.1 and 0 <= found.batch < 0.1 and 1e-5 < found.replica + found.row < 0.1
    assert sorted(found.wakes)[len(found.wakes) // 2] > 2e-3 / 6 / 2
    loads, ratios = zip(*((one.busy, one.ratios) for one in found.slower), strict=True)
    assert len(loads) == len(LOADS) and sorted(loads) == list(loads) and 0 < loads[0] < loads[-1] <= 1
    assert all(0.3 < one < 50 for row in ratios for one in row), ratios
    with pytest.raises(PlanError, match="for the reason above"):
        measured_costs(MeasuredWishes(place=ModelPlace(file="none", task=place.task), front=SETTINGS, threads=1,
                                      stages=1, body=1), torch.ones(2), [lambda size: 0.0])  # fmt: skip
