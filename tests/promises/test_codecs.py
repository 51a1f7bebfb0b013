"""What every strategy keeps with every codec: a few of both in CI, the whole matrix in full."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import covey
from covey import catalog
from covey.errors import PlanError
from covey.exchange.codecs.by_name import CODECS
from covey.observe.result import Result
from covey.observe.trace import Trace
from covey.simulate import Cluster, Seconds
from tests.promises.specs import SPECS, TRAINED_AS, workable
from tests.promises.test_promises import DIGITS, UNEVEN, assert_all_ended
from tests.worlds import Recorder, mlp

QUICK = {
    "bsp + topk + pull", "allreduce + twobit", "local_sgd + int8", "dpsgd + topk",
}  # fmt: skip


def every() -> Iterator[Any]:
    """Every strategy with every codec that it takes, and what servers give back encoded as well."""
    for name, entry in catalog.STRATEGIES.items():
        for codec in CODECS if entry.codecs else ():
            for pull in ("", " + pull") if entry.codecs == "pushes" else ("",):
                spec = f"{SPECS.get(name, name)} + {codec}{pull}"
                if not refused(spec):
                    yield pytest.param(name, spec, id=spec, marks=() if spec in QUICK else pytest.mark.full)


def refused(spec: str) -> bool:
    try:
        catalog.resolve(spec, 4)
    except PlanError:
        return True
    return False


@pytest.mark.parametrize(("name", "spec"), every())
def test_ends_finite_and_the_same_for_the_same_seed(name: str, spec: str) -> None:
    def once() -> tuple[str, Result, Recorder]:
        trace, log = Trace(), Recorder()
        cluster = Cluster(compute=Seconds(0.01), jitter=0.3)
        result = covey.fit(
            mlp(samples=101), spec, workable(name, 3), engine="simulated", steps=7, cluster=cluster,
            instruments=[trace, log],
        )  # fmt: skip
        return trace.text(), result, log

    (first, result, log), (second, again, _) = once(), once()
    assert result.stopped == "budget" and all(torch.isfinite(value).all() for value in result.weights.values())
    assert first == second and result.to_json() == again.to_json()
    assert_all_ended(log, result)


def test_every_strategy_that_takes_codecs_takes_the_common_ones() -> None:
    takers = [name for name, entry in catalog.STRATEGIES.items() if entry.codecs]
    assert len(takers) > 30
    for name in takers:
        for codec in ("fp16", "int8", "topk", "onebit", "powersgd"):
            assert not refused(f"{SPECS.get(name, name)} + {codec}"), (name, codec)


TRAINED = ["bsp + topk(density=0.1) + pull", "allreduce + onebit", "local_sgd + topk(density=0.1)"]


@pytest.mark.parametrize(
    "spec",
    [
        *(pytest.param(spec, marks=() if spec == TRAINED[0] else pytest.mark.full) for spec in TRAINED),
        *(
            pytest.param(f"{TRAINED_AS.get(name, name)} + {codec}", marks=pytest.mark.full)
            for name, entry in catalog.STRATEGIES.items()
            for codec in ("int8", "topk(density=0.1)", "onebit")
            if entry.codecs
        ),
    ],
)
def test_trains_digits_to_the_target(spec: str) -> None:
    result = covey.fit(DIGITS, spec, 4, engine="simulated", cluster=UNEVEN, until="accuracy>=0.95", epochs=30)
    assert result.stopped == "target"


SIZED = [
    "bsp + int8 + pull", "allreduce + fp16", "allreduce + twobit", "allreduce + int8", "local_sgd(period=2) + int8",
    "dpsgd + int8", "p3 + int8 + pull", "easgd(period=2) + fp16", "gosgd(probability=1) + onebit", "sliced + int8",
    "sliced + int8 + pull", "ako + int8", "petuum + int8 + pull", "mpca + fp16", "sparknet(period=2) + onebit",
]  # fmt: skip


@pytest.mark.parametrize("spec", [pytest.param(s, marks=() if s in SIZED[:3] else pytest.mark.full) for s in SIZED])
def test_runs_that_are_only_timed_send_as_much(spec: str) -> None:
    """Of codecs whose wires are of one length; how often models gossip may hang on how long that takes."""

    def sent(**given: Any) -> int:
        cluster = Cluster(compute=Seconds(0.01))
        return covey.fit(DIGITS, spec, 3, engine="simulated", steps=4, cluster=cluster, **given).traffic.bytes

    assert sent(timing_only=True) == pytest.approx(sent(), rel=0.01)


@pytest.mark.parametrize("spec", ["bsp", "bsp + topk(density=0.1)"])
def test_runs_that_are_only_timed_have_the_numbers_of_the_models_types(spec: str) -> None:
    """Its layers are in double and single precision."""
    task = mlp(model=lambda: nn.Sequential(nn.Linear(6, 8).double(), Narrow(), nn.Linear(8, 3)))
    timed, trained = (
        covey.fit(task, spec, 3, engine="simulated", steps=2, timing_only=only).traffic.bytes for only in (True, False)
    )
    assert timed == trained


class Narrow(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.float()
