"""ease.ml (Li et al. 2018): which tenant's model is trained next, where several share the machines?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

NOISE = 1e-3  # of an observed quality
STALLED = 3  # decisions in a row without a better model, after which tenants take turns


@dataclass(frozen=True, kw_only=True, slots=True)
class Tenant:
    """Someone who wants a good model: what each candidate costs, how alike they are, how good those trained were."""

    costs: Sequence[float]
    likeness: Sequence[Sequence[float]] | None = None  # covariance of qualities; None: nothing is known
    trained: Mapping[int, float] = field(default_factory=dict)  # quality by candidate

    @property
    def done(self) -> bool:
        return len(self.trained) >= len(self.costs)


@dataclass(frozen=True, slots=True)
class TenantModel:
    """A model of a tenant, and by how much it may be better than the tenant's best, per cost."""

    tenant: int
    model: int
    gap: float


def upper_bounds(tenant: Tenant, scale: float) -> list[float]:
    """GP-UCB with costs: mean + sqrt(`scale` / cost) · deviation, for each candidate; of trained ones the quality."""
    size = len(tenant.costs)
    kernel = np.eye(size) if tenant.likeness is None else np.asarray(tenant.likeness, float)
    seen = sorted(tenant.trained)
    values = np.array([tenant.trained[one] for one in seen])
    middle = float(values.mean()) if seen else 0.0
    mean, variance = np.full(size, middle), np.diag(kernel).copy()
    if seen:
        inner = np.linalg.inv(kernel[np.ix_(seen, seen)] + NOISE * np.eye(len(seen)))
        cross = kernel[:, seen]
        mean = middle + cross @ inner @ (values - middle)
        variance = np.maximum(0.0, variance - np.einsum("ij,jk,ik->i", cross, inner, cross))
    bounds = mean + np.sqrt(scale / np.asarray(tenant.costs, float)) * np.sqrt(variance)
    return [tenant.trained.get(one, float(bounds[one])) for one in range(size)]


def easeml(tenants: Sequence[Tenant], decisions: int = 0, stalled: int = 0) -> TenantModel | None:
    """The next model to train; None where all are.

    Greedy by the largest gap between a tenant's best upper bound and its best quality. When `stalled` decisions in a
    row have made no tenant's model better, tenants take turns instead (the hybrid of Li et al. 2018, section 4.3).
    """
    open_ones = [number for number, tenant in enumerate(tenants) if not tenant.done]
    if not open_ones:
        return None
    found = [_best(number, tenants[number], decisions) for number in open_ones]
    if stalled >= STALLED:
        return found[decisions % len(found)]
    return max(found, key=lambda one: (one.gap, -one.tenant))


def _best(number: int, tenant: Tenant, decisions: int) -> TenantModel:
    scale = 2 * math.log(max(2, len(tenant.costs) * (decisions + 1) ** 2))
    bounds = upper_bounds(tenant, scale)
    model = max((one for one in range(len(bounds)) if one not in tenant.trained), key=lambda one: bounds[one])
    best = max(tenant.trained.values(), default=0.0)
    return TenantModel(number, model, bounds[model] - best)
