"""How MALT folds the vectors of others into one's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from covey.model.replica import Replica
from covey.vector import Vector

Fold = Literal["average", "sum"]
Share = Literal["gradient", "model"]


def take(replica: Replica, vector: Vector, others: Sequence[Vector], share: Share, fold: Fold) -> None:
    """Add the others' vectors to one's own, or take the average of all; a gradient is then stepped on."""
    folded(vector, others, fold)
    if share == "gradient":
        replica.apply(vector)


def folded(vector: Vector, others: Sequence[Vector], fold: Fold) -> None:
    for other in others:
        vector.add_(other)
    if fold == "average":
        vector.mul_(1 / (1 + len(others)))
