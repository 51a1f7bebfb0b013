"""Cut models in runs that are only timed: the clock and the traffic of runs that compute, without computing."""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import covey
from covey.advise.scale import scale
from tests.parallelism.divided_runs import run
from tests.parallelism.test_experts import task as expert_task
from tests.parallelism.test_sharded import IMAGES, WORDS
from tests.parallelism.test_tensor import task

WORLD = covey.simulate.from_flags(bandwidth="20mbit", latency="300us", jitter=0.4, slow=["1:1.5x"])
QUICK = [
    ("allreduce", "stage=2", "gpt"), ("ssp", "replica=2, stage=2, timetable=pipedream", "mlp"),
    ("bsp", "replica=2, shard=2, zero=3", "cnn"), ("allreduce", "tensor=2", "gpt"),
    ("allreduce", "shard=2, tensor=2, zero=2", "gpt"),
]  # fmt: skip
SLOW = [
    ("allreduce", "stage=3, timetable=gpipe, microbatches=3", "cnn"), ("allreduce", "stage=2, timetable=2bw", "gpt"),
    ("allreduce", "stage=2, timetable=interleaved, recompute=true", "gpt"), ("easgd", "replica=2, stage=2", "cnn"),
    ("allreduce", "stage=2, timetable=pipedream, vertical=true", "gpt"), ("allreduce", "stage=2, tied=sum", "tied"),
    ("allreduce", "replica=2, shard=3, zero=1", "gpt"), ("allreduce", "shard=3, zero=2", "tied"),
    ("gosgd", "replica=3, tensor=2", "mlp"), ("allreduce", "stage=2, tensor=2", "gpt"),
    ("bsp + topk", "replica=2, stage=2, shard=2", "gpt"), ("asynchronous", "replica=2, tensor=3", "llama"),
]  # fmt: skip


def size(mesh: str) -> int:
    return prod(int(number) for number in re.findall(r"(?:replica|stage|shard|expert|tensor)=(\d+)", mesh))


def both(given: covey.Task, spec: str, workers: int, **more: Any) -> tuple[covey.Result, covey.Result]:
    """A run that computes, and one that is only timed."""
    more = {"cluster": WORLD, "steps": 5, **more}
    computed, timed = (run(given, spec, workers, **more, timing_only=only) for only in (False, True))
    return computed, timed


@pytest.mark.parametrize(
    ("strategy", "mesh", "model"), [*QUICK, *(pytest.param(*one, marks=pytest.mark.full) for one in SLOW)]
)
def test_the_clock_is_that_of_a_run_that_computes(strategy: str, mesh: str, model: str) -> None:
    given = task(model)
    given = replace(given, data=tuple(torch.cat([part] * 4) for part in given.data))
    steps = 12 if "pipedream" in mesh or "2bw" in mesh else 3
    computed, timed = both(given, f"{strategy} with mesh({mesh})", size(mesh), steps=steps)
    assert timed.seconds == pytest.approx(computed.seconds, rel=1e-9)
    assert timed.traffic.bytes == computed.traffic.bytes and timed.traffic.messages == computed.traffic.messages
    assert timed.samples == computed.samples and not timed.weights


@pytest.mark.parametrize("mesh", ["shard=2, zero=3", "replica=2, stage=2"])
def test_short_batches_at_the_end_of_a_pass(mesh: str) -> None:
    given = task("gpt", data=tuple(part[:25] for part in WORDS), batch_size=4)  # 13 and 12 samples
    computed, timed = both(given, f"allreduce with mesh({mesh})", size(mesh), steps=None, epochs=2)
    assert timed.seconds == pytest.approx(computed.seconds, rel=1e-9)
    assert timed.traffic.bytes == computed.traffic.bytes and timed.samples == computed.samples


@pytest.mark.parametrize("mesh", ["shard=2", "stage=2, timetable=plain", "tensor=2"])
def test_clipping_sends_norms(mesh: str) -> None:
    given = task("mlp", clip_norm=1.0)
    computed, timed = both(given, f"local_sgd with mesh({mesh})", 2)
    assert timed.seconds == pytest.approx(computed.seconds, rel=1e-9)
    assert timed.traffic.messages == computed.traffic.messages


@pytest.mark.parametrize(
    "mesh", ["expert=2", pytest.param("stage=2, expert=2, microbatches=2", marks=pytest.mark.full)]
)
def test_experts_get_the_tokens_that_the_first_steps_gave_them(mesh: str) -> None:
    given = expert_task("points", optimizer=lambda p: torch.optim.SGD(p, lr=0.0))
    computed, timed = both(given, f"allreduce with mesh({mesh})", size(mesh), cluster=covey.simulate.from_flags())
    assert timed.seconds == pytest.approx(computed.seconds, rel=0.02)
    assert timed.traffic.bytes == pytest.approx(computed.traffic.bytes, rel=0.1)


class Counted(nn.Module):
    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        Counted.calls += 1
        return self.last(torch.tanh(self.first(x.flatten(1))))


def test_what_is_computed_does_not_depend_on_the_length_or_the_number_of_replicas() -> None:
    calls = []
    for replicas, steps in ((1, 3), (4, 60)):
        Counted.calls = 0
        spec = f"allreduce with mesh(replica={replicas}, shard=2)"
        run(task("mlp", model=lambda: Counted().double()), spec, 2 * replicas, steps=steps, timing_only=True)
        calls.append(Counted.calls)
    assert calls[0] == calls[1] > 0


def test_more_workers_than_the_data_has_samples() -> None:
    given = task("mlp", data=tuple(part[:5] for part in IMAGES))
    timed = run(given, "allreduce with mesh(replica=8, stage=2, tensor=2)", 32, steps=3, timing_only=True)
    assert timed.samples == 8 * 6 * 3


def test_covey_scale_times_cut_models() -> None:
    found = scale(task("mlp"), ["allreduce with mesh(stage=2)"], [2, 8], WORLD, batch=6)
    slow, fast = found.points
    assert not slow.failure and not fast.failure
    assert fast.speed_up > slow.speed_up > 0
