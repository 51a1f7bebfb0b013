"""`Member`: one worker of a run, as a custom training loop uses it."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

from torch import Tensor, is_grad_enabled, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from covey.data.dealing import dealt
from covey.errors import PlanError
from covey.exchange.gathered_rows import check_rows
from covey.run.own_loop.counting import LoaderCounts, check_counted, warn_without_gradient, watching
from covey.run.own_loop.guard import LoopGuard
from covey.run.own_loop.keeping import Stateful, check_stateful
from covey.run.own_loop.loading import REPEATED, Loader, PassBeginnings, Sizes
from covey.run.own_loop.position import Pass, Position, RunEnded
from covey.run.own_loop.scaling import forget_gradients, overflowed
from covey.run.own_loop.sharding import ShardEpochs
from covey.run.own_loop.trained import (
    all_parameters,
    check_step,
    chosen_optimizer,
    frozen_of,
    models_and_optimizers,
    note_steps,
    parameters_of,
)
from covey.task.arguments import checked, number, truth
from covey.task.data import Data, check_data

Agreement = Literal["any", "all", "mean"]


class Member:
    """One worker of a run in the user's own loop, as `covey.join` returns it; `rank` of `workers`.

    In a script that runs alone, each step is the optimizer's.
    """

    rank, workers, seed, _epoch = 0, 1, 0, 0

    def __init__(
        self, model: nn.Module | Sequence[nn.Module], optimizer: Optimizer | Sequence[Optimizer], workers: int = 1
    ) -> None:
        self.models, self.optimizers = models_and_optimizers(model, optimizer)
        self._counts = LoaderCounts(workers, partial(all_parameters, self.optimizers))
        self._guard = LoopGuard()
        self._begun = self._more = False  # more: this batch is one of several of a step, and not the last
        self._max_norm: float | None = None
        self._position = Position()
        self._beginnings, self._warned, self._frozen = PassBeginnings(), set[str](), frozen_of(self.models)

    def __enter__(self) -> Member:
        self._zero_grad(self.optimizers)
        self._guard.begin(self.optimizers, watching(self.models, self._counts))
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> bool | None:
        self._guard.end()
        return isinstance(error, RunEnded)

    @checked("member.shard", omit=("data",))
    def shard(self, data: Data, batch_size: int = 32) -> Iterable[Any]:
        """Return this worker's share of the data in batches; each iteration over it is one epoch.

        Args:
            data: A data set with `len(data)` and `data[i]`, or a tuple of tensors.
            batch_size: The number of samples in a batch of this worker.

        >>> len(list(member.shard((torch.randn(64, 8),), batch_size=16)))
        4
        """
        samples = check_data(data, "member.shard")
        return ShardEpochs(self, data, dealt(data, samples, self.workers, batch_size, self.seed))

    def loader(self, loader: DataLoader[Any]) -> Loader:
        """Return this worker's share of a loader, in batches of the loader's size; each iteration is one epoch.

        Args:
            loader: A DataLoader over all the data, the same on all workers.

        >>> len(member.loader(DataLoader(torch.randn(64, 8), batch_size=16, shuffle=True)))
        4
        """
        return Loader(self, loader)

    @checked("member.epochs")
    def epochs(self, count: int) -> Iterator[int]:
        """Return the numbers of the epochs; after a resume, only of those that are not complete.

        Args:
            count: The number of epochs of the whole run.

        >>> list(member.epochs(3))
        [0, 1, 2]
        """
        if count < 0:
            raise PlanError(f"member.epochs: count must be at least 0, not {count}")
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
        """The step to start from: 0, or after a resume the last one taken; the same whenever it is asked.

        Asking tells covey that the loop, which draws its own batches, begins there; otherwise it repeats earlier
        iterations without stepping. So ask before the first `member.step`, where each iteration has exactly one step.

        >>> range(member.first_step(), 1000)
        range(0, 1000)
        """
        return self._position.first_step(len(self.optimizers))

    def _begin_pass(self) -> Pass | None:
        """(Of loaders) Another pass over data, in the same order on all workers; None if it was over already."""
        if is_grad_enabled():
            self._guard.check("member.loader, member.shard")
        found = self._position.begin(self._epoch)
        if found is not None and found.counted:  # one that only looks changes no order of those that train
            self._epoch = found.order + 1
        return found

    def _reads(self, order: int, fingerprint: str, loader: DataLoader[Any] | None = None) -> None:
        """(Of loaders) This is how the samples of a pass begin."""
        if loader is not None and is_grad_enabled() and self._beginnings.repeats(loader, fingerprint):
            self._warn("epoch", REPEATED)

    def _warn(self, about: str, text: str) -> None:
        """Say it once."""
        if about not in self._warned:
            warnings.warn(text, stacklevel=2)
        self._warned.add(about)

    def _pulled(self, sizes: Sizes) -> bool:
        """(Of loaders) A batch is about to be given to the loop."""
        self._counts.pulled(sizes)
        return True

    # -- steps --------------------------------------------------------------------------------------------------------

    @checked("member.step")
    def step(
        self, loss: Tensor | float | None = None, *, samples: int | None = None, optimizer: Optimizer | None = None,
        scaler: GradScaler | None = None,
    ) -> None:  # fmt: skip
        """Take one step with the accumulated gradients; the weights are then ready for the next batch.

        Args:
            loss: The loss of the batch, only for display.
            samples: The number of samples of the gradient, for batches that come from no loader of the member.
            optimizer: The optimizer that steps, where there are several.
            scaler: The GradScaler of the loss; call its `update` afterwards.

        >>> loss = model(torch.randn(4, 8)).square().mean()
        >>> loss.backward()
        >>> member.step(loss)
        """
        self._guard.check("member.step")
        check_counted(loss, samples)
        if not self._begun:
            self._begin_steps()
        if self._more:
            return self._counts.add(samples)
        chosen = chosen_optimizer(self.optimizers, optimizer)
        max_norm, self._max_norm = self._max_norm, None
        if self._position.stepped():
            self._counts.skip(None)
            forget_gradients(chosen, scaler)
        elif scaler is not None and overflowed(scaler, chosen, self._anywhere):
            self._counts.skip(samples)
        else:
            warn_without_gradient(chosen)
            with self._guard.stepping():
                self._take(loss, samples, chosen, max_norm)
        self._zero_grad([chosen])
        note_steps(self.optimizers)

    @contextmanager
    def accumulate(self, more: bool = True) -> Iterator[None]:
        """Return a context in which `step` only counts its batch; the next step outside uses all gradients.

        Args:
            more: Whether more batches follow before the step; if false, the step inside is taken.

        >>> for i, (x,) in enumerate(member.shard((torch.randn(64, 8),), batch_size=8)):
        ...     with member.accumulate((i + 1) % 4 != 0):
        ...         (model(x).square().mean() / 4).backward()
        ...         member.step()
        """
        before, self._more = self._more, truth("member.accumulate: more", more)
        try:
            yield
        finally:
            self._more = before

    @checked("member.clip")
    def clip(self, max_norm: float) -> None:
        """Clip the gradient of the next step.

        Args:
            max_norm: The largest norm that the gradient may have.

        >>> member.clip(1.0)
        """
        if not max_norm > 0:
            raise PlanError(f"member.clip: max_norm must be more than 0, not {max_norm}")
        self._max_norm = float(max_norm)

    def agree(self, value: Any, how: Agreement = "any") -> Any:
        """Wait for all workers and return the same value on each.

        Args:
            value: The value of this worker.
            how: "any" or "all" for truth values, "mean" for numbers.

        >>> member.agree(0.25, how="mean")
        0.25
        """
        if how not in ("any", "all", "mean"):
            raise PlanError(f"member.agree(how={how!r}): use 'any', 'all' or 'mean'")
        self._guard.check("member.agree")
        return (number if how == "mean" else truth)(f"member.agree(…, how={how!r}): value", value)

    def gather(self, tensor: Tensor) -> Tensor:
        """Return the rows of all workers, by rank; the gradient of each flows back to the worker that has it.

        Args:
            tensor: The rows of this worker; the others have rows of the same shape.

        >>> member.gather(torch.ones(4, 8)).shape
        torch.Size([4, 8])
        """
        self._guard.check("member.gather")
        return check_rows(tensor)

    def keep(self, *things: Stateful) -> None:
        """Save the state of these objects in checkpoints, too; call it before the first step.

        Args:
            things: Objects with `state_dict` and `load_state_dict`, such as a scheduler.

        >>> member.keep(torch.optim.lr_scheduler.ConstantLR(optimizer))
        """
        for thing in things:
            check_stateful("member.keep", thing)
        if self._begun:
            raise PlanError("member.keep was called after the first member.step: call it before the training loop")

    def _begin_steps(self) -> None:
        """(At the first step)"""
        self._begun = True

    def _zero_grad(self, optimizers: Iterable[Optimizer]) -> None:
        """Forget the gradients of what these optimizers step."""
        for optimizer in optimizers:
            optimizer.zero_grad()

    def _anywhere(self, here: bool) -> bool:
        """Whether something is so on any worker that has to skip a step with this one."""
        return here

    def _take(
        self, loss: Tensor | float | None, samples: int | None, chosen: Optimizer, max_norm: float | None
    ) -> None:
        """Use the gradient."""
        self._counts.begin()
        check_step(chosen, self._frozen)
        if max_norm is not None:
            nn.utils.clip_grad_norm_(parameters_of(chosen), max_norm)
        chosen.step()
