"""A user's own training loop as a worker: `covey launch train.py`, and in it `with covey.join(model, optimizer)`."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn
from torch.optim import Optimizer

from covey import build, catalog
from covey.data import Feed, Shards
from covey.engines.interrupt import Interrupt, interruptible
from covey.engines.local import LocalCrew
from covey.engines.process.contacts import Contacts
from covey.engines.process.lane import lane_of
from covey.engines.process.role import Post, play, tell_failure
from covey.engines.process.shots import SCORER
from covey.engines.process.supervisor import Supervisor, Wishes
from covey.errors import PlanError
from covey.message import Address
from covey.observe.referee import Referee
from covey.observe.result import Result, conclude
from covey.replica import Replica
from covey.run.request import facts_of, options, threads_each
from covey.run.roles import Work, score_for
from covey.run.turns import Turns
from covey.simulate import parse_duration
from covey.strategy import Plan
from covey.task import Data, check_data

NOT_HERE = ("epochs", "until", "checkpoint", "resume", "cluster", "timing_only")


def launch(
    script: str | os.PathLike[str], arguments: Sequence[str], strategy: str, workers: int, **given: Any
) -> Result:
    """Run a script on every role of a strategy; each calls `covey.join` where its training begins."""
    asked = options(given)
    for name in NOT_HERE:
        if getattr(asked, name):
            raise PlanError(
                f"covey launch has no --{name.replace('_', '-')}: the script's own loop decides how long it runs"
            )
    if asked.engine != "local":
        raise PlanError(f"--engine {asked.engine}: a script of one's own runs on the engine 'local' only")
    path = Path(script).resolve()
    if not path.is_file():
        raise PlanError(f"there is no script {script}")
    chosen = catalog.resolve(strategy, workers)
    if chosen.mesh:
        raise PlanError("a script's own loop has the whole model: give covey run a Task, whose model covey can cut")
    if chosen.chooses:
        raise PlanError(
            f"{chosen.name} says itself which samples a gradient is of, and a script's own loop cannot: give covey run "
            "a Task, or launch the script with a strategy that leaves the batches to the loop, such as bsp or easgd"
        )
    roles = tuple(chosen.layout(workers, asked.servers))
    plan = Plan(roles=roles, limits=(asked.steps,) * workers, lockstep=chosen.lockstep, seed=asked.seed)
    judge = Referee(sys.maxsize)
    interrupt = Interrupt()
    threads = asked.threads or threads_each(workers)
    with interruptible(interrupt), LocalCrew(__name__, threads) as crew:

        def pack(contacts: Contacts) -> bytes:
            return msgspec.msgpack.encode(msgspec.structs.replace(work, contacts=contacts))

        work = Work(
            task=str(path), arguments=list(arguments), strategy=chosen.text, workers=workers, servers=asked.servers,
            limits=list(plan.limits), seed=asked.seed, threads=threads,
            contacts=Contacts(book={}, launcher=""),
        )  # fmt: skip
        board = crew.start(roles, f"{__name__}:enter", pack)
        file = crew.directory / "model.safetensors"
        stall = parse_duration(asked.stall)
        wishes = Wishes(score=False, model=file, stall=stall, watcher=asked.watcher, interrupt=interrupt)
        supervisor = Supervisor(plan, board, crew, judge, wishes)
        outcome = supervisor.run()
        known = facts_of(chosen, asked, str(script), "local", plan.limits, work.threads)
        result = conclude(
            known, judge, outcome.tallies,
            seconds=outcome.seconds, stopped=outcome.stopped, usage=outcome.usage, failures=outcome.refused,
        )  # fmt: skip
        result.keep_weights(build.read(file))
        if asked.save:
            build.copy(file, Path(asked.save))
        supervisor.see_off()
    return result


class Seat:
    """This process's place in a launched run."""

    def __init__(self, work: Work, me: Address) -> None:
        self.work, self.me, self.plan = work, me, work.plan()
        self.joined = False


SEAT: Seat | None = None


def enter(data: bytes, handed: bytes, me: Address) -> None:
    """A role's own process begins here: it runs the user's script."""
    global SEAT  # noqa: PLW0603  # the script finds its run without being told
    work = msgspec.msgpack.decode(data, type=Work)
    torch.set_num_threads(work.threads)
    torch.manual_seed(work.seed)
    SEAT = Seat(work, me)
    sys.argv = [work.task, *work.arguments]
    sys.path.insert(0, str(Path(work.task).parent))
    try:
        runpy.run_path(work.task, run_name="__main__")
    except SystemExit:
        if SEAT.joined:
            raise
    except Exception as error:
        tell_failure(me, work.contacts, error)
    if not SEAT.joined:
        missing = PlanError(f"{work.task} ended without calling covey.join: put it around the training loop")
        tell_failure(me, work.contacts, missing)


