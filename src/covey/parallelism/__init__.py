"""How is ONE model cut? Into layers, stages and timetables: what each costs, and which cut is best."""

from covey.parallelism.chain import Chain, chain_of
from covey.parallelism.cut import best_cut, equal_cut
from covey.parallelism.ends import inputs_of, loss_of
from covey.parallelism.gantt import Gantt, Times, simulate
from covey.parallelism.marks import cut_here
from covey.parallelism.measure import measure, optimizer_state
from covey.parallelism.predict import Prediction, predict
from covey.parallelism.profile import LayerCost, Profile
from covey.parallelism.schedule import Schedule
from covey.parallelism.stages import Layer, Stage, Stages, Tie
from covey.parallelism.terms import Cut, Terms
from covey.parallelism.timetable import Move, Row, Timetable, timetable

__all__ = [
    "Chain", "Layer", "chain_of", "cut_here", "Stage", "Stages", "Tie", "inputs_of", "loss_of", "LayerCost", "Profile",
    "measure", "optimizer_state", "Cut", "Terms", "best_cut", "equal_cut", "Schedule", "Move", "Row", "Timetable",
    "timetable", "Gantt", "Times", "simulate", "Prediction", "predict",
]  # fmt: skip
