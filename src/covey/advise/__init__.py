"""Which strategy should win here, and why?"""

from covey.advise.choose import advise
from covey.advise.situation import look

__all__ = ["advise", "look"]
