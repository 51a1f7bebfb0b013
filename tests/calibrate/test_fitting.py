"""The least squares of a cluster's corrections, with steps that are formulas of a few numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp, tanh
from typing import Any

import pytest
import torch

from covey.calibrate.fitting import MOST, NOISE, ClusterCorrection, ClusterFit
from covey.simulate import Cluster

KEYS = ("compute", "update", "prepare")
START: dict[str, Any] = dict.fromkeys(KEYS, 0.0)


def by_key(key: str) -> Callable[[Cluster, float], Cluster]:
    """A correction's size is a number of the cluster."""
    return lambda cluster, size: replace(cluster, **{key: size})


def solved(
    corrections: Sequence[ClusterCorrection], step: Callable[..., float], wanted: float = 0.0
) -> tuple[list[float], list[tuple[float, ...]]]:  # fmt: skip
    """The sizes that are found for one strategy, whose step has this logarithm; and all that were looked at."""
    seen = list[tuple[float, ...]]()

    def measure(spec: str, cluster: Cluster) -> float:
        seen.append(tuple(getattr(cluster, key) for key in KEYS[: len(corrections)]))
        return exp(step(*seen[-1]))

    found, _ = ClusterFit(Cluster(**START), corrections, {"one": exp(wanted)}, measure).solved()
    return [getattr(found, key) for key in KEYS[: len(corrections)]], seen


def test_what_is_at_its_least_explains_its_part() -> None:
    """Steps have exp((x + y) / 2), and would be explained by y = -1/2, but it is 1 at least: x makes up for that."""
    both = [ClusterCorrection(by_key("compute")), ClusterCorrection(by_key("update"), least=1.0)]
    sizes, _ = solved(both, lambda x, y: (x + y) / 2, -0.5)
    assert sizes == pytest.approx([0.5 * (-0.5 - 0.5) / (0.5**2 + NOISE**2), 1.0])


def test_what_is_at_its_least_stays_there() -> None:
    """By hand: the second is found below 0, then the third without it; the first alone is 2 * 3 / (2 ** 2 + 1)."""
    slopes = torch.tensor([[2.0, -1.0, 2.0], [0.0, -2.0, -1.0], [0.0, -2.0, -3.0]]).double()
    fit = ClusterFit(Cluster(), [ClusterCorrection(by_key(key), least=0.0) for key in KEYS], {}, lambda *_: 1.0)
    assert fit._bounded(slopes, torch.tensor([3.0, -2.0, 4.0]).double()).tolist() == pytest.approx([1.2, 0.0, 0.0])


def test_no_correction_is_larger_than_the_most() -> None:
    sizes, seen = solved([ClusterCorrection(by_key("compute"))], lambda x: x, 9.0)
    assert sizes == [MOST] and max(x for (x,) in seen) == MOST


def test_a_second_round_begins_where_the_first_has_ended() -> None:
    """A quadratic step; 1.98 is the best of all numbers with three digits."""
    (size,), _ = solved([ClusterCorrection(by_key("compute"))], lambda x: 0.3 * x + 0.1 * x * x, 1.0)
    assert size == pytest.approx(1.98, abs=0.15)


def test_an_answer_that_goes_too_far_is_halved_towards_where_it_began() -> None:
    """The step saturates on both sides of 1, so that its slope at 2 says little."""
    (size,), _ = solved([ClusterCorrection(by_key("compute"), starts=(2.0,))], lambda x: tanh(3 * (x - 1)), 0.9)
    assert size == pytest.approx(1.464, abs=0.01)


def test_it_begins_where_most_is_explained() -> None:
    """Only beyond 1 does anything change; of starts that explain as much, the one that corrects least."""
    starts = (-2.0, 0.0, 1.5)
    (size,), _ = solved([ClusterCorrection(by_key("compute"), starts=starts)], lambda x: max(0.0, x - 1), 1.0)
    assert size == pytest.approx(2.0, abs=0.05)
    (size,), _ = solved([ClusterCorrection(by_key("compute"), starts=starts)], lambda x: 0.0, 1.0)
    assert size == 0.0
