"""DP-FedAvg: clipping, the fixed denominator, and noise that does not depend on who came."""

from __future__ import annotations

import math

import pytest
import torch

from covey.errors import PlanError
from covey.privacy.clipped_noise import ClippedNoise, gaussian, uniform
from covey.privacy.randomness import SYSTEM, SeededRandomness
from covey.vector import Vector

USUAL = ClippedNoise(noise=1.2, clip=0.5, rate=0.1, total=200)


def summed(parts: list[Vector]) -> Vector:
    total = parts[0].map(torch.zeros_like)
    for part in parts:
        total.add_(part)
    return total


def test_without_noise_and_clip_it_is_the_weighted_mean_of_fedavg() -> None:
    plain = ClippedNoise(noise=0.0, clip=math.inf, rate=1.0, total=1.75)
    plain.check()
    updates = [Vector([torch.randn(7, dtype=torch.float64)]) for _ in range(2)]
    mean = plain.mean(summed([plain.clipped(updates[0], 1.0), plain.clipped(updates[1], 0.75)]))
    assert torch.allclose(mean.parts[0], (updates[0].parts[0] + 0.75 * updates[1].parts[0]) / 1.75, atol=1e-15)


def test_no_contribution_is_longer_than_the_clip_norm_and_short_ones_are_left_alone() -> None:
    for length in (0.1, 0.5, 0.6, 1e3, 1e18):
        update = Vector([torch.ones(9) * length / 4, torch.ones(7) * length / 4])
        given = USUAL.clipped(update)
        assert given.norm() <= 0.5
        assert given.norm() == pytest.approx(min(length, 0.5), rel=1e-5)
        assert USUAL.clipped(update, 0.5).norm() == pytest.approx(min(length, 0.5) / 2, rel=1e-5)
    assert USUAL.clipped(Vector([torch.zeros(3)])).norm() == 0
    for wrong in (-0.1, 1.1, math.nan):
        with pytest.raises(PlanError, match="a client's weight"):
            USUAL.clipped(update, wrong)
    with pytest.raises(PlanError, match="NaN"):
        USUAL.clipped(Vector([torch.tensor([math.nan])]))


@pytest.mark.parametrize("came", [0, 10, 20])
def test_the_noise_is_the_same_when_half_of_the_clients_drop_out(came: int) -> None:
    """Its deviation is z S / (q A); what came changes the signal only."""
    count = 200_000
    update = Vector([torch.full((count,), 0.5 / math.sqrt(count), dtype=torch.float64)])
    total = summed([USUAL.clipped(update)] * came) if came else update.map(torch.zeros_like)
    mean = USUAL.mean(total, SeededRandomness(came)).parts[0]
    assert USUAL.deviation == pytest.approx(1.2 * 0.5 / (0.1 * 200))
    assert float(mean.std()) == pytest.approx(USUAL.deviation, rel=0.01)
    signal = came * 0.5 / math.sqrt(count) / (0.1 * 200)
    assert float(mean.mean()) == pytest.approx(signal, abs=4 * USUAL.deviation / math.sqrt(count))


def test_noise_is_normal_independent_and_new_each_time() -> None:
    drawn = gaussian(400_001, SYSTEM)
    assert len(drawn) == 400_001
    moments = [float((drawn**power).mean()) for power in (1, 2, 3, 4)]
    assert moments == pytest.approx([0, 1, 0, 3], abs=0.05)
    half = len(drawn) // 2
    assert abs(float((drawn[:half] * drawn[half : 2 * half]).mean())) < 0.01
    assert float((drawn > 1.959964).double().mean()) == pytest.approx(0.025, abs=0.0015)
    assert not gaussian(5).equal(gaussian(5))
    assert gaussian(5, SeededRandomness(1)).equal(gaussian(5, SeededRandomness(1)))


def test_uniform_numbers_are_never_0_or_1() -> None:
    class Extreme:
        source, seeded = "test", True

        def take(self, count: int) -> bytes:
            return b"\x00" * (count // 2) + b"\xff" * (count - count // 2)

    low, high = uniform(2, Extreme()).tolist()
    assert 0 < low < 1e-15 and 1 - 1e-15 < high < 1
    assert gaussian(2, Extreme()).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_mean_has_the_form_of_the_sum(dtype: torch.dtype) -> None:
    mean = USUAL.mean(Vector([torch.zeros(3, 2, dtype=dtype), torch.zeros(0, dtype=dtype)]))
    assert [(part.shape, part.dtype) for part in mean.parts] == [((3, 2), dtype), ((0,), dtype)]


@pytest.mark.parametrize(
    "wrong",
    [{"noise": -1.0}, {"noise": math.nan}, {"clip": 0.0}, {"clip": math.nan}, {"clip": math.inf}, {"rate": 0.0},
     {"rate": 1.5}, {"total": 0.0}, {"total": math.inf}],
)  # fmt: skip
def test_settings_that_cannot_be(wrong: dict[str, float]) -> None:
    with pytest.raises(PlanError):
        ClippedNoise(**({"noise": 1.0, "clip": 1.0, "rate": 0.1, "total": 10.0} | wrong)).check()
