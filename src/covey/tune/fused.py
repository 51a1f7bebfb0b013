"""Train several trials of equal shapes in one pass (HiveMind, Narayanan et al. 2018), where that is faster.

For one worker, plain SGD, data in tensors, and models without buffers and dropout; all others are trained alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from covey.data.feed import Feed
from covey.model import build
from covey.model.threads import one_thread
from covey.names import task_name
from covey.scoring import eval_mode
from covey.task.file import task_of
from covey.tune import fused_state
from covey.tune.fusable import Fusable, fusable
from covey.tune.recorded import recorded, without_onednn
from covey.tune.segment import MODEL, Segment, SegmentOutcome, failure_of, finite, told_epochs, train_segment

WORTH = 1.05  # times faster: below this, trials are trained one by one
STEPS = 10  # that are measured, each way
SETTINGS = ("lr", "momentum", "dampening", "weight_decay")

Tensors = dict[str, Tensor]


def train_together(segments: Sequence[Segment], module: ModuleType, name: str) -> Iterator[SegmentOutcome]:
    """Train these trials, whose tasks a function of this module makes; those that are alike in one pass."""
    open_ones: list[Fusable] = []
    for segment in segments:
        path, _, arguments = task_name(segment.task)
        try:
            task = task_of(module, path, name, arguments)
            one = fusable(segment, task) if segment.fuse != "never" else None
        except Exception as error:  # of the user's code
            yield SegmentOutcome(trial=segment.trial, failure=failure_of(error))
            continue
        if one is None:
            yield train_segment(segment, task)
        else:
            open_ones.append(one)
    while open_ones:
        group = [one for one in open_ones if one.like(open_ones[0])]
        open_ones = [one for one in open_ones if one not in group]
        yield from _group(group)


def _group(group: Sequence[Fusable]) -> Iterator[SegmentOutcome]:
    """Train trials that are alike: in one pass if that was asked for, has begun so, or pays."""
    with one_thread():
        begun = any(one.kept for one in group)
        ratio = None
        if not begun and len(group) > 1 and group[0].segment.fuse == "auto":
            ratio = FusedTraining(group).gain()
        if begun or (len(group) > 1 and (ratio is None or ratio >= WORTH)):
            try:
                yield from FusedTraining(group).train(ratio)
            except Exception as error:
                yield from (SegmentOutcome(trial=one.segment.trial, failure=failure_of(error)) for one in group)
            return
    for one in group:
        outcome = train_segment(one.segment, one.task)
        outcome.fused = ratio
        yield outcome


class FusedTraining:
    """Models side by side: each parameter is one tensor, whose first dimension says whose it is."""

    def __init__(self, group: Sequence[Fusable]) -> None:
        self.group, first = group, group[0]
        self.base, self.task, self.seed = first.model, first.task, first.segment.seed
        models = [{name: p.detach() for name, p in one.model.named_parameters()} for one in group]
        self.params: Tensors = {name: torch.stack([model[name] for model in models]) for name in models[0]}
        self.momenta: Tensors = {}
        if first.begun:
            kept = [load_file(one.state) for one in group]
            self.params = {name: torch.stack([one[f"p.{name}"] for one in kept]) for name in self.params}
            self.momenta = {name: torch.stack([one[f"m.{name}"] for one in kept]) for name in self.params}
        groups = [one.task.optimizer(iter(list(one.model.named_parameters()))).param_groups[0] for one in group]
        for one in groups:
            one["dampening"] *= bool(one["momentum"])  # SGD dampens its momentum only
        self.settings = {name: self._each([float(one[name]) for one in groups]) for name in SETTINGS}
        self.traced: dict[tuple[torch.Size, torch.Size], Callable[..., Any]] = {}
        loss = self.task.loss
        assert loss is not None

        def one_loss(params: Tensors, x: Tensor, y: Tensor) -> Tensor:
            found: Tensor = loss(functional_call(self.base, params, (x,)), y)
            return found

        self.alone: Callable[..., Any] = grad_and_value(one_loss)
        self.gradient: Callable[..., Any] = vmap(self.alone, in_dims=(0, None, None))

    def batches(self, step: int) -> Iterator[Any]:
        deal = build.shards(self.task, 1, self.seed)
        return Feed(build.data_of(self.task), deal, 0, self.task.loading, self.task.batch_size).start(step)

    @property
    def steps(self) -> int:
        """In an epoch."""
        return build.shards(self.task, 1, self.seed).steps(0)

    def _each(self, values: Sequence[float]) -> list[Tensor] | None:
        """A setting of every model, in the shape of each parameter; None where it is 0 for all."""
        if not any(values):
            return None
        one = torch.tensor(values)
        return [one.view(-1, *[1] * (param.dim() - 1)) for param in self.params.values()]

    def gradients(self, x: Tensor, y: Tensor) -> tuple[list[Tensor], Tensor]:
        """The gradients and losses of all models. What vmap does is recorded once for each shape of a batch."""
        if len(self.group) == 1:
            alone, loss = self.alone({name: param[0] for name, param in self.params.items()}, x, y)
            return [alone[name][None] for name in self.params], loss[None]
        if (key := (x.shape, y.shape)) not in self.traced:
            self.traced[key] = recorded(self.gradient, self.params, x, y)
        with without_onednn(self.base):
            grads, losses = self.traced[key](self.params, x, y)
        return [grads[name] for name in self.params], losses

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        """One step of SGD for every model; their losses."""
        grads, losses = self.gradients(x, y)
        params, (lr, momentum, dampening, decay) = list(self.params.values()), (self.settings[one] for one in SETTINGS)
        if decay:
            grads = list(torch._foreach_add(grads, torch._foreach_mul(params, decay)))
        if not self.momenta:
            self.momenta = dict(zip(self.params, grads, strict=True))
        else:
            fresh = torch._foreach_sub(grads, torch._foreach_mul(grads, dampening)) if dampening else grads
            before = list(self.momenta.values())
            kept = torch._foreach_mul(before, momentum) if momentum else None
            self.momenta = dict(zip(self.params, torch._foreach_add(kept, fresh) if kept else fresh, strict=True))
        if lr:
            moved = torch._foreach_addcmul(params, list(self.momenta.values()), lr, -1.0)
            self.params = dict(zip(self.params, moved, strict=True))
        return losses.detach()

    def gain(self) -> float:
        """How many times faster a step of all together is than their steps one after the other; trains nothing."""
        x, y = next(self.batches(0))
        before, self.momenta = self.params, {}

        def together() -> None:
            self.step(x, y)

        def apart() -> None:
            for one in self.group:
                optimizer.zero_grad()
                one.task.loss(one.model(x), y).backward()  # type: ignore[misc]
                optimizer.step()

        optimizer = self.task.optimizer(iter(list(self.group[0].model.named_parameters())))
        weights = {name: p.detach().clone() for name, p in self.group[0].model.named_parameters()}
        seconds = []
        for work in (together, apart):
            work()
            began = time.perf_counter()
            for _ in range(STEPS):
                work()
            seconds.append(time.perf_counter() - began)
        self.params, self.momenta = before, {}
        with torch.no_grad():
            for name, p in self.group[0].model.named_parameters():
                p.copy_(weights[name])
        return seconds[1] / seconds[0]

    def train(self, ratio: float | None) -> Iterator[SegmentOutcome]:
        """Train all of them until their epoch, score each after every one, and keep them."""
        begun, segment = self.group[0].begun, self.group[0].segment
        began, samples = time.perf_counter(), build.shards(self.task, 1, self.seed).samples
        rows = [list(one.curve) for one in self.group]
        lost = [""] * len(self.group)
        batches, epochs = self.batches(begun * self.steps), begun  # which may be all, where a search was interrupted
        for epochs in range(begun + 1, segment.until + 1):
            for _ in range(self.steps):
                losses = self.step(*next(batches))
            for number, one in enumerate(self.group):
                if not math.isfinite(float(losses[number])) and not lost[number]:
                    lost[number] = f"diverged: the loss is {float(losses[number])} after {told_epochs(epochs)}"
                try:
                    rows[number].append((epochs, self._score(one, number)))
                except Exception as error:  # of the user's code, over weights that are not finite: the others go on
                    lost[number] = lost[number] or failure_of(error)
            if all(lost):
                break
        self._keep(rows, lost)
        each = (time.perf_counter() - began) / len(self.group)
        for number, one in enumerate(self.group):
            yield SegmentOutcome(
                trial=one.segment.trial, curve=rows[number], samples=samples * epochs,
                seconds=one.segment.seconds + each, failure=lost[number], fused=ratio,
            )  # fmt: skip

    def _score(self, one: Fusable, number: int) -> float | None:
        with torch.no_grad():
            for name, p in one.model.named_parameters():
                p.copy_(self.params[name][number])
        assert one.task.evaluate is not None
        with eval_mode(one.model):
            scores = one.task.evaluate(one.model)
        if one.segment.metric not in scores:
            raise KeyError(f"no metric {one.segment.metric!r}; there are: {', '.join(sorted(scores))}")
        return finite(float(scores[one.segment.metric]))

    def _keep(self, rows: Sequence[fused_state.Curve], lost: Sequence[str]) -> None:
        for number, one in ((place, one) for place, one in enumerate(self.group) if not lost[place]):
            model = {name: value[number].contiguous() for name, value in self.params.items()}
            momenta = {f"m.{name}": value[number].contiguous() for name, value in self.momenta.items()}
            save_file(model, Path(one.segment.folder) / MODEL)
            fused_state.keep(one.state, {f"p.{name}": value for name, value in model.items()} | momenta, rows[number])
