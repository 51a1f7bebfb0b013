"""`with covey.join(model, optimizer)`: a script's training loop becomes a worker of its run."""

from __future__ import annotations

from torch import nn
from torch.optim import Optimizer

from covey import build
from covey.engines.process.role import Post, play
from covey.engines.process.shots import SCORER
from covey.errors import PlanError
from covey.replica import Replica
from covey.run.own_loop import seat as here
from covey.run.own_loop.member import JoinedMember, Member
from covey.run.own_loop.settings import remade
from covey.run.roles import score_for


def join(model: nn.Module, optimizer: Optimizer) -> Member:
    """Train `model` together with the other workers of this run; alone when there is no run."""
    seat = here.SEAT
    if seat is None:
        return Member(model, optimizer)
    if seat.joined:
        raise PlanError("covey.join was called a second time: one run has one training loop")
    seat.joined = True
    if seat.me == SCORER:
        with Post(seat.me, seat.work.contacts) as post:
            score_for(post, seat.plan, build.ScoredModel(model, None))
        raise SystemExit(0)
    replica = Replica(model, remade(model, optimizer))
    if not seat.plan.role(seat.me).trains:
        with Post(seat.me, seat.work.contacts) as post:
            play(post, seat.plan, replica, None, lambda desk: desk.serve())
        raise SystemExit(0)
    return JoinedMember(seat, replica, model, optimizer)
