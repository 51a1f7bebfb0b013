"""Front and replicas in virtual time."""

from __future__ import annotations

from random import Random

import pytest
import torch
from torch import Tensor

from covey.errors import PlanError
from covey.inference.answer_cache import AnswerCache
from covey.inference.batch_size import AdaptiveBatchSize
from covey.inference.messages import AnsweredBatch, InferenceRequest, ReplicaLost, ReplicaReady
from covey.inference.request_desk import FrontSettings, RequestDesk
from covey.inference.virtual_service import ROW, VirtualAnswer, VirtualService
from covey.message import Address
from covey.vector import Vector


def settings(objective: float = 0.05, **more: float) -> FrontSettings:
    return FrontSettings(objective=objective, **more)  # type: ignore[arg-type]


def statuses(answers: list[VirtualAnswer]) -> list[int]:
    return [one.answer.status for one in answers]


def flood(service: VirtualService, rate: float, seconds: float) -> list[VirtualAnswer]:
    for number in range(int(rate * seconds)):
        service.request(number / rate)
    return service.run()


@pytest.mark.parametrize(("fixed", "each"), [(2e-3, 5e-4), (1e-2, 2e-4), (1e-4, 2e-3), (0.0, 1.2e-2)])
def test_batches_find_the_size_that_just_keeps_the_objective(fixed: float, each: float) -> None:
    """A batch of n takes fixed + each * n seconds, and has half of the objective."""
    best = int((0.025 - fixed) / each + 1e-9)
    service = VirtualService(settings(largest=1000, queue=5000), 1, lambda n: fixed + each * n)
    flood(service, 1.3 * best / 0.025, 4)
    late = [size for at, size in service.batches if 2 < at < 4]
    assert len(late) > 40
    assert abs(sum(late) / len(late) - best) <= max(0.2 * best, 0.5), best
    assert max(late) <= best + 1


def test_a_batch_that_was_not_full_does_not_raise_the_size() -> None:
    size = AdaptiveBatchSize(1.0, 10)
    for _ in range(3):
        size.learn(size.now, 0.1)
    assert size.now == 4
    size.learn(3, 0.1)
    assert size.now == 4
    size.learn(1, 2.0)
    assert size.now == 3
    for _ in range(50):
        size.learn(size.now, 0.1)
    assert size.now == 10


def test_requests_within_the_load_keep_the_objective() -> None:
    rng, service = Random(3), VirtualService(settings(), 2, lambda n: 2e-3 + 5e-4 * n)
    at = 0.0
    for _ in range(4000):
        at += rng.expovariate(1000)
        service.request(at)
    answers = service.run()
    times = sorted(one.seconds for one in answers)
    assert set(statuses(answers)) == {200} and times[int(0.99 * len(times))] < 0.05


def test_a_full_queue_is_said_at_once() -> None:
    service = VirtualService(settings(queue=3), 1, lambda n: 1.0)
    for _ in range(6):
        service.request(0.5)
    answers = service.run()
    assert statuses(answers) == [200, 200, 200, 200, 429, 429], "one is computed, three wait"
    assert [one.seconds for one in answers[4:]] == [0, 0] and "3 requests wait" in answers[5].answer.reason


def test_late_requests_are_told_so_at_their_deadline_and_not_computed() -> None:
    service = VirtualService(settings(deadline=2.5), 1, lambda n: 2.0)
    for number in range(3):
        service.request(0.1 * number)
    answers = service.run()
    assert statuses(answers) == [200, 504, 504]
    assert [round(one.seconds, 6) for one in answers] == [2.0, 2.5, 2.5]
    assert [size for _, size in service.batches] == [1, 1], "the third was not in any batch"


def poisonous(rows: Tensor) -> Tensor:
    if (rows < 0).any():
        raise ValueError("a negative number")
    return rows * 2


def test_an_input_that_cannot_be_computed_fails_alone() -> None:
    service = VirtualService(settings(objective=10), 1, lambda n: 0.1, poisonous)
    for value in (1.0, 2.0, 3.0, -1.0, 5.0, 6.0):
        service.request(1.0, torch.tensor([value]))
    answers = service.run()
    assert max(size for _, size in service.batches) > 1
    assert statuses(answers) == [200, 200, 200, 500, 200, 200]
    assert [one.answer.row.parts[0].item() for one in answers if one.answer.status == 200] == [2, 4, 6, 10, 12]
    assert answers[3].answer.reason == "ValueError: a negative number"


