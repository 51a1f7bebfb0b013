"""One worker of a run, as the user's own loop holds it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from threading import current_thread
from typing import Any, Literal

from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from covey.data import Feed, Shards
from covey.errors import PlanError
from covey.run.own_loop.counting import LoaderCounts, watching
from covey.run.own_loop.keeping import Stateful
from covey.run.own_loop.loading import Loader, Sizes
from covey.run.own_loop.position import Pass, Position, RunEnded
from covey.run.own_loop.scaling import overflowed
from covey.task import Data, check_data

Agreement = Literal["any", "all", "mean"]


class Member:
    """One worker of a run, in the user's own loop. This one is alone: each step is the optimizer's."""

    rank, workers, seed = 0, 1, 0

    def __init__(
        self, model: nn.Module | Sequence[nn.Module], optimizer: Optimizer | Sequence[Optimizer], workers: int = 1
    ) -> None:
        self.models = (model,) if isinstance(model, nn.Module) else tuple(model)
        self.optimizers = (optimizer,) if isinstance(optimizer, Optimizer) else tuple(optimizer)
        if any(isinstance(each, DistributedDataParallel) for each in self.models):
            raise PlanError(
                "the model is wrapped in DistributedDataParallel, which exchanges gradients itself: give covey.join "
                "the plain model, and the strategy does that"
            )
        self._epoch = 0
        self._counts = LoaderCounts(workers)
        self._hooks: list[Any] = []
        self._loop = current_thread()
        self._begun = self._stepping = False
        self._more = False  # whether this batch is one of several of a step, and not the last
        self._max_norm: float | None = None
        self._position = Position()

    def __enter__(self) -> Member:
        self._zero_grad(self.optimizers)
        self._hooks = watching(self.models, self._counts)
        self._hooks += [optimizer.register_step_pre_hook(self._check_step) for optimizer in self.optimizers]
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> bool | None:
        for hook in self._hooks:
            hook.remove()
        return isinstance(error, RunEnded)

    # -- data ---------------------------------------------------------------------------------------------------------

    def shard(self, data: Data, batch_size: int = 32) -> Iterable[Any]:
        """This worker's share of the data in batches; one epoch each time it is iterated."""
        return _Epochs(self, data, Shards(check_data(data), self.workers, batch_size, self.seed))

    def loader(self, loader: DataLoader[Any]) -> Loader:
        """This worker's share of what the loader gives, in batches of its size; one epoch each time it is iterated."""
        return Loader(self, loader)

    def epochs(self, count: int) -> Iterator[int]:
        """The numbers of so many epochs; in a run that goes on from a checkpoint, those that are not over yet."""
        return self._position.epochs(count)

    @property
    def resumed(self) -> bool:
        """Whether the run goes on from a checkpoint."""
        return self._position.resumed

    @property
    def batch_index(self) -> int:
        """Index of the current batch in its epoch, also after a resume."""
        return self._position.batch_index

    @property
    def steps(self) -> int:
        """How many steps this loop has asked for, with those of the run that it goes on from."""
        return self._position.steps

    def first_step(self) -> int:
        """The step to start from: 0, or after a resume the last one taken.

        For a loop that draws its own batches, `for step in range(member.first_step(), 1000)`; without it such a loop
        runs through the steps of the past again after a resume, and takes none of them.
        """
        return self._position.first_step()

    def _begin_pass(self) -> Pass | None:
        """(Of loaders) Another pass over data, in the same order on all workers; None if it was over already."""
        found = self._position.begin(self._epoch)
        if found is not None:
            self._epoch = found.order + 1
        return found

    def _reads(self, order: int, fingerprint: str) -> None:
        """(Of loaders) This is how the samples of a pass begin."""

    def _pulled(self, sizes: Sizes) -> bool:
        """(Of loaders) A batch is about to be given to the loop."""
        self._counts.pulled(sizes)
        return True

    # -- steps --------------------------------------------------------------------------------------------------------

    def step(
        self, loss: Tensor | float | None = None, *, samples: int | None = None, optimizer: Optimizer | None = None,
        scaler: GradScaler | None = None,
    ) -> None:  # fmt: skip
        """Take one step with the accumulated gradients, and return when the weights are ready for the next batch.

        `samples`: of how many this worker's gradient is the mean, where no loader of the member knows. `optimizer`:
        which of several steps now. `scaler`: what the loss was scaled with; call its `update` afterwards, as always.
        """
        if not self._begun:
            self._begin_steps()
        if self._more:
            return self._counts.add(samples)
        chosen = self._chosen(optimizer)
        max_norm, self._max_norm = self._max_norm, None
        if self._position.stepped():
            self._replay(chosen, scaler)
        elif scaler is not None and overflowed(scaler, chosen, self._anywhere):
            self._counts.begin()
        else:
            self._stepping = True
            self._take(loss, samples, chosen, max_norm)
            self._stepping = False
        self._zero_grad([chosen])
        for each in self.optimizers:
            each._opt_called = True  # type: ignore[attr-defined]  # or schedulers warn where servers step

    @contextmanager
    def accumulate(self, more: bool = True) -> Iterator[None]:
        """Gradients add up: inside, a step only counts its batch, and the next one outside takes them all.

        With `more=False` the step inside is taken: `with member.accumulate((i + 1) % 4 != 0)`.
        """
        before, self._more = self._more, more
        try:
            yield
        finally:
            self._more = before

    def clip(self, max_norm: float) -> None:
        """Shorten the gradient that the coming step is taken with to this norm at most."""
        if not max_norm > 0:
            raise PlanError(f"member.clip({max_norm!r}): the largest norm must be more than 0")
        self._max_norm = float(max_norm)

    def agree(self, value: Any, how: Agreement = "any") -> Any:
        """The same answer on all workers: whether `any` or `all` values are true, or their `mean`. Waits for all."""
        if how not in ("any", "all", "mean"):
            raise PlanError(f"member.agree(how={how!r}): use 'any', 'all' or 'mean'")
        return float(value) if how == "mean" else bool(value)

    def keep(self, *things: Stateful) -> None:
        """Save the state of these in checkpoints too, as with `covey.join(keep=…)`; before the first step.

        For what is made inside the block, such as a scheduler that counts the batches of `member.loader`.
        """
        if self._begun:
            raise PlanError("member.keep was called after the first member.step: call it before the training loop")

    def _begin_steps(self) -> None:
        """(At the first step)"""
        self._begun = True

    def _zero_grad(self, optimizers: Iterable[Optimizer]) -> None:
        """Forget the gradients of what these optimizers step."""
        for optimizer in optimizers:
            optimizer.zero_grad()

    def _check_step(self, optimizer: Optimizer, *_: Any) -> None:
        """Refuse a step that passes by the strategy."""
        if current_thread() is self._loop and not self._stepping:
            raise PlanError(
                "the loop called optimizer.step(), which bypasses the other workers: call member.step(loss), or "
                "member.step(loss, scaler=scaler) instead of scaler.step(optimizer)"
            )

    def _chosen(self, optimizer: Optimizer | None) -> Optimizer:
        if optimizer is None and len(self.optimizers) > 1:
            raise PlanError("the run has several optimizers: say which one steps now, member.step(optimizer=…)")
        if optimizer is not None and not any(optimizer is each for each in self.optimizers):
            raise PlanError("member.step(optimizer=…): this optimizer was not given to covey.join")
        return optimizer or self.optimizers[0]

    def _anywhere(self, here: bool) -> bool:
        """Whether something is so on any worker that has to skip a step with this one."""
        return here

    def _replay(self, chosen: Optimizer, scaler: GradScaler | None) -> None:
        """This step was taken before the run was kept: all that is left of it is what the scaler will ask for."""
        self._counts.begin()
        for parameter in parameters_of(chosen):
            if parameter.grad is not None:
                parameter.grad.zero_()
        if scaler is not None:
            overflowed(scaler, chosen, lambda here: here)

    def _take(
        self, loss: Tensor | float | None, samples: int | None, chosen: Optimizer, max_norm: float | None
    ) -> None:
        """Use the gradient."""
        self._counts.begin()
        if max_norm is not None:
            nn.utils.clip_grad_norm_(parameters_of(chosen), max_norm)
        chosen.step()


class _Epochs:
    """Iterating gives one epoch, and the next time the next one."""

    def __init__(self, member: Member, data: Data, deal: Shards) -> None:
        self.member, self.deal = member, deal
        self.feed = Feed(data, deal, member.rank)

    def __len__(self) -> int:
        """As many for every worker, so that nobody waits for one that ended."""
        return self.deal.steps(self.deal.workers - 1)

    def __iter__(self) -> Iterator[Any]:
        deal, rank, begun = self.deal, self.member.rank, self.member._begin_pass()
        if begun is None:
            return
        first = begun.order * deal.steps(rank) + begun.skip
        with begun:
            for number, batch in enumerate(islice(self.feed.start(first), len(self) - begun.skip), begun.skip):
                sizes = [deal.batch(each, number) for each in range(deal.workers)]
                if not self.member._pulled(Sizes(sizes[rank], sum(sizes))):
                    return
                begun.give()
                yield batch


def parameters_of(optimizer: Optimizer) -> list[nn.Parameter]:
    """All that it steps."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
