"""DP-SGD for one worker (Abadi et al. 2016): samples drawn by chance, gradients clipped one by one, noise added."""

from __future__ import annotations

from typing import NoReturn

from torch import nn

from covey.data.feed import Feed
from covey.data.shards import Shards
from covey.errors import PlanError
from covey.model.batches import Batch, OwnBatches
from covey.model.private.sample_gradients import SampleGradients
from covey.model.randomness import seed_of, seed_torch
from covey.model.slots import buffers_of
from covey.privacy.clipped_noise import gaussian, uniform
from covey.privacy.randomness import RandomnessSource, SeededSource, SystemSource
from covey.task import Task


class PrivateBatches(OwnBatches):
    """Gradients of a worker's own samples, each of which is in a batch with the same chance, independently (Poisson).

    The samples of a worker stay the same in all epochs. Each worker covers its own gradient with noise before anybody
    sees it, so whatever a strategy does with gradients costs no more privacy.
    """

    def __init__(self, task: Task, module: nn.Module, feed: Feed) -> None:
        super().__init__(task, module, feed)
        assert task.private is not None
        self.private = task.private
        refuse_settings(task, module, self.deal)
        self.mine = self.deal.shard(0, self.rank).contiguous()
        self.chance = sampling_rate(task, self.deal, self.rank)
        self.gradients = SampleGradients(module, task.forward, self.private.clip)
        seed = self.private.seed
        self.randomness: RandomnessSource = SystemSource() if seed is None else SeededSource(seed)

    def __call__(self, step: int) -> Batch:
        chance = self.randomness.of("worker", self.rank, step)
        drawn = self.mine[uniform(len(self.mine), chance) < self.chance]
        seed_torch(seed_of(self.deal.seed, self.rank, step))
        sums = self.gradients.total(drawn, self.feed.take)
        for parameter, total in zip(self.gradients.parameters, sums, strict=True):
            noise = gaussian(total.numel(), chance).reshape(total.shape)
            # in double precision until the end, as in privacy/clipped_noise.py
            exact = total.cpu().double().add(noise, alpha=self.private.noise * self.private.clip)
            parameter.grad = exact.div_(self.chance * len(self.mine)).to(total)
        # neither how many were drawn nor what they lost is told: noise does not cover it
        return Batch(float("nan"), self.deal.batch(self.rank, step))

    def of(self, seat: int, number: int) -> NoReturn:
        raise PlanError("Task(private=…): each worker draws from samples of its own, so workers cannot come and go")

    def part(self, rank: int, step: int, part: int, parts: int) -> NoReturn:
        raise PlanError("Task(private=…): each worker draws from samples of its own, and this strategy shares them out")


def sampling_rate(task: Task, deal: Shards, rank: int) -> float:
    """The chance of a sample of this worker to be in a batch."""
    return min(1.0, task.step_size / deal.size(rank))


def refuse_settings(task: Task, module: nn.Module, deal: Shards) -> None:
    """Refuse what would let samples through uncovered."""
    unusual = {
        "precision='fp16'": task.precision == "fp16", "compile": bool(task.compile), "loaders": task.loaders > 0,
        "sampler": task.sampler is not None, "drop_last": task.drop_last,
        "a stream of samples": type(deal) is not Shards,
    }  # fmt: skip
    for name in (name for name, given in unusual.items() if given):
        raise PlanError(f"Task(private=…) draws each sample by chance, which does not go with {name}: omit it")
    if any(buffer.is_floating_point() for _, _, buffer in buffers_of([module]).values()):
        raise PlanError(
            "Task(private=…): the model has float buffers, such as the means of batch normalization, which noise does "
            "not cover: use GroupNorm or LayerNorm"
        )
