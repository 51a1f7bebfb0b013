"""When does a technique fit? Rules that answer with their reason (Langer et al. 2020, chapter 4).

Thresholds are starting values, except the ratio of 5 to 1 between computing and exchanging (Moritz et al. 2016).
"""

from __future__ import annotations

from typing import NamedTuple

from covey.simulate.units import format_bytes, format_duration

BUSY = 5 / 6  # the share of time that a worker should compute: SparkNet's 5 to 1
FEW = 16  # samples, below which batch statistics are noise


class Suitability(NamedTuple):
    """Whether it fits, and why, in words for people."""

    ok: bool
    reason: str


def large_balanced(samples: int, workers: int, batch: int, skew: float = 0.0) -> Suitability:
    """What lets workers drift apart needs a hundred batches for each, and labels that are dealt out evenly."""
    each = samples / (workers * batch)
    if each < 100:
        return Suitability(
            False, f"each worker has only {each:.0f} batches of data; 100 are wanted where workers drift apart"
        )
    if skew >= 0.1:
        return Suitability(False, f"a worker's labels differ from all labels by {skew:.0%}; less than 10 % is wanted")
    return Suitability(True, f"each worker has {each:.0f} batches of evenly dealt data")


def fits(needed: float, memory: float) -> Suitability:
    """Model, optimizer and activations must fit into one device, or the model must be cut."""
    if needed <= memory:
        return Suitability(True, f"the model needs {format_bytes(needed)} of {format_bytes(memory)}")
    return Suitability(
        False, f"the model needs {format_bytes(needed)}, a device has {format_bytes(memory)}: it must be cut"
    )


def decentral_fits(model: float, optimizer: float, memory: float) -> Suitability:
    """Where workers train alone, each needs the model and the whole state of the optimizer."""
    verdict = fits(2 * model + optimizer, memory)
    return Suitability(verdict.ok, f"{verdict.reason} (with its gradient and the optimizer, on every worker)")


def server_keeps_up(workers: int, transfer: float, update: float, compute: float) -> Suitability:
    """All pushes must pass the server while one worker computes."""
    needed = workers * transfer + update
    words = f"the server is busy for {format_duration(needed)} while a worker computes {format_duration(compute)}"
    return Suitability(needed <= compute, words)


def repeatable(wanted: bool, synchronous: bool) -> Suitability:
    """The same result again needs workers in step."""
    if wanted and not synchronous:
        return Suitability(False, "two runs differ: what arrives first is applied first")
    return Suitability(
        True, "two runs give the same model" if synchronous else "nobody asked for the same result again"
    )


def holds_together(spread: float, scheduling: str, spot: bool = False) -> Suitability:
    """The more the workers' steps differ in time, the less they should wait for one another."""
    words = f"step times differ by {spread:.0%} between workers"
    if spread > 0.5 or spot:
        ok = scheduling in ("asynchronous", "soft")
        return Suitability(ok, f"{words}{' and machines may vanish' if spot else ''}: nobody should wait for others")
    if spread >= 0.1:
        return Suitability(scheduling != "synchronous", f"{words}: waiting for all costs that much at every step")
    return Suitability(True, f"{words}: waiting for others costs little")


def rate_rule(optimization: str, scheduling: str, workers: int) -> str:
    """What to make of the learning rate."""
    if optimization == "central" and scheduling == "synchronous":
        return f"the learning rate may grow up to {workers}-fold, after a warm-up"
    if optimization == "central":
        return f"each gradient counts 1/{workers}, as covey does by default, or less the staler it is"
    return "keep the learning rate, or lower it a little"


def statistics_hold(normalized: bool, batch: int) -> Suitability:
    """Batch-norm of few samples is noise."""
    if normalized and batch < FEW:
        return Suitability(
            False, f"batch-norm over {batch} samples is noisy: use nn.SyncBatchNorm, or batches of {FEW}"
        )
    return Suitability(True, "no batch-norm over few samples")


def bandwidth_poor(share: float) -> Suitability:
    """Where exchange takes too much of a step, send less of each gradient, or less often, or to whom one meets."""
    if share <= 1 - BUSY:
        return Suitability(False, f"up to {1 - BUSY:.0%} is fine")
    return Suitability(True, "compress, exchange less often, or gossip")


def combines(
    codec: str, gathered: float = 0.0, summed: float = 0.0, remembers: bool = False, spot: bool = False
) -> Suitability:  # fmt: skip
    """What cannot be added up on its way everybody gathers; what is carried over is lost with its worker."""
    if gathered > summed:
        words = f"everybody would gather {format_bytes(gathered)} of {codec}"
        return Suitability(
            False, f"{words}, which cannot be added up on its way; a plain sum takes {format_bytes(summed)}"
        )
    if remembers and spot:
        return Suitability(False, f"{codec} carries over what it drops, which is lost when a machine vanishes")
    return Suitability(True, f"{codec} is decoded before it is added, or adds up on its way")


def exactly_once(wanted: bool, samples: str) -> Suitability:
    """An epoch in which every sample counts once rules out strategies that drop some."""
    dropped = samples != "every sample once per epoch"
    return Suitability(not (wanted and dropped), samples)
