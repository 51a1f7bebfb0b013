"""What does DP-SGD spend? Each sample is drawn by one worker only, in each of its steps with the same chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from covey.data.shards import Shards
from covey.model.private.private_batches import sampling_rate
from covey.observe.facts import PrivacyFacts
from covey.observe.result import Result
from covey.privacy.accountant import epsilon
from covey.privacy.randomness import SYSTEM, SeededRandomness
from covey.task import Task


def seeded(task: Task, seed: int) -> Task:
    """The task in virtual time, where noise and samples follow from the seed of the run."""
    if task.private is None or task.private.seed is not None:
        return task
    return replace(task, private=replace(task.private, seed=seed))


def accounted(task: Task, deal: Shards, limits: Sequence[int | None], result: Result) -> Result:
    """Write into the result what was spent by workers that may do this many steps each."""
    if (private := task.private) is None:
        return result
    rate = max(sampling_rate(task, deal, rank) for rank in range(deal.workers))
    steps = most_steps(task, deal, limits, result)
    simulated = private.seed is not None or result.engine.startswith("simulated")
    result.privacy = PrivacyFacts(
        secure_sums=False, randomness=SeededRandomness.source if simulated else SYSTEM.source,
        epsilon=epsilon(private.noise, rate, steps, private.delta), delta=private.delta, noise=private.noise,
        clip=private.clip, rate=rate, rounds=steps,
    )  # fmt: skip
    return result


def most_steps(task: Task, deal: Shards, limits: Sequence[int | None], result: Result) -> int:
    """The steps of the worker that did most, or more: of a run that was stopped only the samples of all are known."""
    repeated = result.goodput.repeated if result.goodput else 0
    again = math.ceil(repeated / task.step_size)
    most = max((steps or 0 for steps in limits), default=0)
    if result.stopped == "budget" and most:
        return most + again
    samples = result.samples + repeated
    # short batches at the end of each pass count as steps, too
    passes = math.ceil(samples / min(deal.size(rank) for rank in range(deal.workers)))
    done = math.ceil(samples / task.step_size) + passes
    return min(most + again, done) if most else done
