"""What a sealed checkpoint keeps of a model that fits no layout, optimizer or average is refused with its reason."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import covey
from covey.checkpoint import CheckpointDirectory
from covey.checkpoint.blocks import read_index
from covey.checkpoint.files import seal
from covey.checkpoint.record import sealed
from covey.errors import CheckpointError
from covey.model.replica import Replica
from covey.run.changed_plan import scored_by, take_over

SHARDS, WHOLE, EMA = "allreduce with mesh(shard=2)", "allreduce", "ssp(bound=2)"
Damage = Callable[[dict[str, Any], dict[str, Tensor]], object]
"""Changes what worker 0, or server 0, has kept: its replica, and its tensors by name."""


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def task(**more: Any) -> covey.Task:
    data = torch.randn(32, 6, generator=torch.Generator().manual_seed(0)), torch.arange(32) % 3
    return covey.Task(model=model, data=data, optimizer=adam, loss=nn.functional.cross_entropy, batch_size=4, **more)


def fit(strategy: str, **more: Any) -> covey.Result:
    given = task(ema=0.9) if strategy == EMA else task()
    return covey.fit(given, strategy, workers=2, engine="simulated", **more)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Checkpoints of several runs, of which none is changed."""
    found = {}
    for number, strategy in enumerate([SHARDS, WHOLE, f"{WHOLE} + onebit", EMA]):
        found[strategy] = tmp_path_factory.mktemp(f"kept_{number}")
        fit(strategy, steps=3, checkpoint=found[strategy], every="20ms")
    return found


def damaged(source: Path, to: Path, damage: Damage) -> Path:
    """A copy whose newest checkpoint is changed in this way, and sealed again."""
    shutil.copytree(source, to)
    *older, place = CheckpointDirectory(to).all()
    for one in older:
        shutil.rmtree(one)
    who = "server-0" if (place / "server-0.json").exists() else "worker-0"
    tree, tensors = json.loads((place / f"{who}.json").read_text()), load_file(place / f"{who}.safetensors")
    tree["blocks"] = []  # as in covey.checkpoint/2: nothing says where numbers belong but the state itself
    damage(tree, tensors)
    (place / f"{who}.json").write_text(json.dumps(tree))
    save_file(tensors, place / f"{who}.safetensors")
    record = json.loads((place / "run.json").read_text())
    del record["seal"]
    record["files"] = {file.name: seal(file) for file in place.iterdir() if file.name != "run.json"}
    record = json.loads(json.dumps(record))
    (place / "run.json").write_text(json.dumps({**record, "seal": sealed(record)}))
    return to


def field(tree: dict[str, Any], *names: Any) -> list[Any]:
    """The pair of a name and its value in dicts inside each other, as JSON has them."""
    found: Any = tree["replica"]
    for name in names[:-1]:
        found = next(value for key, value in found["$dict"] if key == name) if "$dict" in found else found[name]
    return next(pair for pair in found["$dict"] if pair[0] == names[-1])  # type: ignore[no-any-return]


def replaced(*names: Any, by: Any) -> Damage:
    return lambda tree, tensors: field(tree, *names).__setitem__(1, by)


def renamed(*names: Any) -> Damage:
    return lambda tree, tensors: field(tree, *names).__setitem__(0, "x")


