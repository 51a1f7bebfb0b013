"""How is ONE model cut? Into layers, stages and timetables: what each costs, and which cut is best."""

from covey.parallelism import search
from covey.parallelism.chain import Chain, chain_of
from covey.parallelism.ends import inputs_of, loss_of
from covey.parallelism.marks import cut_here
from covey.parallelism.plan.cut import best_cut, equal_cut
from covey.parallelism.plan.gantt import Gantt, Times, simulate
from covey.parallelism.plan.measure import measure, optimizer_state
from covey.parallelism.plan.predict import Prediction, predict
from covey.parallelism.plan.profile import LayerCost, Profile
from covey.parallelism.plan.schedule import Schedule
from covey.parallelism.plan.terms import Cut, CutTerms
from covey.parallelism.plan.timetable import MachineRow, Move, Timetable, timetable
from covey.parallelism.stages import Layer, Stage, Stages, Tie

__all__ = [
    "Chain", "Layer", "chain_of", "cut_here", "Stage", "Stages", "Tie", "inputs_of", "loss_of", "LayerCost", "Profile",
    "measure", "optimizer_state", "Cut", "CutTerms", "best_cut", "equal_cut", "Schedule", "Move", "MachineRow",
    "Timetable", "timetable", "Gantt", "Times", "simulate", "Prediction", "predict", "search",
]  # fmt: skip
