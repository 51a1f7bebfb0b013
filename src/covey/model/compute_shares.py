"""How much of a batch's compute is done? For a layer, backward is two products of forward's size."""

from __future__ import annotations

PARTS = 3  # of the compute: one is forward, two are backward
FORWARD, BACKWARD = 1 / PARTS, 2 / PARTS


def in_forward(done: float, of: float = 1) -> float:
    """The share of the compute after `done` of `of` equal parts of forward."""
    return done / of / PARTS


def in_backward(done: float, of: float = 1, compute: float = 1) -> float:
    """The same after forward and this many parts of backward; of a `compute` that takes so long, if given."""
    return compute / PARTS + BACKWARD * compute * done / of
