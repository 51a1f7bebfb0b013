"""Which strategy wins here? Several strategies on one task to one target, side by side."""

from covey.compare.cases import Case
from covey.compare.figures import Figure, StrategyRow, rows
from covey.compare.outcomes import ComparedRun, Comparison
from covey.compare.running import compare

__all__ = ["Case", "Comparison", "Figure", "ComparedRun", "StrategyRow", "compare", "rows"]
