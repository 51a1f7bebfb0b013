"""Aggregation and the service's steps, by hand: weights, medians, outliers, and the papers' formulas."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from covey.errors import PlanError
from covey.federated.aggregation import (
    AggregationChoice,
    AggregationName,
    WeightedMean,
    krum,
    median,
    trimmed_mean,
)
from covey.federated.aggregator import MeanLoss
from covey.federated.buffering import ReportBuffer
from covey.federated.coordinator import HeldModel
from covey.federated.messages import ClientReport
from covey.federated.rounds import RoundTerms
from covey.federated.server_steps import ServerStep, adaptive, momentum, plain
from covey.message import Address
from covey.model.replica import Replica
from covey.program import Memory
from covey.vector import Vector
from tests.worlds import Point, sgd


def vector(*numbers: float) -> Vector:
    """Of two parts, as a model with two types has."""
    return Vector([torch.tensor(numbers[:1], dtype=torch.float64), torch.tensor(numbers[1:], dtype=torch.float64)])


def numbers(found: Vector) -> list[float]:
    return torch.cat(found.parts).tolist()


def test_a_client_with_ten_times_the_samples_pulls_ten_times_as_much() -> None:
    mean = WeightedMean()
    mean.add(vector(1.0, 0.0), 10)
    mean.add(vector(0.0, 1.0), 1)
    assert numbers(mean.result()) == pytest.approx([10 / 11, 1 / 11])


def test_an_update_stays_as_it_was_when_it_is_added() -> None:
    mean, update = WeightedMean(), vector(1.0, 2.0)
    mean.add(update, 5)
    mean.add(vector(3.0, 4.0), 5)
    mean.result()
    assert numbers(update) == [1.0, 2.0]


def test_the_median_of_each_number_ignores_one_that_is_far_off() -> None:
    updates = [vector(1.0, 5.0), vector(2.0, 4.0), vector(1e9, -1e9)]
    assert numbers(median(updates)) == [2.0, 4.0]
    assert numbers(median([*updates, vector(3.0, 3.0)])) == [2.5, 3.5], "of four, the mean of the two in the middle"
    assert numbers(median(updates[:1])) == [1.0, 5.0]


def test_the_trimmed_mean_leaves_out_as_many_at_either_end() -> None:
    updates = [vector(float(n), float(-n)) for n in (1, 2, 3, 4, 1000)]
    assert numbers(trimmed_mean(updates, 0.2)) == [3.0, -3.0]
    assert numbers(trimmed_mean(updates, 0.0)) == [202.0, -202.0]
    assert numbers(trimmed_mean(updates[1:], 0.2)) == [3.5, -3.5], "of four, a fifth is less than one: one is left out"
    assert numbers(trimmed_mean(updates[2:], 0.49)) == [4.0, -4.0]
    assert numbers(trimmed_mean(updates[:1], 0.4)) == [1.0, -1.0], "one is never left out of one"


def test_krum_takes_the_update_nearest_to_its_neighbours() -> None:
    honest = [vector(1.0, 1.0), vector(1.1, 1.0), vector(1.0, 1.2), vector(0.9, 0.9)]
    assert numbers(krum([*honest, vector(-50.0, 80.0)], faulty=1)) == [1.0, 1.0]
    # by hand: with n - f - 2 = 2 neighbours the sums of squares are .03, .06, .09 (of 2nd, 3rd), .07 and a huge one
    chosen = numbers(krum([*honest, vector(-50.0, 80.0)], faulty=1, chosen=3))
    assert all(0.9 <= number <= 1.2 for number in chosen)


def test_krum_is_not_fooled_by_two_that_collude_where_it_expects_two() -> None:
    honest = [vector(1.0 + n / 10, 1.0) for n in range(5)]
    liars = [vector(-9.0, 9.0), vector(-9.0, 9.0)]
    assert numbers(krum([*honest, *liars], faulty=2))[0] > 0
    assert numbers(krum([honest[0], *liars], faulty=0)) == [-9.0, 9.0], "with no liar expected, two agree best"


def test_a_buffer_counts_stale_reports_less_and_divides_by_their_number() -> None:
    buffer = ReportBuffer()
    for client, staleness, number in ((4, 0, 1.0), (2, 3, 3.0)):
        report = ClientReport(0, 10, 0.5, vector(number, 0.0), Vector(()), sender=Address("client", client))
        buffer.add(report, staleness)
    assert numbers(buffer.update()) == [(1.0 + 3.0 / 2) / 2, 0.0], "1 / sqrt(1 + 3) is a half"
    assert buffer.clients == [4, 2] and buffer.samples == 20


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        (AggregationChoice(name="trimmed_mean", trim=0.5), "less than half"),
        (AggregationChoice(name="krum", faulty=3), "needs at least 9 reports"),
        (AggregationChoice(name="krum", faulty=1, chosen=9), "may have only 8 reports"),
        (AggregationChoice(name="krum", faulty=-1), "faulty=-1"),
    ],
)
def test_an_aggregation_that_the_smallest_round_cannot_have_is_refused(choice: AggregationChoice, told: str) -> None:
    with pytest.raises(PlanError, match=told):
        choice.check(RoundTerms.of(clients=100, target=10))


@pytest.mark.parametrize("name", ["mean", "median", "trimmed_mean", "krum"])
def test_every_aggregation_of_equal_updates_is_that_update(name: AggregationName) -> None:
    found = AggregationChoice(name=name).make()
    for samples in (1, 5, 3, 7):
        found.add(vector(0.25, -3.0), samples)
    assert numbers(found.result()) == [0.25, -3.0]


def moved(step: ServerStep, *changes: Vector) -> list[float]:
    model = vector(0.0, 0.0)
    state = step.init(model)
    for change in changes:
        state = step.move(model, change, state)
    return numbers(model)


def test_the_plain_step_adds_the_change() -> None:
    assert moved(plain(), vector(1.0, -2.0)) == [1.0, -2.0]
    assert moved(plain(0.5), vector(1.0, -2.0)) == [0.5, -1.0]


def test_momentum_follows_hsu() -> None:
    assert moved(momentum(1.0, 0.5), vector(1.0, 0.0), vector(1.0, 0.0)) == [2.5, 0.0], "1, then 0.5 + 1"


@pytest.mark.parametrize(
    ("kind", "v"),
    [("adam", 0.99 * 1e-6 + 0.01 * 4), ("yogi", 1e-6 + 0.01 * 4), ("adagrad", 1e-6 + 4)],
)
def test_adaptive_steps_follow_reddi(kind: str, v: float) -> None:
    expected = 0.1 * (0.1 * 2) / (math.sqrt(v) + 1e-3)  # m = (1 - beta) change
    assert moved(adaptive(kind, rate=0.1), vector(2.0, 0.0))[0] == pytest.approx(expected, rel=1e-12)  # type: ignore[arg-type]


def test_yogi_shrinks_v_slower_than_adam() -> None:
    """After one large change and a small one: Yogi subtracts (1 - beta2) of the small square, Adam of v itself."""
    changes = vector(2.0, 0.0), vector(0.1, 0.0)
    big = 0.01 * 4 + 1e-6
    yogi, adam = big - 0.01 * 0.01, 0.99 * (0.99 * 1e-6 + 0.04) + 0.01 * 0.01
    m = 0.9 * 0.2 + 0.1 * 0.1
    first = 0.1 * 0.2 / (math.sqrt(big) + 1e-3)
    assert moved(adaptive("yogi", rate=0.1), *changes)[0] == pytest.approx(first + 0.1 * m / (math.sqrt(yogi) + 1e-3))
    assert yogi > adam


def test_the_loss_of_a_round_is_a_mean_over_samples_of_those_that_are_numbers() -> None:
    loss = MeanLoss()
    assert math.isnan(loss.result())
    for samples, value in ((1, 4.0), (3, 0.0), (100, math.nan)):
        loss.add(ClientReport(0, samples, value, vector(1, 2), vector(0, 0), sender=Address("client", samples)))
    assert loss.result() == 1.0


@pytest.mark.parametrize("step", [None, momentum(1.0, 0.9)])
def test_an_update_that_is_no_number_leaves_the_model_as_it_was(step: ServerStep | None) -> None:
    node: Any = SimpleNamespace(remember=lambda name, value: Memory(value))
    replica = Replica(Point(3, torch.float64), sgd(1.0))
    held = HeldModel(node, replica, step)
    change = Vector([torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)])
    assert held.commit(0, change, Vector(())) == ""
    before, state = replica.flat.clone(), [one.clone() for one in held.state.value]
    assert not torch.equal(before.parts[0], torch.ones(3).double())
    wrong = Vector([torch.tensor([1.0, math.inf, 3.0], dtype=torch.float64)])
    assert held.commit(1, wrong, Vector(())) != ""
    assert torch.equal(replica.flat.parts[0], before.parts[0])
    assert all(torch.equal(a.parts[0], b.parts[0]) for a, b in zip(held.state.value, state, strict=True))
