"""How is a run performed in virtual time?"""

from covey.engines.virtual.engine import Outcome, VirtualEngine

__all__ = ["Outcome", "VirtualEngine"]
