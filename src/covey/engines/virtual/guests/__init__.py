"""Who comes to a run from outside, and goes again?"""

from covey.engines.virtual.guests.guest_computing import GroupedWork
from covey.engines.virtual.guests.guest_engine import GuestEngine, GuestPlan

__all__ = ["GroupedWork", "GuestEngine", "GuestPlan"]
