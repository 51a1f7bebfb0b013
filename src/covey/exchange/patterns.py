"""The patterns of a sum by their names."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Literal

from covey.errors import PlanError
from covey.exchange.collectives import Pattern, binomial, chain, ring, scatter_gather, star
from covey.exchange.hierarchy import hierarchical
from covey.exchange.recursive import doubling, halving

Name = Literal["ring", "binomial", "star", "chain", "doubling", "halving", "scatter", "hierarchical"]

PATTERNS: Mapping[str, Pattern] = {
    "ring": ring, "binomial": binomial, "star": star, "chain": chain, "doubling": doubling, "halving": halving,
    "scatter": scatter_gather, "hierarchical": partial(hierarchical, local=2),
}  # fmt: skip

SHAPES: Mapping[str, str] = {
    "ring": "closed ring", "binomial": "binomial tree", "star": "star", "chain": "chain", "doubling": "hypercube",
    "halving": "hypercube", "scatter": "complete", "hierarchical": "rings within and between machines",
}  # fmt: skip


def pattern(strategy: str, name: Name, local: int) -> Pattern:
    """The pattern of this name, on machines of so many workers; refused where that makes no machine."""
    if local < 1:
        raise PlanError(f"{strategy}(local={local}): a machine has 1 worker or more")
    return partial(hierarchical, local=local) if name == "hierarchical" else PATTERNS[name]