def test_equal_inputs_are_computed_once_while_the_cache_has_room() -> None:
    service = VirtualService(settings(cache=2), 1, lambda n: 0.01)
    for at, key in enumerate("aababcab"):
        service.request(float(at), torch.tensor([float(ord(key))]), key)
    answers = service.run()
    computed = [at for at, one in enumerate(answers) if one.seconds > 0]
    assert computed == [0, 2, 5, 6, 7], "c drops a, which was asked for longest ago; then a drops b"
    assert [one.answer.row.parts[0].item() for one in answers] == [ord(key) for key in "aababcab"]


def test_a_lost_replica_costs_no_answer() -> None:
    service = VirtualService(settings(), 2, lambda n: 2e-3 + 5e-4 * n)
    for number in range(2000):
        service.request(number / 1000, torch.tensor([float(number)]))
    service.lose(0.7003, 0)
    service.join(1.2, 0)
    answers = service.run()
    assert set(statuses(answers)) == {200}
    assert [one.answer.row.parts[0].item() for one in answers] == list(range(2000))


def test_the_last_replica_may_come_again() -> None:
    service = VirtualService(settings(), 1, lambda n: 0.3)
    service.request(0.1)
    service.lose(0.2, 0)
    service.join(1.0, 0)
    (answer,) = service.run()
    assert answer.answer.status == 200 and answer.answered == pytest.approx(1.3)


def test_a_replica_that_does_not_answer_is_ended_and_may_come_again() -> None:
    took = iter([1e9, 0.01])
    service = VirtualService(settings(deadline=1.0), 1, lambda n: next(took))
    service.request(0.5)
    service.join(2.0, 0)
    service.request(3.0)
    answers = service.run()
    assert statuses(answers) == [504, 200] and [one.answered for one in answers] == pytest.approx([1.5, 3.01])


def test_an_input_that_ends_replicas_is_given_up_and_its_neighbours_are_not() -> None:
    """Request 2 ends whatever computes it: the first time with its neighbours, the second time alone."""
    desk, replicas = RequestDesk(settings(objective=10)), [Address("replica", rank) for rank in range(2)]
    for who in replicas:
        desk.take(ReplicaReady(sender=who), 0.0)
        desk.sizes[who].learn(1, 0.1)
        desk.sizes[who].learn(2, 0.1)
    for ticket in range(4):
        desk.take(InferenceRequest(ticket, Vector([torch.tensor([float(ticket)])])), 0.0)
    found: dict[int, int] = {}
    for _ in range(10):
        for who, batch in list(desk.batches(0.0)):
            poisoned = 2.0 in batch.rows.parts[0]
            message = ReplicaLost(sender=who) if poisoned else AnsweredBatch(batch.number, batch.rows, sender=who)
            found |= {one.ticket: one.status for one in desk.take(message, 0.1)}
            desk.take(ReplicaReady(sender=who), 0.2)
    assert found == {0: 200, 1: 200, 2: 500, 3: 200}
    assert not desk.open and not desk.waiting


def desk_of(requests: int, size: int, **more: float) -> tuple[RequestDesk, Address]:
    """A desk with one replica that takes batches of this size, and requests that wait."""
    desk, who = RequestDesk(settings(objective=10, deadline=20, **more)), Address("replica", 0)
    desk.take(ReplicaReady(sender=who), 0.0)
    while desk.sizes[who].now < size:
        desk.sizes[who].learn(desk.sizes[who].now, 0.1)
    for ticket in range(requests):
        desk.take(InferenceRequest(ticket, Vector([torch.tensor([float(ticket)])])), 0.0)
    return desk, who


def test_replicas_of_a_version_that_is_withdrawn_end_when_it_has_answered_all() -> None:
    desk, who = desk_of(1, 1)
    desk.closed = True
    assert desk.retired() == [], "a request waits"
    ((_, batch),) = desk.batches(0.0)
    assert desk.retired() == [], "and is computed"
    desk.take(AnsweredBatch(batch.number, batch.rows, sender=who), 0.1)
    assert desk.retired() == [who] and desk.retired() == []


