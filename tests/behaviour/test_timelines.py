"""What each strategy does in its first steps, as pictures that a person can check."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from covey import catalog
from tests.behaviour.timelines import KEY, picture
from tests.conftest import Golden
from tests.worlds import mlp, quadratic, run, slowed

CENTRAL = [
    "bsp", "ssp(bound=1)", "bounded_delay", "asynchronous", "dssp(low=0, extra=2)", "quorum(size=2)", "softsync",
    "dc_asgd",
    "petuum(bound=1)", "essp(bound=1)", "bosen(bound=1, row=50)", "vap(bound=0.01)", "value_bound(bound=0.1)",
    "a_bsp(chunks=2)", "specsync(parts=2, abort_time=1)", "gradient_coding", "downpour(push=3, fetch=2)",
    "sandblaster(batch=2)", "sliced", "bigdl", "caffeonspark", "p3(slice=50)", "tictac",
    "bytescheduler(partition=400, credit=400)", "bytescheduler(partition=400, credit=400, exchange=allreduce)",
    "staggered", "firecaffe", "allreduce", "allreduce(pattern=halving)", "allreduce(pattern=hierarchical)", "poseidon",
]  # fmt: skip
DECENTRAL = [
    "local_sgd(period=2)", "easgd(period=2)", "eamsgd(period=2)", "tree_easgd(fanout=2, up=1, down=2)",
    "sparknet(period=2)", "bmuf(period=2)", "diloco(period=2)", "crossbow", "butterfly", "mpca",
    "gosgd(probability=0.9)", "dpsgd", "adpsgd", "sgp", "malt", "malt(bound=1)", "ako", "hogwild",
    "hogwild++(hold=2)", "dogwild",
]  # fmt: skip
LAYERED = ["outer_products", "one_weird_trick", "one_weird_trick(scheme=b)", "one_weird_trick(scheme=c)"]


@pytest.mark.parametrize(("room", "specs"), [("central", CENTRAL), ("decentral", DECENTRAL)])
def test_timelines(golden: Golden, room: str, specs: list[str]) -> None:
    """Weights of 1 kB, which take 1 ms; a batch takes 10 ms, and worker 1 is twice as slow."""
    pictures = [f"{KEY}\n"]
    for spec in specs:
        workers = 4 if spec == "butterfly" else 3
        world = run(quadratic(size=125, samples=120), spec, workers, steps=3, cluster=slowed(w1=2))
        pictures.append(picture(spec, world))
    golden(f"timelines_{room}.txt", "\n".join(pictures))


def test_timelines_of_layers(golden: Golden) -> None:
    """Of strategies that look at layers: a convolution, which gives 1 kB a batch, and two fully connected layers."""
    x = torch.randn(120, 1, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    task = mlp(
        data=(x, (x.mean((1, 2, 3)) > 0).long()), batch_size=4,
        model=lambda: nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(32, 24), nn.Tanh(), nn.Linear(24, 3)
        ).double(),
    )  # fmt: skip
    pictures = [picture(spec, run(task, spec, 3, steps=2, cluster=slowed(w1=2))) for spec in LAYERED]
    golden("timelines_layers.txt", "\n".join([f"{KEY}\n", *pictures]))


def test_every_name_has_its_picture() -> None:
    assert {spec.partition("(")[0] for spec in (*CENTRAL, *DECENTRAL, *LAYERED)} == set(catalog.names())
