"""Many small clients at once: their weights are rows of one tensor for each parameter, and a step moves all rows.

To ask torch for one step of a small model takes longer than the step. Clients whose next batches have equally many
samples therefore take it together, as one batched product (torch.func.vmap). Each row computes what its client would
compute alone, up to rounding. Who takes part in a group follows from virtual time only, so that the same seed gives
the same run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from covey.federated.local_training import ClientWork, LocalPlan, LocalResult, LocalTraining, Restrict
from covey.model.slots import TensorSlot
from covey.task import Task
from covey.vector import Vector

LARGE = 200_000  # parameters from which on a step takes long enough by itself
ROWS = 8_000_000  # numbers of all clients of a group
CLOSE = {torch.float64: 1e-9, torch.float32: 1e-3}  # of the length of an update: how far both ways may lie apart
ALONE = (nn.modules.conv._ConvNd, nn.RNNBase)  # whose batched products are slower than one after the other


@contextmanager
def without_onednn() -> Iterator[None]:
    """Multiply small matrices without oneDNN, which takes 15 times as long for many of them (on an Arm processor)."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


class TaskLoss(nn.Module):
    """The loss of a task as a module, whose weights can be exchanged for a client's."""

    def __init__(self, task: Task, model: nn.Module) -> None:
        super().__init__()
        self.model, self.task = model, task

    def forward(self, batch: tuple[Tensor, ...]) -> Tensor:
        if self.task.step is not None:
            return self.task.step(self.model, batch)
        assert self.task.loss is not None
        return self.task.loss(self.model(batch[0]), batch[1])


@dataclass(slots=True)
class ClientRows:
    """Some clients in the middle of their training: a row of each tensor is one client's."""

    start: list[Tensor]
    weights: list[Tensor]
    velocity: list[Tensor]  # of SGD's momentum; none without
    begun: Tensor  # who has taken a step
    losses: Tensor  # the sums over all batches


