"""When may a worker go on?"""

from covey.synchronization.epochs import Ending, Epochs, Unit
from covey.synchronization.rules import (
    Arrival,
    Board,
    Bounded,
    Choice,
    Each,
    Everyone,
    Gate,
    Gather,
    Newer,
    Open,
    Predicted,
    Quorum,
    Rule,
    Soft,
    Ticked,
    damp,
)  # fmt: skip

__all__ = [
    "Arrival", "Board", "Bounded", "Choice", "Each", "Ending", "Epochs", "Everyone", "Gate", "Gather", "Newer", "Open",
    "Predicted", "Quorum", "Rule", "Soft", "Ticked", "Unit", "damp",
]  # fmt: skip
