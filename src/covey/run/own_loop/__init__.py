"""How does a loop of the user's own become a worker?"""

from covey.run.own_loop.join import join
from covey.run.own_loop.launching import launch
from covey.run.own_loop.member import Member

__all__ = ["Member", "join", "launch"]
