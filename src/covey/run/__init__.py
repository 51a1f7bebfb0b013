"""How does a plan meet an engine?"""

from covey.run.federated.federating import federate
from covey.run.fitting import fit
from covey.run.options import Options
from covey.run.own_loop import join, launch

__all__ = ["Options", "federate", "fit", "join", "launch"]
