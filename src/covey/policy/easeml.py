"""ease.ml (Li et al. 2018): which tenant's model is trained next, where several share the machines?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from covey.policy.search import at_least

Numbers = NDArray[np.float64]
NOISE = 1e-3  # of an observed quality


@dataclass(frozen=True, kw_only=True, slots=True)
class EaseMl:
    """The settings: after how many trials without a better model tenants take turns."""

    stalled: int = 3

    def __post_init__(self) -> None:
        at_least("easeml", stalled=(self.stalled, 1))


USUAL = EaseMl()


@dataclass(frozen=True, kw_only=True, slots=True)
class Tenant:
    """Someone who wants a good model: what each candidate costs, how alike they are, how good those trained were."""

    costs: Sequence[float]
    likeness: ArrayLike | None = None  # covariance of qualities; None: nothing is known
    trained: Mapping[int, float] = field(default_factory=dict)  # quality by candidate
    running: Set[int] = frozenset()  # candidates that are being trained

    @property
    def done(self) -> bool:
        return len(self.trained) + len(self.running) >= len(self.costs)

    @property
    def fresh(self) -> bool:
        return not self.trained and not self.running


@dataclass(frozen=True, slots=True)
class TenantModel:
    """A model of a tenant, and by how much it may be better than the tenant's best, per cost."""

    tenant: int
    model: int
    gap: float


def upper_bounds(tenant: Tenant, scale: float) -> list[float]:
    """GP-UCB with costs: mean + sqrt(`scale` / cost) · deviation, for each candidate; of trained ones the quality.

    Candidates that are being trained count as if they turned out as expected (Desautels et al. 2014).
    """
    size = len(tenant.costs)
    kernel: Numbers = np.eye(size) if tenant.likeness is None else np.asarray(tenant.likeness, float)
    seen, known = sorted(tenant.trained), sorted({*tenant.trained, *tenant.running})
    values = np.array([tenant.trained[one] for one in seen])
    middle = float(values.mean()) if seen else 0.0
    mean, variance = np.full(size, middle), np.diag(kernel).copy()
    if seen:
        mean = middle + kernel[:, seen] @ _inverse(kernel, seen) @ (values - middle)
    if known:
        cross = kernel[:, known]
        variance = np.maximum(0.0, variance - np.sum(cross @ _inverse(kernel, known) * cross, 1))
    bounds = mean + np.sqrt(scale / np.asarray(tenant.costs, float)) * np.sqrt(variance)
    return [tenant.trained.get(one, float(bounds[one])) for one in range(size)]


def _inverse(kernel: Numbers, chosen: list[int]) -> Numbers:
    return np.asarray(np.linalg.inv(kernel[np.ix_(chosen, chosen)] + NOISE * np.eye(len(chosen))), np.float64)


def easeml(
    tenants: Sequence[Tenant], decisions: int = 0, stalled: int = 0, settings: EaseMl = USUAL
) -> TenantModel | None:
    """The next model to train; None where all are.

    A tenant of whom nothing is known comes first. Then greedy by the largest gap between a tenant's best upper bound
    and its best quality. When `stalled` trials in a row have made no tenant's model better, tenants take turns instead
    (the hybrid of Li et al. 2018, section 4.3).
    """
    open_ones = [number for number, tenant in enumerate(tenants) if not tenant.done]
    if not open_ones:
        return None
    if stalled >= settings.stalled:
        number = open_ones[decisions % len(open_ones)]
        return _best(number, tenants[number], decisions)
    fresh = [number for number in open_ones if tenants[number].fresh]
    found = [_best(number, tenants[number], decisions) for number in fresh[:1] or open_ones]
    return max(found, key=lambda one: (one.gap, -one.tenant))


def _best(number: int, tenant: Tenant, decisions: int) -> TenantModel:
    scale = 2 * math.log(max(2, len(tenant.costs) * (decisions + 1) ** 2))
    bounds = upper_bounds(tenant, scale)
    left = (one for one in range(len(bounds)) if one not in tenant.trained and one not in tenant.running)
    model = max(left, key=lambda one: bounds[one])
    return TenantModel(number, model, bounds[model] - max(tenant.trained.values(), default=0.0))
