"""When may a worker go on?"""

from covey.synchronization.rules import Barrier, Bounded, Rule, Unbounded

__all__ = ["Barrier", "Bounded", "Rule", "Unbounded"]
