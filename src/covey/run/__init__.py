"""How does a plan meet an engine?"""

from covey.run.fitting import ENGINES, fit
from covey.run.own_loop import join, launch
from covey.run.request import Options

__all__ = ["ENGINES", "Options", "fit", "join", "launch"]
