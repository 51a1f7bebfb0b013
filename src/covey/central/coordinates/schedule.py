"""Which variables move together: candidates by how far they moved last, and of these only weakly coupled ones."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from math import log
from random import Random

import torch
from torch import Tensor


def candidates(moves: Sequence[float], count: int, eps: float, rng: Random) -> list[int]:
    """Draw this many different variables, each with a chance in proportion to |its last move| + eps.

    Efraimidis and Spirakis 2006: the largest log(u) / weight are a weighted sample without replacement, in its order.
    """
    keys = ((log(1 - rng.random()) / (abs(move) + eps), variable) for variable, move in enumerate(moves))
    return [variable for _, variable in heapq.nlargest(count, keys)]


def uncoupled(drawn: Iterable[int], correlation: Tensor, rho: float, most: int) -> list[int]:
    """Of the candidates, in their order, those whose correlation with all that were taken before is at most rho."""
    taken: list[int] = []
    for variable in drawn:
        if len(taken) == most:
            break
        if not taken or float(correlation[variable, taken].abs().max()) <= rho:
            taken.append(variable)
    return taken


def correlations(products: Tensor) -> Tensor:
    """The cosines between features, from the sums of their products.

    Features are not centred: what couples two variables of a linear model is the product of their features, and for
    standardized ones this is the correlation. A feature that is always 0 is coupled with nothing.
    """
    sizes = products.diagonal().sqrt()
    sizes = torch.where(sizes > 0, sizes, torch.ones_like(sizes))
    return products / sizes[:, None] / sizes[None, :]


def minimum(weight: Tensor, slope: Tensor, curvature: Tensor, penalty: Tensor) -> Tensor:
    """Where each variable alone is lowest: of a parabola with this slope and curvature here, and penalty |w|.

    A variable without curvature stays.
    """
    bent = curvature > 0
    safe = torch.where(bent, curvature, torch.ones_like(curvature))
    aim = weight * safe - slope
    return torch.where(bent, aim.sign() * (aim.abs() - penalty).clamp(min=0) / safe, weight)
