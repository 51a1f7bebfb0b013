"""What cannot work is refused before anything starts."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import torch

from covey import catalog
from covey.central.layouts import LAYOUTS
from covey.errors import PlanError
from covey.exchange.codecs.by_name import CODECS, WRAPPERS
from covey.run import fit, launch
from covey.run.options import options
from covey.run.request import facts, request
from tests.worlds import mlp


class Layerwise(torch.optim.SGD):
    """Looks at whole parameters, or says so."""

    elementwise = False


CHOOSERS = ["a_bsp", "gradient_coding", "halp", "specsync", "sandblaster", "strads"]


@pytest.mark.parametrize("name", CHOOSERS)
def test_a_loop_of_ones_own_cannot_choose_samples(name: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(PlanError, match=f"{name} chooses the samples of each gradient.*covey run a Task.*such as bsp"):
        launch(script, [], name, 2)
    assert not (tmp_path / "ran").exists(), "no process has begun"


def test_who_chooses_samples_says_so() -> None:
    """Exactly those that ask a replica for the gradient of a batch of their choice."""

    def chooses(name: str) -> bool:
        return "gradient_of" in inspect.getsource(inspect.getmodule(catalog.STRATEGIES[name].settings) or inspect)

    assert [name for name in catalog.names() if chooses(name)] == [
        name for name in catalog.names() if catalog.resolve(name, 4).terms.chooses
    ]


def test_an_optimizer_that_cannot_work_is_refused_before_a_process_starts() -> None:
    """A request is everything checked, and nothing started."""
    whole: Any = lambda pairs: Layerwise(pairs, lr=0.01)  # noqa: E731
    with pytest.raises(PlanError, match="use an element-wise optimizer"):
        request(mlp(whole), "bigdl", 2, options({"steps": 2}))
    request(mlp(whole), "bigdl", 1, options({"steps": 2}))
    with pytest.raises(PlanError, match="momentum=drop to train without"):
        request("examples/digits.py", "hogwild", 2, options({"steps": 2}))


def test_a_target_whose_direction_nobody_said_is_refused() -> None:
    scored: Any = {"evaluate": lambda model: {"perplexity": 1_378_851.0}}
    with pytest.raises(PlanError, match=r"'perplexity<=20' or .*better=\{'perplexity': 'lower'\}"):
        request(mlp(**scored), "bsp", 2, options({"until": "perplexity:20"}))
    declared = request(mlp(**scored, better={"perplexity": "lower"}), "bsp", 2, options({"until": "perplexity:20"}))
    assert declared.target is not None and not declared.target.reached(1_378_851.0)
    assert facts(declared, "local").settings["until"] == "perplexity<=20.0"


def test_a_cut_model_accumulates_no_batches() -> None:
    with pytest.raises(PlanError, match=r"use batch_size=16 and mesh\(microbatches=2\)"):
        request(mlp(accumulate=2), "allreduce with mesh(stage=2)", 2, options({"steps": 2}))


def test_momentum_is_corrected_only_where_there_is_one() -> None:
    adam: Any = lambda pairs: torch.optim.Adam(pairs, lr=0.01)  # noqa: E731
    with pytest.raises(PlanError, match="Adam has no momentum to set"):
        request(mlp(adam), "asynchronous(momentum=0.9)", 2, options({"steps": 2}))
    request(mlp(adam), "asynchronous", 2, options({"steps": 2}))


# -- settings out of their range --------------------------------------------------------------------------------------

ZERO = {
    ("bounded_delay", "delay"),
    ("ssp", "bound"), ("dssp", "low"), ("dssp", "extra"), ("petuum", "bound"), ("essp", "bound"), ("sgp", "overlap"),
    ("malt", "bound"), ("gradient_coding", "stragglers"), ("local_sgd", "after"), ("proxies", "bound"),
    ("asynchronous", "momentum"), ("dc_asgd", "strength"), ("specsync", "abort_time"),
    ("downpour", "threshold"), ("downpour", "l1"), ("downpour", "slack"), ("downpour", "skip"),
    ("easgd", "momentum"), ("hogwild++", "tolerance"), ("bmuf", "momentum"), ("diloco", "momentum"),
    ("crossbow", "momentum"), ("eamsgd", "momentum"), ("mpca", "rho"), ("bosen", "bound"),
    ("strads", "l1"),
    ("p3", "slice"), ("bytescheduler", "partition"), ("bytescheduler", "credit"), ("downpour", "warm"),
    ("allreduce", "local"), ("local_sgd", "local"), ("bigdl", "drop"), ("bigdl", "most"), ("bigdl", "warmup"),
    ("allreduce", "bucket"), ("fixed16", "fraction"), ("int8", "block"), ("qsgd", "bucket"), ("terngrad", "clip"),
    ("sbc", "momentum"), ("dgc", "momentum"), ("dgc", "warmup"), ("powersgd", "saving"), ("powersgd", "dense"),
    ("momentum_correction", "momentum"), ("proteus", "stage2"),
}  # fmt: skip
"""Settings that may be 0. All others must be more, and none but a momentum may be less."""

OWNERS = {name: (name, entry.settings) for name, entry in catalog.STRATEGIES.items()}
OWNERS |= {name: (f"bsp over {name}", owner) for name, owner in LAYOUTS.items()}
OWNERS |= {name: (f"bsp + {name}", owner) for name, owner in CODECS.items()}
OWNERS |= {name: (f"bsp + fp16 + {name}", owner) for name, owner in WRAPPERS.items()}


def numeric() -> Iterator[tuple[str, str, type]]:
    """Every setting that is a number, of every strategy, layout of servers, codec, and what goes around one."""
    for name, (_, owner) in OWNERS.items():
        hints = get_type_hints(owner)
        for field in fields(owner):
            kinds = get_args(hints[field.name]) or (hints[field.name],)
            if int in kinds or float in kinds:
                yield name, field.name, float if float in kinds else int


def refused(name: str, setting: str, value: float) -> bool:
    spec = OWNERS[name][0]
    try:
        catalog.resolve(f"{spec}({setting}={value})", 4)
    except PlanError as error:
        return setting in str(error) or name in str(error)
    return False


@pytest.mark.parametrize(("name", "setting", "kind"), list(numeric()))
def test_a_setting_just_outside_its_range_is_refused(name: str, setting: str, kind: type) -> None:
    below = -1 if kind is int or (name, setting) == ("asynchronous", "momentum") else -1e-6
    assert refused(name, setting, below)
    assert refused(name, setting, kind(0)) == ((name, setting) not in ZERO)


@pytest.mark.parametrize(
    ("name", "setting", "most", "more"),
    [
        ("quorum", "size", 4, 5), ("softsync", "groups", 4, 5), ("gradient_coding", "stragglers", 3, 4),
        ("asynchronous", "epoch", 1, 1.000001), ("asynchronous", "momentum", 0.999999, 1), ("downpour", "skip", 0.9, 1),
        ("gosgd", "probability", 1, 1.000001), ("dogwild", "machines", 4, 5), ("dogwild", "mix", 1, 1.000001),
        ("hogwild++", "clusters", 4, 5), ("bmuf", "momentum", 0.999999, 1), ("diloco", "momentum", 0.999999, 1),
        ("crossbow", "momentum", 0.999999, 1), ("eamsgd", "momentum", 0.999999, 1), ("easgd", "pull", 0.399, 0.4),
        ("tree_easgd", "pull", 1, 1.000001), ("mpca", "mix", 1, 1.000001), ("proxies", "groups", 4, 5),
        ("topk", "density", 1, 1.000001), ("mstopk", "density", 1, 1.000001), ("randomk", "density", 1, 1.000001),
        ("sbc", "density", 1, 1.000001), ("sbc", "momentum", 0.999999, 1), ("dgc", "density", 1, 1.000001),
        ("dgc", "momentum", 0.999999, 1),
        ("dorefa", "bits", 8, 9), ("sketch", "bits", 8, 9), ("sketch", "keep", 1, 1.000001),
        ("qsgd", "levels", 32767, 32768), ("fixed16", "fraction", 30, 31),
        ("entropy", "high", 1, 1.000001), ("entropy", "low", 0.05, 0.051), ("strom", "high", 1, 1.000001),
        ("momentum_correction", "momentum", 0.999999, 1),
    ],
)  # fmt: skip
def test_where_a_range_has_an_upper_end(name: str, setting: str, most: float, more: float) -> None:
    assert not refused(name, setting, most) and refused(name, setting, more)


def test_a_rank_of_torchrun_does_not_start_a_run_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(PlanError, match="rank 1 of 2 of torchrun.*add engine=.torchrun"):
        fit(mlp(), "bsp", 2, steps=1)
