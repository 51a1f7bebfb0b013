"""Which modules have parts that a mesh can give to different workers? Uncut they are ordinary modules."""

from __future__ import annotations

from covey.nn.experts import Experts
from covey.nn.local2d import Local2d

__all__ = ["Experts", "Local2d"]
