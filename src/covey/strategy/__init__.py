"""Where does it stand in the taxonomy? A strategy is a value; its entry says what the catalog knows of its name."""

from covey.strategy.entry import FOR_STUDY, MEAN_GRADIENT, Entry, FaultTrait, Taken
from covey.strategy.roles import Plan, Role, workers
from covey.strategy.strategy import Clips, Composition, ModelMesh, ServerPlan, Strategy, TaskTerms
from covey.strategy.taxonomy import GROW, KEEP, ONCE, Description, Scheduling, Taxonomy
from covey.strategy.traffic import CountedRun, LinkBytes, TrafficFormula

__all__ = [
    "FOR_STUDY", "GROW", "KEEP", "MEAN_GRADIENT", "ONCE", "Clips", "Composition", "CountedRun", "Description", "Entry",
    "FaultTrait", "LinkBytes", "ModelMesh", "Plan", "Role", "Scheduling", "ServerPlan", "Strategy", "Taken",
    "TaskTerms", "Taxonomy", "TrafficFormula", "workers",
]  # fmt: skip
