"""When may a worker go on?"""

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
    damp,
)  # fmt: skip

__all__ = [
    "Arrival", "Board", "Bounded", "Choice", "Each", "Everyone", "Gate", "Gather", "Newer", "Open", "Predicted",
    "Quorum", "Rule", "Soft", "damp",
]  # fmt: skip
