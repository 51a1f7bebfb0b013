"""What a run draws is its own: whatever others draw from torch's and Python's global generators changes nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from covey import catalog
from covey.engines.virtual.computing import Computing
from covey.engines.virtual.engine import VirtualEngine
from covey.errors import PlanError
from covey.exchange.codecs.by_name import CODECS
from covey.task import Task
from tests.promises.specs import DIVIDING, SPECS, workable
from tests.worlds import cloud, run, sgd


def dropping() -> nn.Module:
    layers = [nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.4), nn.Linear(12, 8), nn.Dropout(0.4), nn.Linear(8, 3)]
    return nn.Sequential(*layers).double()


@contextmanager
def scrambled(seed: int) -> Iterator[None]:
    """Others draw whenever a program goes on, and before each piece of work begins."""
    strays = random.Random(seed)

    def stray(method: Callable[..., Any]) -> Callable[..., Any]:
        def drawing(*given: Any) -> Any:
            number = strays.getrandbits(32)
            torch.default_generator.manual_seed(number)
            random.seed(number)
            numpy.random.seed(number)
            return method(*given)

        return drawing

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VirtualEngine, "_advance", stray(VirtualEngine._advance))
        patch.setattr(Computing, "_do", stray(Computing._do))
        yield


CODED = [f"bsp + {codec}" for codec in CODECS] + [f"allreduce + {codec}" for codec in CODECS]
PLAIN = [SPECS.get(name, name) for name in catalog.for_any_model() if name not in DIVIDING]
MESHES = ["bsp with mesh(stage=2)", "allreduce with mesh(stage=2, timetable=pipedream)"]
TRICKS = ["one_weird_trick", "one_weird_trick(scheme=b)", "one_weird_trick(scheme=c, variable=true)"]


QUICK = {"bsp", "easgd", "gosgd", "specsync", "bsp + qsgd", "bsp + randomk", *MESHES, *TRICKS}


@pytest.mark.parametrize(
    "spec",
    [pytest.param(s, marks=() if s in QUICK else pytest.mark.full) for s in [*PLAIN, *CODED, *MESHES, *TRICKS]],
)
def test_what_others_draw_changes_nothing(spec: str) -> None:
    task = Task(
        model=dropping, data=cloud(101), optimizer=sgd(0.05), loss=nn.functional.cross_entropy, batch_size=6
    )  # fmt: skip
    try:
        catalog.resolve(spec, 4)
    except PlanError as error:
        pytest.skip(str(error))
    found = []
    for seed in (1, 2):
        with scrambled(seed):
            found.append(run(task, spec, workable(spec.partition(" ")[0].partition("(")[0], 4), steps=5).scored)
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())