class GroupTraining(LocalTraining):
    """Trains clients together where that gives the same as one after the other, and else one after the other."""

    def __init__(
        self, task: Task, module: nn.Module, data: Any, plan: LocalPlan, samples: list[Tensor], seed: int,
        restrict: Restrict | None = None,
    ) -> None:  # fmt: skip
        super().__init__(task, module, data, plan, samples, seed, restrict)
        self._loss = TaskLoss(task, module)
        self._slots = self._layout.slots
        self._groups = [self._group_of(slot) for slot in self._slots]
        self._proven: bool | None = None if self._possible() else False

    def train_all(self, works: Sequence[ClientWork]) -> list[LocalResult]:
        """The reports of several clients, in their order."""
        if self._proven is None:
            self._proven = self._agrees(works[0])
        if not self._proven:
            return [work() for work in works]
        found: dict[int, LocalResult] = {}
        for members in self._split(works):
            mine = [works[number] for number in members]
            try:
                with without_onednn():
                    done = self._train(mine)
            except Exception:  # alone it says what is wrong with which client's data
                done = [work() for work in mine]
            found.update(zip(members, done, strict=True))
        return [found[number] for number in range(len(works))]

    def _agrees(self, work: ClientWork) -> bool:
        """Whether a client trained in a group reports what it reports alone; much cannot be done in groups at all."""
        alone = work()
        try:
            with without_onednn():
                one, two = self._train([work, work])
        except Exception:  # of torch.func, or of the task's own functions, which need not be made for it
            return False
        gap = max((one.update - alone.update).norm(), (two.update - alone.update).norm())
        most = max(CLOSE[part.dtype] for part in alone.update.parts)
        return gap <= most * max(alone.update.norm(), 1e-6) and abs(one.loss - alone.loss) <= most * abs(alone.loss)

    def _split(self, works: Sequence[ClientWork]) -> list[list[int]]:
        """Groups that fit into memory, and whose clients have the same learning rate."""
        most = max(1, ROWS // self._layout.params.numel)
        by_share: dict[float, list[int]] = {}
        for number, work in enumerate(works):
            by_share.setdefault(work.given.share if self._task.rate else 0.0, []).append(number)
        return [mine[at : at + most] for mine in by_share.values() for at in range(0, len(mine), most)]

    def _train(self, works: Sequence[ClientWork]) -> list[LocalResult]:
        self._set_rate(works[0].given.share)
        samples = [self._samples[work.client] for work in works]
        waiting = [
            list(self._draws(work.client, work.given.number, mine))[::-1]
            for work, mine in zip(works, samples, strict=True)
        ]
        steps = [len(batches) for batches in waiting]
        rows = self._rows(works)
        while sizes := Counter(len(batches[-1]) for batches in waiting if batches):
            size = sizes.most_common(1)[0][0]
            members = [row for row, batches in enumerate(waiting) if batches and len(batches[-1]) == size]
            self._step(rows, members, torch.cat([waiting[row].pop() for row in members]), len(works))
        return self._results(works, rows, samples, steps)

    def _rows(self, works: Sequence[ClientWork]) -> ClientRows:
        start = []
        same = all(work.given.params.parts[0] is works[0].given.params.parts[0] for work in works)
        for slot in self._slots:
            first = slot.view(works[0].given.params)
            each = first.expand(len(works), *slot.shape) if same else [slot.view(work.given.params) for work in works]
            start.append(torch.stack(each) if isinstance(each, list) else each)
        momentum = any(group["momentum"] for group in self._groups if group)
        return ClientRows(
            start, [each.clone(memory_format=torch.contiguous_format) for each in start],
            [torch.zeros_like(each, memory_format=torch.contiguous_format) for each in start] if momentum else [],
            torch.zeros(len(works), dtype=torch.bool), torch.zeros(len(works), dtype=torch.float64),
        )  # fmt: skip

    def _step(self, rows: ClientRows, members: list[int], numbers: Tensor, clients: int) -> None:
        """One batch for each of these rows."""
        mine = None if len(members) == clients else torch.tensor(members)
        count = len(members)
        weights = [(each if mine is None else each.index_select(0, mine)).detach() for each in rows.weights]
        batch = tuple(
            column.view(count, len(numbers) // count, *column.shape[1:]) for column in self._feed.take(numbers)
        )
        for each in weights:
            each.requires_grad_()
        losses = vmap(self._of_row, randomness="error")(tuple(weights), batch)
        found = torch.autograd.grad(losses.sum(), weights, allow_unused=True)
        with torch.no_grad():
            for number, (each, grad) in enumerate(zip(weights, found, strict=True)):
                self._move(rows, number, mine, each, torch.zeros_like(each) if grad is None else grad)
            of = slice(None) if mine is None else mine
            rows.begun[of] = True
            rows.losses[of] += losses.detach()

    def _of_row(self, weights: tuple[Tensor, ...], batch: tuple[Tensor, ...]) -> Tensor:
        named = {f"model.{slot.name}": each for slot, each in zip(self._slots, weights, strict=True)}
        found: Tensor = functional_call(self._loss, named, (batch,))
        return found

    def _move(self, rows: ClientRows, number: int, mine: Tensor | None, weight: Tensor, grad: Tensor) -> None:
        """A step of torch.optim.SGD, in its own order of operations."""
        of: Any = slice(None) if mine is None else mine
        how = self._groups[number]
        if how is None:
            return
        if self._plan.mu:
            grad = grad.add(weight - rows.start[number][of], alpha=self._plan.mu)
        if how["maximize"]:
            grad = -grad
        if how["weight_decay"]:
            grad = grad.add(weight, alpha=how["weight_decay"])
        if how["momentum"]:
            old, first = rows.velocity[number][of], ~rows.begun[of]
            new = old.mul(how["momentum"]).add_(grad, alpha=1 - how["dampening"])
            new = torch.where(first.view(-1, *[1] * (grad.dim() - 1)), grad, new)
            rows.velocity[number][of] = new
            grad = grad.add(new, alpha=how["momentum"]) if how["nesterov"] else new
        rows.weights[number][of] = weight.add(grad, alpha=-how["lr"])

    def _results(
        self, works: Sequence[ClientWork], rows: ClientRows, samples: list[Tensor], steps: list[int]
    ) -> list[LocalResult]:
        moved: list[list[Tensor]] = [[] for _ in self._layout.params.parts]
        for slot, start, weight in zip(self._slots, rows.start, rows.weights, strict=True):
            moved[slot.part].append((weight - start).flatten(1))  # the slots of a part lie in their order
        parts = [torch.cat(each, dim=1) for each in moved]
        losses = rows.losses.tolist()
        return [
            LocalResult(Vector([part[row] for part in parts]), Vector(()), len(mine), losses[row] / many)
            for row, (mine, many) in enumerate(zip(samples, steps, strict=True))
        ]

    def _group_of(self, slot: TensorSlot) -> dict[str, Any] | None:
        """The settings with which the optimizer moves a parameter; None: it does not."""
        parameter, groups = self._layout.parameters[slot.name], self._optimizer.param_groups
        return next((group for group in groups if any(one is parameter for one in group["params"])), None)

    def _possible(self) -> bool:
        """Whether clients could be trained together: small models of dense layers, plain SGD, tensors in memory."""
        task, plan, layout = self._task, self._plan, self._layout
        if plan.epochs == 0 or self._restrict:
            return False
        if task.device is not None or task.clip_norm is not None or task.precision != "fp32" or not self._feed.tensors:
            return False
        if type(self._optimizer) is not torch.optim.SGD or layout.buffers.parts or self._counters:
            return False
        if any(isinstance(group["lr"], Tensor) for group in self._optimizer.param_groups):
            return False
        if any(isinstance(module, ALONE) for module in self._module.modules()):
            return False
        return layout.params.numel <= LARGE and all(part.dtype in CLOSE for part in layout.params.parts)
