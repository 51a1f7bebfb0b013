"""When may a worker go on?"""

from covey.synchronization.board import Arrival, Board
from covey.synchronization.epochs import Ending, Epochs, Unit
from covey.synchronization.gates import Bounded, Gate, Near, Newer, Open, Predicted, Tokens
from covey.synchronization.rules import Choice, Each, Everyone, Gather, Quorum, Rule, Soft, Ticked, damp

__all__ = [
    "Arrival", "Board", "Bounded", "Choice", "Each", "Ending", "Epochs", "Everyone", "Gate", "Gather", "Near", "Newer",
    "Open", "Predicted", "Quorum", "Rule", "Soft", "Ticked", "Tokens", "Unit", "damp",
]  # fmt: skip
