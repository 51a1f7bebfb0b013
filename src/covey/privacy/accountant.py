"""What is spent of privacy? Epsilon of rounds in which each client takes part by chance, and noise covers their sum.

The privacy loss of one round is a random number; that of many is their sum, whose distribution is found by a Fourier
transform (Gopi et al. 2021, "Numerical composition of differential privacy"). Neighbours differ by one client, who is
added or removed. The result is an upper bound: the error of the grid, of at most about 0.2 %, is added to it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from covey.errors import PlanError

PRECISION = 0.002  # of epsilon
LEAST_DELTA = 1e-10  # below it rounding errors of the transform could count
LEAST_NOISE = 0.1  # that `noise_for` gives
LARGE = 30.0  # losses whose exponential is so large that adding 1 to it is a correction; from 709 on it overflows
MOST_POINTS = 1 << 22
FAR = 10  # standard deviations
ORDERS = (*(1 + x / 16 for x in (1, 2, 4, 8, 12, 16, 24)), *range(3, 33), 40, 48, 64, 96, 128, 256, 512, 1024, 4096)


@dataclass(frozen=True, slots=True)
class NoisyRounds:
    """Rounds that were alike: the noise, in multiples of the clip norm, and the chance of a client to take part."""

    noise: float
    rate: float
    rounds: int

    def check(self) -> None:
        if not (math.isfinite(self.noise) and self.noise > 0):
            raise PlanError(f"dp(noise={self.noise}): a number above 0 is needed")
        if not 0 < self.rate <= 1:
            raise PlanError(f"a client's chance to take part is {self.rate}: above 0, at most 1")
        if self.rounds < 0:
            raise PlanError(f"{self.rounds} rounds")


def epsilon(noise: float, rate: float, rounds: int, delta: float) -> float:
    """The epsilon of so many rounds at this delta.

    >>> round(epsilon(1.0, 1.0, 1, 1e-5), 1)
    4.4
    """
    return epsilon_of((NoisyRounds(noise, rate, rounds),), delta)


def epsilon_of(spent: Sequence[NoisyRounds], delta: float) -> float:
    """The epsilon of all these rounds together."""
    for rounds in spent:
        rounds.check()
    _check_delta(delta)
    counted = tuple(rounds for rounds in spent if rounds.rounds)
    return _epsilon(counted, delta) if counted else 0.0


def _check_delta(delta: float) -> None:
    if not LEAST_DELTA <= delta < 1:
        raise PlanError(f"delta={delta}: from {LEAST_DELTA} to 1, far below one divided by the number of clients")


def noise_for(target: float, rate: float, rounds: int, delta: float) -> float:
    """The smallest noise, to a thousandth and not below 0.1, with which these rounds spend at most this epsilon."""
    NoisyRounds(1.0, rate, rounds).check()
    _check_delta(delta)
    if not (math.isfinite(target) and target > 0):
        raise PlanError(f"epsilon={target}: a number above 0 is needed")
    high = 1.0
    while _rough((NoisyRounds(high, rate, rounds),), delta) > target:
        high *= 1.25
        if high > 1e5:
            raise PlanError(f"no noise makes {rounds} rounds spend only epsilon={target} at delta={delta}")
    low = high / 1.25
    while epsilon(low, rate, rounds, delta) <= target and low > LEAST_NOISE:  # the rough bound says more than is spent
        low, high = low / 1.25, low
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if epsilon(middle, rate, rounds, delta) <= target else (middle, high)
    return max(high, LEAST_NOISE)


@lru_cache(maxsize=256)
def _epsilon(spent: tuple[NoisyRounds, ...], delta: float) -> float:
    tail, total = delta / 1000, sum(rounds.rounds for rounds in spent)
    rough = _rough(spent, delta)
    reach = max(_rough(spent, tail / total), 1.2 * rough)
    spread = math.sqrt(total / 2 * math.log(12 / tail))  # Gopi et al., theorem 5.5: the error of a sum, per grid step
    step = max(PRECISION * rough / spread, 2 * reach / MOST_POINTS)
    points = 1 << math.ceil(math.log2(2 * reach / step))
    return max(_crossing(spent, delta - tail, points, step, added) for added in (False, True)) + step * spread


def _crossing(spent: tuple[NoisyRounds, ...], delta: float, points: int, step: float, added: bool) -> float:
    """Where the curve of delta over epsilon, as the grid has it, goes below a delta."""
    grid = (torch.arange(points, dtype=torch.float64) - points // 2) * step
    product, shift = torch.ones(points // 2 + 1, dtype=torch.complex128), 0.0
    for rounds in spent:
        mass = _masses(rounds, grid, step, added)
        product *= torch.fft.rfft(torch.roll(mass, -(points // 2))) ** rounds.rounds
        shift += rounds.rounds * (_mean(rounds, added) - float(mass @ grid))  # rounding must not move the mean
    mass = torch.roll(torch.fft.irfft(product, points), points // 2).clamp_(min=0)
    loss = grid + shift
    loss, mass = loss[loss > 0], mass[loss > 0]
    above = mass.flip(0).cumsum(0).flip(0)
    weighed = (torch.log(mass) - loss).flip(0).logcumsumexp(0).flip(0)  # in logs: exp(709) is the largest double
    found = above - torch.exp(loss + weighed) > delta  # delta at each epsilon of the grid
    return float(loss[found][-1]) + step if bool(found.any()) else 0.0


def _masses(rounds: NoisyRounds, grid: Tensor, step: float, added: bool) -> Tensor:
    """The chance of each privacy loss of one round, to the nearest point of the grid."""
    ends = _loss(rounds, torch.tensor([-FAR * rounds.noise, 1 + FAR * rounds.noise], dtype=torch.float64))
    least, most = sorted((-ends if added else ends).tolist())
    here = (grid >= least - step) & (grid <= most + step)  # beyond, chances are below 1e-22
    middle = grid[here]
    low, high = middle - step / 2, middle + step / 2
    right = _chance_above(rounds, low, added) - _chance_above(rounds, high, added)
    left = _chance_below(rounds, high, added) - _chance_below(rounds, low, added)
    return torch.zeros_like(grid).masked_scatter_(here, torch.where(middle > 0, right, left).clamp_(min=0))


def _chance_below(rounds: NoisyRounds, loss: Tensor, added: bool) -> Tensor:
    if added:
        return _normal(-_place(rounds, -loss) / rounds.noise)
    place = _place(rounds, loss)
    return (1 - rounds.rate) * _normal(place / rounds.noise) + rounds.rate * _normal((place - 1) / rounds.noise)


def _chance_above(rounds: NoisyRounds, loss: Tensor, added: bool) -> Tensor:
    """Not one minus the other: far out nothing would be left of it."""
    if added:
        return _normal(_place(rounds, -loss) / rounds.noise)
    place = _place(rounds, loss)
    return (1 - rounds.rate) * _normal(-place / rounds.noise) + rounds.rate * _normal((1 - place) / rounds.noise)


def _normal(value: Tensor) -> Tensor:
    """The chance that a standard normal number is below this one."""
    found: Tensor = torch.special.ndtr(value)
    return found


def _place(rounds: NoisyRounds, loss: Tensor) -> Tensor:
    """At which value of the noisy sum, in clip norms, log((1 - q) N(0) + q N(1)) - log N(0) has this value."""
    rate = rounds.rate
    odds = (torch.expm1(loss.clamp(max=LARGE)) + rate) / rate
    large = loss - math.log(rate) + torch.log1p((rate - 1) * torch.exp(-loss.clamp(min=LARGE)))
    log_odds = torch.where(loss > LARGE, large, torch.log(odds))
    return torch.where(odds > 0, rounds.noise**2 * log_odds + 0.5, -math.inf)


def _loss(rounds: NoisyRounds, place: Tensor) -> Tensor:
    much = (2 * place - 1) / (2 * rounds.noise**2) + math.log(rounds.rate)
    return torch.logaddexp(torch.tensor(math.log1p(-rounds.rate) if rounds.rate < 1 else -math.inf), much)


def _densities(rounds: NoisyRounds) -> tuple[Tensor, Tensor, Tensor]:
    """Values of the noisy sum of one round, with their chances without the client and with it."""
    place = torch.linspace(-12 * rounds.noise, 1 + 12 * rounds.noise, 8193, dtype=torch.float64)
    normal = [torch.exp(-(((place - at) / rounds.noise) ** 2) / 2) for at in (0, 1)]
    without, alone = (density / density.sum() for density in normal)
    return place, without, (1 - rounds.rate) * without + rounds.rate * alone


def _mean(rounds: NoisyRounds, added: bool) -> float:
    place, without, with_client = _densities(rounds)
    loss = _loss(rounds, place)
    return float(-(without @ loss) if added else with_client @ loss)


def _rough(spent: tuple[NoisyRounds, ...], delta: float) -> float:
    """An upper bound on epsilon, and on losses but for a chance of delta, from Rényi divergences (Mironov 2017)."""
    orders = torch.tensor(ORDERS, dtype=torch.float64)
    total = torch.zeros_like(orders)
    for rounds in spent:
        place, without, _ = _densities(rounds)
        exact = torch.logsumexp(torch.log(without) + orders[:, None] * _loss(rounds, place), dim=1) / (orders - 1)
        plain = orders / (2 * rounds.noise**2)
        inside = orders < 10 * rounds.noise  # beyond, the integrand leaves the grid
        total += rounds.rounds * torch.where(inside, torch.minimum(exact, plain), plain)
    return float((total + math.log(1 / delta) / (orders - 1)).min())
