"""`covey.join`: a person's own training loop joins the run."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from torch import nn
from torch.optim import Optimizer

from covey import catalog
from covey.engines.process.role.role_process import RoleLines, play
from covey.engines.process.snapshot_parts import SCORER
from covey.errors import PlanError
from covey.model.scored import ScoredModel
from covey.run.option_parts import CheckpointOptions, ProcessOptions, TrainingOptions, at_least_one
from covey.run.options import NetworkOptions, Options
from covey.run.own_loop import joined_role as here
from covey.run.own_loop import world
from covey.run.own_loop.joined_role import JoinedRole
from covey.run.own_loop.keeping import Stateful
from covey.run.own_loop.member import Member
from covey.run.own_loop.settings import one_model, replica_of
from covey.run.own_loop.worker_member import WorkerMember
from covey.run.roles import score_for
from covey.spec import parse, unknown
from covey.systems import SYSTEMS
from covey.task.arguments import checked

USUAL = "bsp"  # the strategy, as for covey run and covey launch


@checked("covey.join")
def join(
    model: nn.Module | Sequence[nn.Module],
    optimizer: Optimizer | Sequence[Optimizer],
    *,
    strategy: str | None = None,
    servers: int | None = None,
    seed: int = 0,
    keep: Sequence[Stateful] = (),
    checkpoint: str | os.PathLike[str] | None = None,
    every: str = "60s",
    resume: str | os.PathLike[str] | None = None,
    stall: str = "30s",
    interface: str = "",
    insecure: bool = False,
    cipher: str = "",
) -> Member:
    """Join this script's training loop to the run, as one of its workers; without a run the loop trains alone.

    Under `covey launch` its flags apply. Under torchrun, mpirun or srun each rank becomes a worker, and the keywords
    apply.

    Args:
        model: The model to train, or a list of models.
        optimizer: The optimizer of the model, or a list of optimizers.
        strategy: A strategy, such as "allreduce"; the default is "bsp".
        servers: The number of servers, for strategies that have servers.
        seed: The seed of sample orders, and of random numbers that workers draw after `covey.join`.
        keep: Objects with a `state_dict` to save in checkpoints, such as a scheduler; `member.keep` adds more.
        checkpoint: Save the whole run in this folder at intervals.
        every: The interval between checkpoints.
        resume: Continue from the newest checkpoint in this folder.
        stall: After this time, report who waits for whom, and end the run if a process is unresponsive.
        interface: The network interface between hosts, such as "eth1".
        insecure: Neither encrypt nor authenticate links between hosts.
        cipher: "aes-256-gcm" encrypts tensors between hosts faster than the default does.

    >>> import torch
    >>> model = torch.nn.Linear(8, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with covey.join(model, optimizer) as member:
    ...     for (x,) in member.shard((torch.randn(64, 8),), batch_size=8):
    ...         loss = model(x).square().mean()
    ...         loss.backward()
    ...         member.step(loss)
    """
    given = Options(
        training=TrainingOptions(servers=servers, seed=seed),
        processes=ProcessOptions(stall=stall),
        network=NetworkOptions(interface=interface, insecure=insecure, cipher=cipher),
        checkpoints=CheckpointOptions(checkpoint=checkpoint, every=every, resume=resume),
    )
    if here.JOINED is None:
        here.JOINED = world.enter(strategy or USUAL, given)
    joined = here.JOINED
    if joined is None:
        check_alone(strategy, given)
        return Member(model, optimizer)
    check_launched(joined, strategy, given)
    if joined.joined:
        raise PlanError("covey.join was called a second time: one run has one training loop")
    joined.joined = True
    joined.entered = joined.me == SCORER or not joined.plan.role(joined.me).trains
    if joined.me == SCORER:
        with RoleLines(joined.me, joined.work.contacts) as lines:
            score_for(lines, joined.plan, ScoredModel(one_model(model), None))
        raise SystemExit(0)
    replica = replica_of(model, optimizer, joined.strategy.terms.accept)
    if not joined.plan.role(joined.me).trains:
        with RoleLines(joined.me, joined.work.contacts) as lines:
            play(lines, joined.plan, replica, joined.kept, lambda compute_thread: compute_thread.serve())
        raise SystemExit(0)
    return WorkerMember(joined, replica, model, optimizer, keep)


def check_launched(joined: JoinedRole, strategy: str | None, given: Options) -> None:
    """The flags of covey launch count, and what the script asks for must not differ."""
    if strategy and catalog.resolve(strategy, joined.work.workers).text != joined.work.text:
        raise PlanError(
            f"covey.join(strategy={strategy!r}) in a run of {joined.work.text}: the roles of a strategy are "
            f"laid out before the script runs, so give it to the launcher: covey launch --strategy {strategy!r} …"
        )
    for name in given.given():
        if not joined.work.world:
            raise PlanError(f"covey.join({name}=…): covey launch has started this run; give it --{name}")


def check_alone(strategy: str | None, given: Options) -> None:
    """One worker exchanges nothing, so its strategy need only exist; what a run would keep is not kept."""
    at_least_one(servers=given.training.servers)
    known = [*catalog.names(), *SYSTEMS]
    if strategy and (call := parse(strategy).strategy).name not in known:
        raise unknown(strategy, call.at, "strategy", call.name, known)
    for name, folder in (("checkpoint", given.checkpoints.checkpoint), ("resume", given.checkpoints.resume)):
        if folder:
            raise PlanError(
                f"covey.join({name}=…): a script that runs alone keeps nothing; start it with: "
                f"covey launch {sys.argv[0]} --workers 1 --{name} {folder}"
            )