def join(model: nn.Module, optimizer: Optimizer) -> Member:
    """Train `model` together with the other workers of this run; alone when there is no run."""
    if SEAT is None:
        return Member(model, optimizer)
    if SEAT.joined:
        raise PlanError("covey.join was called a second time: one run has one training loop")
    seat, SEAT.joined = SEAT, True
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


def remade(model: nn.Module, optimizer: Optimizer) -> Callable[[Iterable[tuple[str, nn.Parameter]]], Optimizer]:
    """How a server gets the user's optimizer for its shard: the same class and groups, over the shard's parameters."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    group_of = {names[id(p)]: index for index, group in enumerate(optimizer.param_groups) for p in group["params"]}
    settings = [
        {key: value for key, value in group.items() if key not in ("params", "param_names")}
        for group in optimizer.param_groups
    ]

    def make(pairs: Iterable[tuple[str, nn.Parameter]]) -> Optimizer:
        given = list(pairs)
        if all(parameter is model.get_parameter(name) for name, parameter in given) and len(given) == len(group_of):
            return optimizer
        groups = [{**group, "params": [p for n, p in given if group_of[n] == i]} for i, group in enumerate(settings)]
        return type(optimizer)([group for group in groups if group["params"]], **optimizer.defaults)

    return make


class Member:
    """One worker of a run, in the user's own loop. This one is alone: each step is the optimizer's."""

    rank, workers, seed = 0, 1, 0

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self.model, self.optimizer = model, optimizer
        self.epoch = 0

    def __enter__(self) -> Member:
        self.optimizer.zero_grad()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        pass

    def shard(self, data: Data, batch_size: int = 32) -> Iterable[Any]:
        """This worker's share of the data in batches; one epoch each time it is iterated."""
        return _Epochs(self, data, Shards(check_data(data), self.workers, batch_size, self.seed))

    def step(self, loss: torch.Tensor | float | None = None) -> None:
        """The gradient is there: let the strategy use it, and come back when the weights are ready for the next."""
        self.optimizer.step()
        self.optimizer.zero_grad()

    def begin_epoch(self, deal: Shards) -> Iterator[int]:
        """The numbers of this epoch's batches; as many for every worker, so that nobody waits for one that ended."""
        epoch, self.epoch = self.epoch, self.epoch + 1
        even = deal.steps(deal.workers - 1)
        return iter(range(epoch * deal.steps(self.rank), epoch * deal.steps(self.rank) + even))


class _Epochs:
    """Iterating gives one epoch, and the next time the next one."""

    def __init__(self, member: Member, data: Data, deal: Shards) -> None:
        self.member, self.deal = member, deal
        self.feed = Feed(data, deal, member.rank)

    def __len__(self) -> int:
        return self.deal.steps(self.deal.workers - 1)

    def __iter__(self) -> Iterator[Any]:
        numbers = list(self.member.begin_epoch(self.deal))
        if isinstance(self.member, JoinedMember):
            return self.member.batches(self.feed, self.deal, numbers)
        return islice(self.feed.start(numbers[0]), len(numbers))


class JoinedMember(Member):
    """One worker of a launched run: the user's thread does the computing that the strategy's program asks for."""

    def __init__(self, seat: Seat, replica: Replica, model: nn.Module, optimizer: Optimizer) -> None:
        super().__init__(model, optimizer)
        self.rank, self.workers, self.seed = seat.me.rank, seat.work.workers, seat.work.seed
        self.replica = replica
        run = partial(play, plan=seat.plan, replica=replica, kept=None, serve=lambda desk: desk.serve())
        self.turns = Turns(run, lane_of(replica.flat))
        self.post = lambda: Post(seat.me, seat.work.contacts)
        replica.lessons = replace(replica.lessons, own=self.turns.compute)
        self.samples = 0

    def __enter__(self) -> Member:
        self.turns.start(self.post)
        self.turns.wait()
        self._clear()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self.turns.finish(error)

    def step(self, loss: torch.Tensor | float | None = None) -> None:
        if not self.turns.mine:
            return  # the run has ended; the loop over the shard ends by itself
        self.turns.give(float("nan") if loss is None else loss, self.samples)
        self.turns.wait()
        self._clear()

    def _clear(self) -> None:
        for parameter in self.model.parameters():
            parameter.grad = None

    def batches(self, feed: Feed, deal: Shards, numbers: list[int]) -> Iterator[Any]:
        """One epoch, or less when the run ends before."""
        even = len(numbers)

        def samples(rank: int, step: int) -> int:
            epoch, position = divmod(step, even)
            return deal.batch(rank, epoch * deal.steps(rank) + position)

        self.replica.lessons = replace(self.replica.lessons, samples=samples)
        stream = feed.start(numbers[0])
        for number in numbers:
            if not self.turns.mine:
                return
            self.samples = deal.batch(self.rank, number)
            yield next(stream)
