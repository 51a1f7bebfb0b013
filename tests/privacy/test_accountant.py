"""Epsilon against published values, and what must hold of it."""

from __future__ import annotations

import math

import pytest
import torch

from covey.errors import CheckpointError, PlanError
from covey.privacy.accountant import NoisyRounds, epsilon, epsilon_of, noise_for
from covey.privacy.budget import PrivacyBudget

# Opacus, opacus/tests/prv_accountant.py: "computed from github.com/microsoft/prv_accountant", at delta 1e-6. They are
# upper bounds with the error of 0.01 that Opacus allows by default, which is 1 % of those near 1: it is taken off here.
MICROSOFT = {
    (0.8, 0.05, 100): 6.74105193941409996938318727189,
    (1.5, 0.05, 100): 1.95385313568420015961635272106,
    (2.0, 0.05, 100): 1.28363737962406521120328761754,
    (3.0, 0.05, 100): 0.767933789666825572517439013609,
    (0.8, 0.2, 100): 24.3336641779225644199868838768,
    (1.5, 0.2, 100): 8.49897785912163072907787864096,
    (2.0, 0.2, 100): 5.67205560882372950004537415225,
    (3.0, 0.2, 100): 3.38122051022184422208738396876,
    (0.8, 0.05, 1000): 19.5258428053837356230815203162,
    (1.5, 0.05, 1000): 6.20996924657726712126759593957,
    (2.0, 0.05, 1000): 4.17279986668931890392286732094,
    (3.0, 0.05, 1000): 2.52757432605973830774814814504,
    (0.8, 0.001, 20000): 1.29600925757016161021795142005,
    (0.8, 0.05, 20000): 140.655209760074228597659384832,
    (1.5, 0.05, 20000): 38.3066179140872336006395926233,
    (2.0, 0.05, 20000): 24.4217185703225858617315680021,
    (3.0, 0.05, 20000): 13.9611146992367061159256991232,
}
MICROSOFT_LONG = {
    (1.5, 0.001, 20000): 0.437005108654860807693154356457,
    (0.8, 0.001, 50000): 2.03451480771586634688219419331,
    (0.8, 0.05, 50000): 291.384325452396524269715882838,
    (1.5, 0.05, 50000): 73.1901767238329625797632616013,
    (2.0, 0.05, 50000): 45.2369958613306906158868514467,
    (3.0, 0.05, 50000): 24.9420056431444763234139827546,
    (0.8, 0.001, 100000): 2.92462211935041027643933375657,
    (1.5, 0.001, 100000): 1.01528807502760787251361307426,
}

# TensorFlow Privacy, privacy/analysis/compute_dp_sgd_privacy_test.py, accountant PLD: the noise, rate, rounds and delta
# that its arguments amount to (microbatching halves the noise; an epoch without sampling is one round).
TENSORFLOW = {
    (0.7, 1.0, 2, 1e-5): 10.1224946,
    (0.35, 1.0, 2, 1e-5): 24.7160779,
    (0.7, 0.01, 120, 1e-5): 2.4612381,
    (0.35, 0.01, 120, 1e-5): 18.6977407,
    (1.0, 1.0, 5, 1e-6): 12.595,
    (1.0, 0.0064, 782, 1e-6): 1.199,
}


@pytest.mark.parametrize("case", MICROSOFT)
def test_values_of_the_prv_accountant(case: tuple[float, float, int]) -> None:
    assert epsilon(*case, 1e-6) == pytest.approx(MICROSOFT[case] - 0.01, rel=0.01)


@pytest.mark.full
@pytest.mark.parametrize("case", MICROSOFT_LONG)
def test_values_of_the_prv_accountant_for_long_runs(case: tuple[float, float, int]) -> None:
    assert epsilon(*case, 1e-6) == pytest.approx(MICROSOFT_LONG[case] - 0.01, rel=0.01)


@pytest.mark.parametrize("case", TENSORFLOW)
def test_values_of_tensorflow_privacy(case: tuple[float, float, int, float]) -> None:
    assert epsilon(*case) == pytest.approx(TENSORFLOW[case], rel=0.01)


