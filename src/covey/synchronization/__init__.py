"""When may a worker go on?"""

from covey.synchronization.board import Board, WaitingGradient
from covey.synchronization.epochs import Ending, Epochs, Unit
from covey.synchronization.gates import Bounded, Gate, Near, Newer, Open, Predicted, Tokens
from covey.synchronization.rules import Each, Everyone, Gather, GatherChoice, Quorum, Rule, Soft, Ticked, damp

__all__ = [
    "WaitingGradient", "Board", "Bounded", "GatherChoice", "Each", "Ending", "Epochs", "Everyone", "Gate", "Gather",
    "Near", "Newer", "Open", "Predicted", "Quorum", "Rule", "Soft", "Ticked", "Tokens", "Unit", "damp",
]  # fmt: skip
