"""What owners of slices send each other."""

from __future__ import annotations

from covey.message import Message
from covey.vector import Vector


class GradientSlice(Message):
    """A worker's gradient for a slice, to its owner; float buffers go to the first owner."""

    wire_name = "sliced.gradient_slice"

    step: int
    samples: int  # of which it is the mean; 0: it has none ready
    times: tuple[int, ...]  # microseconds until each part of the batch was ready, where late ones are dropped
    grad: Vector
    buffers: Vector


class FreshSlice(Message):
    """An owner's slice of the parameters after the update of `step`."""

    wire_name = "sliced.fresh_slice"

    step: int
    params: Vector
    whole: int = 1  # else it is what has changed, encoded


class SliceCopies(Message):
    """States of slices after the update of `step`, to a worker that keeps a copy of them, or owns them from now on."""

    wire_name = "sliced.copies"

    step: int
    states: Vector

    kept = False


class SlicesHeld(Message):
    """Of which slices the sender has the state."""

    wire_name = "sliced.held"

    slices: tuple[int, ...]

    counted = kept = False
