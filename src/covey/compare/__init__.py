"""Which strategy wins here? Several strategies on one task to one target, side by side."""

from covey.compare.cases import Case
from covey.compare.figures import Figure, Row, rows
from covey.compare.running import Comparison, Outcome, compare

__all__ = ["Case", "Comparison", "Figure", "Outcome", "Row", "compare", "rows"]
