"""One worker of a launched run: the user's thread does the computing that the strategy's program asks for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from covey.data.seeded_draws import seed_all
from covey.engines.process import control
from covey.engines.process.role.compute_thread import ComputeThread
from covey.engines.process.role.cuda_stream import lane_of
from covey.engines.process.role.role_process import RoleLines, play
from covey.errors import PlanError
from covey.exchange.gathered_rows import GatheringWorkers
from covey.model.optimizers import Combined
from covey.model.randomness import seed_of
from covey.model.replica import Replica
from covey.names import option
from covey.run.own_loop.counting import StepSamples, lacks_gradient
from covey.run.own_loop.joined_role import JoinedRole
from covey.run.own_loop.keeping import SharedLoop, Stateful
from covey.run.own_loop.loading import Sizes
from covey.run.own_loop.loop_turns import LoopTurns
from covey.run.own_loop.member import Agreement, Member
from covey.run.own_loop.trained import note_steps, parameters_of
from covey.run.own_loop.written_weights import AVERAGED, FROZEN, WRITTEN, FilledBuffers, WrittenWeights

UNDIVIDED = (
    "this loop's batches come neither from member.loader nor from member.shard, so every worker may go through all of "
    "the data: write `for batch in member.loader(loader)`; if the loop divides the data itself, say how many samples a "
    "step has, `member.step(loss, samples=n)`"
)

RESUMED = (
    "this loop goes on after step {steps:,}; counters of the script itself (step += 1) start again at 0: use "
    "member.steps, member.epochs and member.batch_index"
)


class WorkerMember(Member):
    """Its role runs beside the loop, and takes over at each step."""

    def __init__(
        self, joined: JoinedRole, replica: Replica, model: nn.Module | Sequence[nn.Module],
        optimizer: Optimizer | Sequence[Optimizer], keep: Sequence[Stateful] = (),
    ) -> None:  # fmt: skip
        super().__init__(model, optimizer, joined.work.workers)
        self.rank, self.workers, self.seed = joined.me.rank, joined.work.workers, joined.work.seed
        self._replica = replica
        self._keeping = joined.keeping(self.models, self.optimizers, keep)
        self._position = self._keeping.position
        role = joined.plan.role(joined.me)
        self._one_batch, self._in_step = role.one_batch, joined.plan.in_step
        settings = replica.updates.settings
        assert settings is not None, "a loop has settings"
        settings.alike = role.one_batch and not role.heard_by_all
        self._rows = GatheringWorkers(self.rank, self.workers, lambda: self._counts.weight)
        plan = joined.plan_telling(self._rows)
        run = partial(play, plan=plan, replica=replica, kept=joined.kept, serve=self._serve)
        self._turns = LoopTurns(run, lane_of(replica.flat))
        self._seat = joined
        self._lines: RoleLines | None = None
        self._compute_thread: ComputeThread | None = None
        self._verdicts: SimpleQueue[float | None] = SimpleQueue()  # None: the run is over
        self._elastic = joined.work.elastic
        self._shared = SharedLoop(self._keeping, replica, self.rank, self.seed)
        self._written, self._buffers = WrittenWeights(replica.layout), FilledBuffers(self.models)
        replica.batch_source = replace(
            replica.batch_source, own=self._turns.compute, weight=lambda: self._counts.weight, loop=self._keeping.state,
            shared=self._shared if self._elastic else None,
        )

    def __enter__(self) -> Member:
        self._parameters = [parameter for each in self.models for parameter in each.parameters()]
        super().__enter__()
        if self.rank:  # the models are made: from here on what each worker draws is its own
            seed_all(seed_of(self.seed, self.rank, 0))
        self._turns.start(self._open, lambda: self._verdicts.put(None))
        self._wait()
        self._shared.begin()
        self._keeping.begin()
        if self.resumed:
            note_steps(self.optimizers)
            self._say_where()
        self._zero_grad(self.optimizers)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> bool | None:
        swallowed = super().__exit__(kind, error, traceback)
        self._position.left = True
        self._turns.finish(error, self._position.votes)
        self._seat.leave()
        return swallowed

    def _say_where(self) -> None:
        """A counter of the script's own makes a resumed run too long, and its schedule wrong, without an error."""
        kept = self._position.kept
        repeats = not kept.passes  # batches from elsewhere: the loop repeats its iterations, and counts right
        if not (self.rank or self._shared.followed or repeats or kept.left) and self._turns.mine:
            self._tell(control.Notice(RESUMED.format(steps=kept.steps)))

    def _zero_grad(self, optimizers: Iterable[Optimizer]) -> None:
        """With one optimizer, of everything: what it does not step has no gradient either."""
        if len(self.optimizers) > 1:
            return super()._zero_grad(optimizers)
        for parameter in self._parameters:  # as model.zero_grad() does, which looks for them in all modules each time
            if parameter.grad is not None:
                parameter.grad = None

    def keep(self, *things: Stateful) -> None:
        super().keep(*things)
        self._keeping.add(things)

    def _begin_steps(self) -> None:
        super()._begin_steps()
        self._keeping.check()

    def _reads(self, order: int, fingerprint: str, loader: DataLoader[Any] | None = None) -> None:
        super()._reads(order, fingerprint, loader)
        if fingerprint and torch.is_grad_enabled():
            self._tell(control.SampleOrder(order, fingerprint))

    def _pulled(self, sizes: Sizes) -> bool:
        super()._pulled(sizes)
        return self._turns.mine or not torch.is_grad_enabled()

    def agree(self, value: Any, how: Agreement = "any") -> Any:
        own = super().agree(value, how)
        if not self._turns.mine:  # the run has ended
            return own
        found = self._vote(f"member.agree(…, how={how!r})", how, float(own))
        return own if found is None else type(own)(found)

    def gather(self, tensor: Tensor) -> Tensor:
        own = super().gather(tensor)
        if not self._one_batch:
            raise PlanError(
                "member.gather has no meaning here: the workers of this strategy do not take each step together at "
                "equal weights, so there is no batch of all of them; use bsp, allreduce, firecaffe, sliced or bigdl, "
                "or take the loss over this worker's own batch"
            )
        if self._elastic:
            raise PlanError(
                f"{option('on_failure', 'continue')} and member.gather: it waits for all workers in the middle of a "
                f"step, which a lost one cannot repeat alone; use {option('on_failure', 'restart')}"
            )
        return self._rows.gather(own) if self._turns.mine else own  # else the run has ended

    def _anywhere(self, here: bool) -> bool:
        if not self._in_step or not self._turns.mine:
            return here
        if self._elastic:
            raise PlanError(
                f"{option('on_failure', 'continue')} and member.step(scaler=…): a worker that replaces a lost one "
                f"cannot tell which steps the others skipped; use torch.bfloat16 without a scaler, or "
                f"{option('on_failure', 'restart')}"
            )
        return bool(self._vote("member.step(scaler=…)", "any", float(here)) or here)

    def _take(
        self, loss: Tensor | float | None, samples: int | None, chosen: Optimizer, max_norm: float | None
    ) -> None:
        if not self._turns.mine:
            return self._counts.begin()  # the run has ended; loops over loaders end by themselves
        self._warn_of_writes()
        counted = self._counts.take(samples)
        if self._elastic:
            self._check_dealt(counted)
            self._check_fresh(chosen)
        if self._one_batch and counted.mine and lacks_gradient(chosen):
            raise PlanError(
                f"worker {self.rank} calls member.step after {self.steps - 1} steps without any gradient, and the mean "
                "over all workers would be too small: call loss.backward() before it on every worker, with a loss that "
                "is not detached from the model"
            )
        if not counted.divided and not self.rank:
            self._warn("undivided", UNDIVIDED)
        self._keeping.waiting.set_aside(chosen)
        if self._one_batch:
            self._weigh(chosen, counted)
        self._clip(max_norm)
        if isinstance(live := self._replica.updates.optimizer_of_loop, Combined):
            live.only(chosen)
        # Where all step together every gradient counts the same to the programs: none knows of the others' batches.
        counts = 1 if self._in_step else counted.mine
        self._position.count(counted.each)
        self._turns.give(float("nan") if loss is None else loss, counts, counted.mine)
        self._wait()
        self._keeping.waiting.give_back()

    def _warn_of_writes(self) -> None:
        if name := self._written.check():
            self._warn("written", WRITTEN.format(name=name))
        if name := self._buffers.check():
            self._warn("buffers", AVERAGED.format(name=name))
        if name := self._keeping.frozen.check():
            self._warn("frozen", FROZEN.format(name=name))

    def _wait(self) -> None:
        self._turns.wait()
        self._position = self._keeping.position  # which may be that of another worker's loop
        self._position.ended = self._turns.over
        if self._turns.mine:
            self._written.note()

    def _check_dealt(self, counted: StepSamples) -> None:
        """Refuse batches that whoever replaces this worker could not find again."""
        if self._position.leading is None or (self._one_batch and counted.everybody is None):
            raise PlanError(
                f"{option('on_failure', 'continue')}: whoever replaces a lost worker must find its batches, and the "
                "number of samples of all workers in them: take them from member.loader(loader) or member.shard(data, "
                f"batch_size), without samples=…, or use {option('on_failure', 'restart')} with "
                f"{option('checkpoint', 'DIR')}"
            )

    def _check_fresh(self, chosen: Optimizer) -> None:
        """Refuse gradients that have waited for this step, which whoever replaces this worker would not have."""
        if self._keeping.waiting.used(chosen):
            raise PlanError(
                f"{option('on_failure', 'continue')} and two optimizers that step after one backward: whoever replaces "
                "a worker that is lost between the two lacks the gradients of the second; call backward before each "
                f"member.step, or use {option('on_failure', 'restart')} with {option('checkpoint', 'DIR')}"
            )

    def _weigh(self, chosen: Optimizer, counted: StepSamples) -> None:
        """Let this gradient count by its samples where programs take the mean of all workers'."""
        everybody = counted.everybody
        if everybody is None:
            about = "member.step(…, samples=…)" if counted.told else "member.step with a batch of the loop's own"
            everybody = round(self._vote(about, "sum", float(counted.mine)) or counted.mine)
        if not everybody:
            raise PlanError("member.step: no worker has a sample in this step")
        weight = counted.mine * self.workers / everybody
        if weight == 1:
            return
        if (self._replica.compute.norms or self._rows.calls) and (counted.everybody is None or not counted.alike):
            raise PlanError(
                "nn.SyncBatchNorm and member.gather must know before a step how many samples each worker has in it: "
                "make the batches equal (drop_last=True), or take them from member.loader, one for each step"
            )
        for parameter in parameters_of(chosen):
            if parameter.grad is not None:
                parameter.grad.mul_(weight)

    def _clip(self, max_norm: float | None) -> None:
        if max_norm is not None:
            self._seat.check_clip()
        self._replica.updates.clip_norm = max_norm

    # -- what the loop says to the launcher ---------------------------------------------------------------------------

    def _open(self) -> RoleLines:
        self._seat.entered = True
        self._lines = RoleLines(self._seat.me, self._seat.work.contacts)
        self._lines.line.loop = self._heard
        return self._lines

    def _serve(self, compute_thread: ComputeThread) -> None:
        self._compute_thread = compute_thread
        compute_thread.serve()

    def _heard(self, word: control.Downward) -> None:
        assert isinstance(word, control.VoteResult) and word.number == self._position.votes, f"{word} answers no vote"
        self._verdicts.put(word.value)

    def _tell(self, word: control.Upward) -> None:
        assert self._lines is not None and self._compute_thread is not None, "the role is not there yet"
        self._lines.line.hand(word)
        self._compute_thread.wake()

    def _vote(self, about: str, how: control.How, value: float) -> float | None:
        """How all workers decide; None when the run is over before."""
        self._position.votes += 1
        self._tell(control.Vote(self._position.votes, about, how, value, self._replica.compute.losses.count))
        return self._verdicts.get()

    def _warn(self, about: str, text: str) -> None:
        if about not in self._warned and self.workers > 1:
            self._tell(control.Notice(text))
        self._warned.add(about)
