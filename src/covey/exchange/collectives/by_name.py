"""The patterns of a sum by their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

from covey.errors import PlanError
from covey.exchange.collectives.butterfly import bruck, butterfly
from covey.exchange.collectives.hierarchy import hierarchical
from covey.exchange.collectives.recursive import doubling, halving
from covey.exchange.collectives.ring_slices import Frame
from covey.exchange.collectives.sums import Pattern, binomial, chain, ring, scatter_gather, star

Name = Literal[
    "ring", "binomial", "star", "chain", "doubling", "halving", "scatter", "hierarchical", "butterfly", "bruck"
]  # fmt: skip

PATTERNS: Mapping[str, Pattern] = {
    "ring": ring, "binomial": binomial, "star": star, "chain": chain, "doubling": doubling, "halving": halving,
    "scatter": scatter_gather, "hierarchical": partial(hierarchical, local=2),
    "butterfly": butterfly, "bruck": bruck,
}  # fmt: skip

SHAPES: Mapping[str, str] = {
    "ring": "closed ring", "binomial": "binomial tree", "star": "star", "chain": "chain", "doubling": "hypercube",
    "halving": "hypercube", "scatter": "complete", "hierarchical": "rings within and between machines",
    "butterfly": "butterfly", "bruck": "circulant graph", "switch": "switch", "auto": "as measured",
}  # fmt: skip


RINGS = ("ring", "hierarchical")
"""Where the place of a number decides in which order of ranks it is added."""


def pattern(strategy: str, name: str, local: int) -> Pattern:
    """The pattern of this name, on machines of this many workers; refused where that makes no machine."""
    if local < 0:
        raise PlanError(f"{strategy}(local={local}): a machine has 1 worker or more; 0 means those that there are")
    return partial(hierarchical, local=local) if name == "hierarchical" else PATTERNS[name]


def of_bucket(name: str, summing: Pattern, frame: Frame) -> Pattern:
    """The pattern for a part of a vector, which adds every number as it would be added in the whole.

    Only rings need to know where the part lies: all others add each number in the same order of ranks, wherever it is.
    """
    framed: Callable[..., Any] = summing
    return partial(framed, frame=frame) if name in RINGS else summing
