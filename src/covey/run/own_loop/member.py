"""One worker of a run, as the user's own loop holds it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from covey.data import Feed, Shards
from covey.engines.process.lane import lane_of
from covey.engines.process.role import Post, play
from covey.replica import Replica
from covey.run.own_loop.seat import Seat
from covey.run.own_loop.turns import Turns
from covey.task import Data, check_data


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
        run = partial(play, plan=seat.plan, replica=replica, kept=seat.kept, serve=lambda desk: desk.serve())
        self.leave = seat.leave
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
        self.leave()

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
