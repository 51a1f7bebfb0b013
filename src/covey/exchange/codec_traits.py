"""What is known of a codec without running it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Feedback = Literal["none", "needed", "own"]
"""Error feedback, which carries on what a codec drops: none is needed, covey adds it, or the codec does it itself."""

OwnMomentum = Literal["none", "own", "reset"]
"""The codec applies no momentum; it applies it itself; or the optimizer's, of values that were sent, must be reset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecTraits:
    """What strategies, checks of a plan and `covey advise` know of a codec.

    Args:
        plain: Whether nothing is encoded: the vector itself travels.
        summable: Whether encoded values can be added up on their way: its coders have `total`.
        feedback: "needed" if it is biased, so that covey carries on what it drops; "own" if it does that itself.
        weights: Whether it may encode weights, too, not only gradients and changes: no memory, nothing left to chance.
        shapes: Whether it uses the shapes of parameters, so that a server has to hold whole ones.
        momentum: "own" if it applies momentum, so that the optimizer must not; "reset" if the optimizer's momentum of
            values that were sent must be reset.
        exact_start: Whether the first vectors travel as they are.
        measured: Whether it chooses among other codecs as they are measured in the run.
        steps: How many times the steps of plain values training is expected to take.

    >>> covey.CodecTraits(feedback="needed").summable
    False
    """

    plain: bool = False
    summable: bool = False
    feedback: Feedback = "none"
    weights: bool = False
    shapes: bool = False
    momentum: OwnMomentum = "none"
    exact_start: bool = False
    measured: bool = False
    steps: float = 1.0  # a rule of thumb (docs/compression.md)


UNBIASED = CodecTraits()
"""Of a codec that states nothing: it drops nothing on average, and what travels cannot be added up."""