def tensor(name: str, value: Tensor) -> Damage:
    def damage(tree: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        assert name in tensors
        tensors[name] = value

    return damage


GROUP = "optimizer", "param_groups", 0
MOMENT = "replica/optimizer/state/0/exp_avg"
NO_LAYOUT: dict[str, Damage] = {
    "runs that are no tensors": replaced("runs", "0.weight", by=[]),
    "no runs in a tensor": tensor("replica/runs/0.weight", torch.empty(0, 2, dtype=torch.int64)),
    "buffers that are a number": replaced("others", by=0),
    "no settings": renamed("optimizer", "param_groups"),
    "parameters that are a number": replaced(*GROUP, "params", by=1 << 62),
    "one parameter too few": replaced(*GROUP, "params", by=[0]),
    "names of nothing": replaced(*GROUP, "param_names", by=["a", "b", "c", "d"]),
    "half of a moment": tensor(MOMENT, torch.zeros(3)),
    "moments of whole numbers": tensor(MOMENT, torch.zeros(4, 6, dtype=torch.int32)),
    "a layout of no numbers": replaced("layout", by=["0.weight (9, 9999999999999) float32"]),
    "a layout that is no text": replaced("layout", by=[1]),
}  # fmt: skip


@pytest.mark.parametrize("damage", NO_LAYOUT.values(), ids=NO_LAYOUT)
def test_what_cannot_be_divided_anew_is_refused(kept: Mapping[str, Path], tmp_path: Path, damage: Damage) -> None:
    with pytest.raises(CheckpointError) as refused:
        fit(WHOLE, steps=4, resume=damaged(kept[SHARDS], tmp_path / "bad", damage))
    assert len(str(refused.value)) < 700


NO_OPTIMIZER: dict[str, Damage] = {
    "no learning rate": renamed(*GROUP, "lr"),
    "a learning rate in words": replaced(*GROUP, "lr", by="fast"),
    "one beta": replaced(*GROUP, "betas", by={"$tuple": [0.9]}),
    "betas in words": replaced(*GROUP, "betas", by={"$tuple": ["a", "b"]}),
    "a moment of another shape": tensor(MOMENT, torch.zeros(6, 8)),
    "a moment in one number": tensor(MOMENT, torch.zeros(1)),
    "steps for each number": tensor("replica/optimizer/state/0/step", torch.zeros(8)),
    "a state without its moment": renamed("optimizer", "state", 0, "exp_avg"),
    "a moment in words": replaced("optimizer", "state", 0, "exp_avg", by="large"),
    "negative samples": replaced("seen", by=-1),
    "samples in a message": replaced("seen", by={"$dict": []}),
}  # fmt: skip


@pytest.mark.parametrize("damage", NO_OPTIMIZER.values(), ids=NO_OPTIMIZER)
def test_a_state_with_which_no_step_can_be_done_is_refused(
    kept: Mapping[str, Path], tmp_path: Path, damage: Damage
) -> None:
    """It is no mistake in the optimizer of the task, which a failing step would blame."""
    with pytest.raises(CheckpointError):
        fit(WHOLE, steps=4, resume=damaged(kept[WHOLE], tmp_path / "bad", damage))


def test_an_average_of_another_model_is_refused(kept: Mapping[str, Path], tmp_path: Path) -> None:
    place = damaged(kept[EMA], tmp_path / "bad", tensor("replica/ema/params/0", torch.zeros(82)))
    with pytest.raises(CheckpointError, match="the average of the weights has other numbers than the model"):
        fit(EMA, steps=4, resume=place)


RESIDUALS: dict[str, Any] = {"three of two": [1, 2, 3], "a tuple of three": {"$tuple": [1, 2, 3]}, "words": "x"}


@pytest.mark.parametrize("value", RESIDUALS.values(), ids=RESIDUALS)
def test_what_no_codec_remembers_is_refused(kept: Mapping[str, Path], tmp_path: Path, value: Any) -> None:
    def damage(tree: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        next(pair for pair in tree["memories"]["$dict"] if pair[0].startswith("codec"))[1] = value

    with pytest.raises(CheckpointError, match="is not what this program remembers"):
        fit(f"{WHOLE} + onebit", steps=4, resume=damaged(kept[f"{WHOLE} + onebit"], tmp_path / "bad", damage))


NO_MODEL: dict[str, Damage] = {
    "a layout of no numbers": replaced("layout", by=["0.weight (9, 9999999999) float32"]),
    "a layout that is no text": replaced("layout", by=[1]),
    "buffers that are a number": replaced("others", by=0),
    "a weight that is none": lambda tree, tensors: tree["replica"]["$dict"].append(["weight", math.nan]),
    "no optimizer": replaced("optimizer", by=None),
    "members of nothing": lambda tree, tensors: tree["replica"]["$dict"].append(["members", [["a", 1]]]),
}  # fmt: skip


@pytest.mark.parametrize("damage", NO_MODEL.values(), ids=NO_MODEL)
def test_what_makes_no_model_by_name_is_refused_and_takes_no_memory(
    kept: Mapping[str, Path], tmp_path: Path, damage: Damage
) -> None:
    place, run = CheckpointDirectory(damaged(kept[WHOLE], tmp_path / "bad", damage)).newest()
    with pytest.raises(CheckpointError, match="cannot be put together"):
        take_over(place, run, scored_by(run, place), Replica(model(), adam))


def test_an_untouched_copy_goes_on(kept: Mapping[str, Path], tmp_path: Path) -> None:
    for number, (before, now) in enumerate([(SHARDS, WHOLE), (WHOLE, WHOLE), (EMA, EMA)]):
        place = damaged(kept[before], tmp_path / f"good {number}", lambda tree, tensors: None)
        assert fit(now, steps=4, resume=place).updates


def test_a_slice_that_reaches_beyond_its_tensor_is_refused() -> None:
    """Three numbers from the fourth of six on are there, from the fifth on they are not."""
    part = {"kind": "parameter", "name": "a", "dtype": "int16", "shape": [2, 3], "offset": 0, "size": 6}
    assert [block.first for block in read_index([{**part, "first": 3}], 6)] == [3]
    with pytest.raises(ValueError, match="the block 'a' has 6 bytes, which its shape does not have"):
        read_index([{**part, "first": 4}], 6)