def exact_delta(epsilon: float, noise: float, rounds: int) -> float:
    """Without sampling (Balle and Wang 2018, theorem 8)."""
    mu = math.sqrt(rounds) / noise
    places = torch.tensor([mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu], dtype=torch.float64)
    above, below = torch.special.log_ndtr(places).tolist()
    return math.exp(above) - math.exp(epsilon + below)


@pytest.mark.parametrize(
    "case", [(1.0, 1, 1e-5), (4.0, 30, 1e-9), (20.0, 7, 1e-3), (0.5, 4, 1e-6), (0.1, 100, 1e-5), (0.01, 1, 1e-8)]
)
def test_without_sampling_it_is_the_exact_value_and_never_below_it(case: tuple[float, int, float]) -> None:
    noise, rounds, delta = case
    found = epsilon(noise, 1.0, rounds, delta)
    assert exact_delta(found / 1.001, noise, rounds) <= delta, "it is a bound, with the error of the grid in it"
    assert exact_delta(found / 1.01, noise, rounds) > delta, "within one per cent"


def test_one_sampled_round_is_a_bound_in_both_directions() -> None:
    """Delta by the definition: the integral of what one density has above exp(epsilon) times the other."""
    noise, rate, delta = 0.9, 0.3, 1e-4
    found = epsilon(noise, rate, 1, delta)
    place = torch.linspace(-12, 13, 2_000_001, dtype=torch.float64)
    without, alone = (torch.exp(-(((place - at) / noise) ** 2) / 2) for at in (0, 1))
    mixed = (1 - rate) * without + rate * alone
    scale = 25 / 2_000_000 / (noise * math.sqrt(2 * math.pi))

    def worst(at: float) -> float:
        pairs = ((mixed, without), (without, mixed))
        return max(float((one - math.exp(at) * other).clamp(min=0).sum()) * scale for one, other in pairs)

    assert worst(found) <= delta < worst(found / 1.01)


def test_a_large_loss_of_a_sampled_round_counts() -> None:
    """Then a client who took part shows, and what is left of sampling is the chance that it did."""
    sampled, always = epsilon(0.02, 0.5, 1, 1e-5), epsilon(0.02, 1.0, 1, 2e-5)
    assert sampled == pytest.approx(always - math.log(2), rel=0.002) and always > 1400


def test_it_grows_with_rounds_and_rate_and_falls_with_noise_and_delta() -> None:
    usual = epsilon(1.0, 0.02, 200, 1e-5)
    assert epsilon(1.0, 0.02, 300, 1e-5) > usual > epsilon(1.0, 0.01, 200, 1e-5)
    assert epsilon(1.5, 0.02, 200, 1e-5) < usual < epsilon(1.0, 0.02, 200, 1e-7)
    assert epsilon(1.0, 0.02, 0, 1e-5) == 0.0


def test_rounds_of_different_kinds_add_up() -> None:
    both = [NoisyRounds(1.0, 0.05, 40), NoisyRounds(2.0, 0.1, 60)]
    together = epsilon_of(both, 1e-6)
    alone = [epsilon_of([one], 1e-6) for one in both]
    assert max(alone) < together < sum(alone)
    halves = [NoisyRounds(1.0, 0.05, 15), NoisyRounds(1.0, 0.05, 25)]
    assert epsilon_of(halves, 1e-6) == pytest.approx(alone[0], rel=0.005)


@pytest.mark.parametrize(("target", "rate", "rounds"), [(8.0, 0.05, 300), (1.0, 0.01, 100), (2.0, 1.0, 10)])
def test_the_noise_for_an_epsilon_is_the_least(target: float, rate: float, rounds: int) -> None:
    noise = noise_for(target, rate, rounds, 1e-5)
    assert epsilon(noise, rate, rounds, 1e-5) <= target < epsilon(noise * 0.995, rate, rounds, 1e-5)