def test_requests_of_a_lost_replica_come_first_and_each_alone() -> None:
    desk, who = desk_of(5, 2)
    ((_, batch),) = desk.batches(0.0)
    assert batch.rows.parts[0].flatten().tolist() == [0, 1]
    computed = []
    for _ in range(4):
        desk.take(ReplicaLost(sender=who) if not computed else AnsweredBatch(batch.number, batch.rows, sender=who), 0.1)
        desk.take(ReplicaReady(sender=who), 0.1)
        ((_, batch),) = desk.batches(0.1)
        computed.append(batch.rows.parts[0].flatten().tolist())
        if len(computed) == 3:
            break
    assert computed == [[0], [1], [2, 3]]


def test_nothing_follows_a_request_with_which_a_replica_may_be_lost() -> None:
    """A second batch in its stages would be lost with it."""
    desk, who = desk_of(1, 1, in_flight=2)
    assert len(list(desk.batches(0.0))) == 1
    desk.take(ReplicaLost(sender=who), 0.1)
    desk.take(ReplicaReady(sender=who), 0.1)
    ((_, again),) = desk.batches(0.1)
    desk.take(InferenceRequest(1, Vector([ROW])), 0.2)
    assert not list(desk.batches(0.2))
    desk.take(AnsweredBatch(again.number, again.rows, sender=who), 0.3)
    assert len(list(desk.batches(0.3))) == 1


def test_the_front_wakes_up_for_the_oldest_batch_of_a_replica() -> None:
    """The first request waits for a replica until 3 s, and the second one comes at 10 s."""
    desk, who = RequestDesk(settings(objective=10, deadline=20, in_flight=2)), Address("replica", 0)
    desk.take(InferenceRequest(0, Vector([ROW])), 0.0)
    desk.take(ReplicaReady(sender=who), 3.0)
    assert len(list(desk.batches(3.0))) == 1
    desk.take(InferenceRequest(1, Vector([ROW])), 10.0)
    assert len(list(desk.batches(10.0))) == 1
    assert [one.status for one in desk.expired(20.0)] == [504]
    assert desk.patience(20.0) == pytest.approx(3.0) and not desk.stuck(22.9) and desk.stuck(23.0) == [who]


def test_requests_whose_deadline_is_over_are_not_computed() -> None:
    desk, _ = desk_of(3, 2)
    assert [one.status for one in desk.expired(30.0)] == [504] * 3
    assert not desk.open and not desk.waiting and not list(desk.batches(30.0))


def test_whoever_waits_beside_a_request_whose_deadline_is_over_gets_its_own_answer() -> None:
    desk, who = desk_of(1, 2)
    desk.take(InferenceRequest(1, Vector([torch.tensor([1.0])])), 5.0)
    ((_, batch),) = desk.batches(5.0)
    assert [(one.ticket, one.status) for one in desk.expired(20.0)] == [(0, 504)]
    (answer,) = desk.take(AnsweredBatch(batch.number, Vector([torch.tensor([[10.0], [11.0]])]), sender=who), 21.0)
    assert (answer.ticket, answer.status, answer.row.parts[0].tolist()) == (1, 200, [11.0])


def test_an_answer_that_was_asked_for_again_stays_longer() -> None:
    cache = AnswerCache(2)
    for key in "ab":
        cache.keep(key, ROW)
    assert cache.find("a") is not None
    cache.keep("c", ROW)
    assert cache.find("a") is not None and cache.find("b") is None and len(cache) == 2


def test_answers_of_a_batch_that_is_not_underway_are_not_taken() -> None:
    desk, who = RequestDesk(settings()), Address("replica", 0)
    assert desk.take(AnsweredBatch(1, Vector([ROW[None]]), sender=who), 0.0) == []
    desk.take(ReplicaReady(sender=who), 0.0)
    desk.take(InferenceRequest(0, Vector([ROW])), 0.0)
    ((_, batch),) = desk.batches(0.0)
    assert desk.take(AnsweredBatch(batch.number + 1, batch.rows, sender=who), 0.0) == []
    assert [one.status for one in desk.take(AnsweredBatch(batch.number, batch.rows, sender=who), 0.0)] == [200]


def test_settings_that_cannot_be_kept_are_refused() -> None:
    for bad in ({"objective": 0.0}, {"objective": 20.0}, {"queue": 0}, {"largest": 0}, {"cache": -1}):
        with pytest.raises(PlanError):
            settings(**bad)
