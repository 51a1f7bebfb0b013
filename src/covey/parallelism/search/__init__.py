"""Which layout of a model is fastest? Operators with their costs, a scheduler, and several ways to search."""

from covey.parallelism.search.capture import operators_of
from covey.parallelism.search.cost_table import CostTable, cost_table, exhaustive
from covey.parallelism.search.costs import Devices, OperatorCosts
from covey.parallelism.search.elimination import eliminate
from covey.parallelism.search.layouts import LayoutSearch, ModelLayout
from covey.parallelism.search.methods import METHODS, Budget
from covey.parallelism.search.operators import Operator, OperatorConfig, OperatorGraph
from covey.parallelism.search.simulation import Simulation

__all__ = [
    "METHODS", "Budget", "CostTable", "Devices", "LayoutSearch", "ModelLayout", "Operator", "OperatorConfig",
    "OperatorCosts", "OperatorGraph", "Simulation", "cost_table", "eliminate", "exhaustive", "operators_of",
]  # fmt: skip