@pytest.mark.parametrize("wrong", [(0.0, 0.1, 1, 1e-5), (1.0, 0.0, 1, 1e-5), (1.0, 1.1, 1, 1e-5), (1.0, 0.1, -1, 1e-5),
                                   (1.0, 0.1, 1, 0.0), (1.0, 0.1, 1, 1.0), (math.nan, 0.1, 1, 1e-5)])  # fmt: skip
def test_settings_that_cannot_be(wrong: tuple[float, float, int, float]) -> None:
    with pytest.raises(PlanError):
        epsilon(*wrong)
    with pytest.raises(PlanError):
        noise_for(0.0, 0.1, 1, 1e-5)
    for delta in (0.0, 1.0, math.nan):
        with pytest.raises(PlanError, match=f"delta={delta}: from 1e-10 to 1"):
            noise_for(8.0, 0.1, 10, delta)


def test_the_noise_for_a_large_epsilon_is_not_below_a_tenth() -> None:
    assert noise_for(1e4, 0.1, 10, 1e-5) == noise_for(1e6, 0.1, 10, 1e-5) == 0.1


# -- a budget ----------------------------------------------------------------------------------------------------------


def test_a_budget_ends_with_the_last_round_within_it_also_after_a_restart() -> None:
    budget, rounds = PrivacyBudget(epsilon=3.0, delta=1e-5), 0
    allowed = budget.rounds_left(2.0, 0.2)
    while budget.left(2.0, 0.2):
        budget, rounds = budget.after(2.0, 0.2), rounds + 1
        if rounds in (1, 7):
            budget = PrivacyBudget(epsilon=3.0, delta=1e-5).resumed(budget.kept())
    assert rounds == allowed > 10 and budget.spent == ((2.0, 0.2, rounds),)
    assert budget.used <= 3.0 < epsilon(2.0, 0.2, rounds + 1, 1e-5)
    assert budget.rounds_left(2.0, 0.2) == 0 and budget.rounds_left(20.0, 0.2) > 0
    assert budget.after(4.0, 0.1).after(4.0, 0.1, 2).spent == ((2.0, 0.2, rounds), (4.0, 0.1, 3))
    rarer = budget.after(2.0, 0.01)
    assert rarer.spent == ((2.0, 0.2, rounds), (2.0, 0.01, 1)) and rarer.used > budget.used, "each at its own rate"
    assert PrivacyBudget(epsilon=9.0, delta=1e-5).rounds_left(2.0, 0.2, most=5) == 5


def test_a_budget_with_a_large_epsilon_ends_too() -> None:
    """Beyond epsilon 709 nothing more seemed to be spent."""
    budget = PrivacyBudget(epsilon=1000.0, delta=1e-5)
    allowed = budget.rounds_left(0.1, 1.0, most=10_000)
    assert allowed == 16 and exact_delta(1000, 0.1, 16) < 1e-5 < exact_delta(1000, 0.1, 17)
    assert budget.after(0.1, 1.0, 15).left(0.1, 1.0) and not budget.after(0.1, 1.0, 16).left(0.1, 1.0)


def test_a_budget_of_another_delta_or_damaged_is_refused() -> None:
    budget = PrivacyBudget(epsilon=3.0, delta=1e-5)
    with pytest.raises(CheckpointError, match="at delta=1e-06, not at 1e-05"):
        budget.resumed(PrivacyBudget(epsilon=3.0, delta=1e-6).kept())
    for wrong in (
        {}, {"delta": 1e-5}, {"delta": "x", "spent": []}, {"delta": 1e-5, "spent": [[1.0, 0.1]]}, {"spent": 3},
        {"delta": 1e-5, "spent": [[1.0, 0.1, -5]]}, {"delta": 1e-5, "spent": [[math.inf, 0.1, 5]]},
        {"delta": 1e-5, "spent": [[1.0, 0.1, math.inf]]}, {"delta": 1e-5, "spent": [[-1.0, 0.1, 1]]},
    ):  # fmt: skip
        with pytest.raises(CheckpointError, match="cannot be read"):
            budget.resumed(wrong)
    for bad in (PrivacyBudget(epsilon=0.0, delta=1e-5), PrivacyBudget(epsilon=1.0, delta=0.0)):
        with pytest.raises(PlanError):
            bad.check()
