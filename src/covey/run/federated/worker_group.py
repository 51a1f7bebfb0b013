"""A client that is itself a group of workers: each of its rounds is a run of its own, on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from covey.errors import PlanError
from covey.faults import in_task
from covey.federated.local_training import LocalPlan, LocalResult
from covey.federated.messages import Configuration
from covey.federated.strategies import FederatedStrategy
from covey.model.flat import Flat
from covey.model.randomness import seed_of
from covey.names import option
from covey.run.fitting import fit
from covey.task import Task

STRATEGY = "allreduce"
SEEDS = 1 << 31


class WorkerGroup:
    """Trains a client on several workers, which sum up their gradients: together they compute the batches of one.

    The workers divide the client's samples among them, so batches have other samples than those of a client alone.
    """

    def __init__(self, task: Task, module: nn.Module, plan: LocalPlan, samples: int, workers: int, seed: int) -> None:
        self._module, self._layout, self._plan = module, Flat(module), plan
        self._samples, self._workers, self._seed = samples, workers, seed
        size = task.batch_size if plan.batch is None else plan.batch
        batch = samples if size == "all" else min(size, samples)
        self._rate, usual = task.rate, task.batch_size
        self._task = replace(task, batch_size=max(1, -(-batch // workers)), rate=None, evaluate=None, callbacks=())
        self._load = plan.batches(samples, usual) / workers

    def load(self, client: int) -> float:
        return self._load

    def train(self, client: int, given: Configuration) -> LocalResult:
        layout, rate = self._layout, 1.0
        layout.params.copy_(given.params)
        layout.buffers.copy_(given.buffers)
        if self._rate is not None:
            with in_task("rate(progress)"):
                rate = float(self._rate(given.share))
        start = {name: value.clone() for name, value in self._module.state_dict().items()}
        task = replace(self._task, model=partial(begun, self._task.model, start))
        result = fit(
            task, STRATEGY, self._workers, epochs=self._plan.epochs, rate=rate, scores=0, runs=False,
            seed=seed_of(self._seed, client, given.number) % SEEDS,
        )  # fmt: skip
        self._module.load_state_dict(result.weights)
        loss = result.history[-1].get("loss") if result.history else None
        update = layout.params - given.params
        return LocalResult(update, layout.buffers.clone(), self._samples, float("nan") if loss is None else float(loss))


def begun(model: Callable[[], nn.Module], start: Mapping[str, Tensor]) -> nn.Module:
    """The model with the weights that a client was given."""
    made = model()
    with torch.no_grad():
        made.load_state_dict(dict(start))
    return made


def check_group(strategy: FederatedStrategy, task: Task, samples: int, workers: int) -> None:
    """Refuse what a group of workers cannot do for a client."""
    plan, form = strategy.local, strategy.form
    wrong: dict[str, Any] = {
        "fedsgd: it asks for the gradient of all samples": plan.epochs == 0,
        f"fedprox: mu={plan.mu:g} pulls each step back": plan.mu > 0,
        f"update={form.structure}: it restricts each step": form.structure != "whole",
        f"{samples} samples, fewer than workers": samples < workers,
        "a task with a device of its own": task.device is not None,
    }
    for what, asked in wrong.items():
        if asked:
            raise PlanError(f"{option('workers', workers)} and {what}: join with one worker, or another strategy")
