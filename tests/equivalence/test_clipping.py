"""Gradients are clipped by the norm of the whole gradient: of an update, of a push, or of each worker's own."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import pytest
import torch

from covey import catalog
from covey.errors import PlanError
from covey.message import Address, Message, vectors
from covey.model.replica import Replica
from covey.observe.instruments import Instrument
from covey.run.options import options
from covey.run.request import request
from covey.servers.clipping import Square
from covey.task import Task
from tests.pages.compatibility import OPTIMIZERS
from tests.promises.specs import ALONE_AS, PULLED
from tests.worlds import alone, mlp, quadratic, run, sgd

CLIP = 0.2  # about half of what the gradients of `mlp` measure at first
MOMENTUM = sgd(0.1, momentum=0.9, weight_decay=0.01)

TOGETHER = [
    "bsp", "bsp over servers(count=3)", "bsp over colocated", "allreduce", "poseidon", "firecaffe", "sliced",
    "caffeonspark",
    "gradient_coding", "local_sgd(after=100)", "a_bsp over_servers",
]  # fmt: skip
"""Strategies that make one update of all workers' gradients: its gradient is the one that is clipped."""


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], within: float) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], atol=within, rtol=0)


@pytest.mark.parametrize("strategy", TOGETHER)
def test_four_workers_are_one_that_clips(strategy: str) -> None:
    """As DDP and clip_grad_norm_: the mean over all workers is clipped, by its norm over all servers."""
    task = mlp(MOMENTUM, samples=101, clip_norm=CLIP)
    name, _, several = strategy.partition(" over_")
    given: dict[str, Any] = {"servers": 2} if several else {}
    reference = alone(task, steps=20, batch_size=32)
    assert_same(run(task, name, 4, steps=20, **given).scored, reference, within=1e-9)
    with pytest.raises(AssertionError):  # there was something to clip
        assert_same(alone(mlp(MOMENTUM, samples=101), steps=20, batch_size=32), reference, within=1e-3)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_shards_clip_as_one(optimizer: str) -> None:
    """However the parameters are divided, also where servers hold whole ones: one norm, to the last bits."""
    task = mlp(OPTIMIZERS[optimizer], clip_norm=CLIP)
    one, three = (run(task, "bsp", 4, servers=servers, steps=20) for servers in (1, 3))
    assert_same(one.scored, three.scored, within=1e-12)
    assert not one.log.kinds(Square)
    assert len(three.log.kinds(Square)) == 20 * 3 * 2
    assert {sent.size for sent in three.log.kinds(Square)} == {8}


@pytest.mark.parametrize("name", [name for name in catalog.for_any_model() if name not in PULLED])
def test_one_worker_is_a_plain_loop_that_clips(name: str) -> None:
    task = mlp(MOMENTUM if "hogwild" not in name else sgd(), samples=101, clip_norm=CLIP)
    scored = run(task, ALONE_AS.get(name, name), 1, steps=16).scored
    # BigDL's own wire would round, but there is nobody to send to
    assert_same(scored, alone(task, steps=16, batch_size=8), within=1e-6 if name == "bigdl" else 1e-9)


def clipped(lr: float) -> Task:
    return Task(**{**vars(quadratic(lr=lr)), "clip_norm": CLIP})


class Pushed(Instrument):
    """The norm of what a worker pushes at each step, over all servers, at the moment in which it leaves."""

    def __init__(self) -> None:
        self.squares: dict[tuple[Address, int], float] = defaultdict(float)

    def sent(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
        if type(message).__name__ in ("Push", "Accrued") and sender.role == "worker":
            self.squares[sender, message.step] += vectors(message)[-2].norm() ** 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("strategy", ["asynchronous", "ssp", "dssp", "dc_asgd", "specsync", "downpour(server=task)"])
def test_each_push_is_clipped_by_its_whole_norm(strategy: str) -> None:
    pushed = Pushed()
    run(quadratic(lr=1e-3, samples=64), strategy, 4, servers=3, steps=4, watch=[pushed])
    assert min(pushed.squares.values()) > CLIP**2  # all would be longer
    pushed = Pushed()
    run(clipped(lr=1e-3), strategy, 4, servers=3, steps=4, watch=[pushed])
    assert [math.sqrt(square) for square in pushed.squares.values()] == pytest.approx([CLIP] * 16, rel=1e-4)


class First(Instrument):
    """How far each worker has gone by its first step."""

    def __init__(self) -> None:
        self.replicas: dict[Address, Replica] = {}
        self.moved: dict[int, float] = {}

    def noted(self, at: float, who: Address, kind: str, value: float) -> None:
        if kind == "update" and who.rank not in self.moved:
            self.moved[who.rank] = float((self.replicas[who].flat.parts[0] - 1).norm())


@pytest.mark.parametrize("strategy", ["local_sgd", "bmuf", "diloco", "sparknet", "tree_easgd", "mpca"])
def test_each_worker_clips_its_own(strategy: str) -> None:
    first = First()
    run(clipped(lr=0.5), strategy, 2, steps=2, watch=[first], before=first.replicas.update)
    assert first.moved == pytest.approx({0: 0.5 * CLIP, 1: 0.5 * CLIP}, rel=1e-4)


@pytest.mark.parametrize(
    ("strategy", "servers", "why"),
    [
        ("quorum", 2, "an update may hold other gradients on each server.*use 1 server, or bsp"),
        ("softsync", 2, "use 1 server, or bsp"),
        ("sandblaster", 1, "uses a line search and cannot clip"),
    ],
)
def test_refused_before_anything_starts(strategy: str, servers: int, why: str) -> None:
    with pytest.raises(PlanError, match=why):
        request(mlp(clip_norm=CLIP), strategy, 4, options({"engine": "simulated", "servers": servers}))


@pytest.mark.parametrize("strategy", ["quorum(size=4)", "softsync"])
def test_one_server_clips_what_it_makes_of_several(strategy: str) -> None:
    """Four gradients make one update, which goes as far as the clip allows."""
    scored = run(clipped(lr=0.5), strategy, 4, steps=1).scored["w"]
    assert float((scored - 1).norm()) == pytest.approx(0.5 * CLIP, rel=1e-4)


def test_a_clip_of_nothing_is_refused() -> None:
    with pytest.raises(PlanError, match="clip_norm must be more than 0"):
        mlp(clip_norm=0)
