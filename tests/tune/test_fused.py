"""Trials in one pass have the values of separate ones; what cannot be fused is trained alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import covey
from covey.task.file import import_file
from covey.tune.fusable import Fusable, fusable
from covey.tune.fused import FusedTraining, train_together
from covey.tune.recorded import without_onednn
from covey.tune.segment import Segment, train_segment

FILE = """
import covey, torch
from torch import nn
x = torch.randn(256, 8, generator=torch.Generator().manual_seed(1))
y = (x[:, 0] > 0).long()
def doubled(out, y):
    return 2 * nn.functional.cross_entropy(out, y)
def task(rate=0.1, width=8, momentum=0.9, decay=0.0, adam=False, dropout=0.0, dampening=0.0, double=False):
    layers = [nn.Dropout(dropout)] if dropout else []
    kind = torch.optim.Adam if adam else torch.optim.SGD
    more = {} if adam else {"momentum": momentum, "weight_decay": decay, "dampening": dampening}
    return covey.Task(
        model=lambda: nn.Sequential(nn.Linear(8, width), nn.ReLU(), *layers, nn.Linear(width, 2)), data=(x, y),
        optimizer=lambda params: kind(params, lr=rate, **more),
        loss=doubled if double else nn.functional.cross_entropy, batch_size=24, evaluate=covey.accuracy((x, y)),
    )
"""


def segments(folder: Path, *tasks: str, until: int = 2, **more: object) -> list[Segment]:
    file = folder / "task.py"
    file.write_text(FILE)
    found = []
    for number, one in enumerate(tasks):
        (folder / str(number)).mkdir(exist_ok=True)
        found.append(Segment(
            trial=number, task=f"{file}:task({one})", strategy="bsp", metric="accuracy",
            folder=str(folder / str(number)), epochs=4, until=until, fuse="always", **more,
        ))  # fmt: skip
    return found


TASKS = (
    "rate=0.1", "rate=0.01, momentum=0.5", "rate=0.03, decay=0.01", "rate=0.05, momentum=0.0",
    "rate=0.1, dampening=0.5", "rate=0.05, momentum=0.0, dampening=0.5",
)  # fmt: skip


def test_fused_values_are_those_of_separate_runs(tmp_path: Path) -> None:
    """Also after a pause, with other momenta and decays, and with a batch that is not full.

    SGD does not dampen its first step, nor any where there is no momentum.
    """
    together = segments(tmp_path, *TASKS)
    module = import_file(tmp_path / "task.py")
    first = list(train_together(together, module, "task"))
    assert [one.fused for one in first] == [None] * len(TASKS) and all(not one.failure for one in first)
    later = segments(tmp_path, *TASKS, until=4, resumes=True, begun=2)
    done = {one.trial: one for one in train_together(later, module, "task")}
    for number, segment in enumerate(segments(tmp_path, *TASKS, until=4)):
        fused = load_file(tmp_path / str(number) / "model.safetensors")
        alone = tmp_path / f"alone{number}"
        alone.mkdir()
        found = train_segment(Segment(**{**_fields(segment), "folder": str(alone)}))
        separate = load_file(alone / "model.safetensors")
        far = max(float((fused[name] - separate[name]).abs().max()) for name in separate)
        assert far <= 1e-6, (number, far)
        assert found.curve[-1] == done[number].curve[-1] and found.samples == done[number].samples


def _fields(segment: Segment) -> dict[str, object]:
    return {name: getattr(segment, name) for name in segment.__struct_fields__}


@pytest.mark.parametrize("one", ["adam=true", "dropout=0.5"])
def test_what_one_pass_would_compute_otherwise_is_trained_alone(tmp_path: Path, one: str) -> None:
    from covey.task import load_task

    (segment,) = segments(tmp_path, one)
    assert fusable(segment, load_task(segment.task)) is None
    three = segments(tmp_path, one, "rate=0.1", "rate=0.2")
    outcomes = list(train_together(three, import_file(tmp_path / "task.py"), "task"))
    assert sorted(outcome.trial for outcome in outcomes) == [0, 1, 2] and not any(o.failure for o in outcomes)
    assert not (tmp_path / "0" / "kept" / "fused.safetensors").exists()
    assert (tmp_path / "1" / "kept" / "fused.safetensors").exists()


def test_other_strategies_and_workers_are_trained_alone(tmp_path: Path) -> None:
    from covey.task import load_task

    (segment,) = segments(tmp_path, "rate=0.1")
    task = load_task(segment.task)
    assert fusable(segment, task) is not None
    for change in ({"strategy": "easgd"}, {"strategy": "bsp + int8"}, {"workers": 2}, {"resumes": True}):
        assert fusable(Segment(**{**_fields(segment), **change}), task) is None


def test_other_shapes_and_losses_are_other_groups(tmp_path: Path) -> None:
    from covey.task import load_task

    asked = segments(tmp_path, "width=8", "width=16", "rate=0.5", "double=true")
    parts = [fusable(one, load_task(one.task)) for one in asked]
    assert isinstance(parts[0], Fusable) and [parts[0].like(one) for one in parts[1:]] == [False, True, False]


def test_measuring_leaves_the_models_as_they_were(tmp_path: Path) -> None:
    from covey.task import load_task

    group = [fusable(one, load_task(one.task)) for one in segments(tmp_path, *TASKS)]
    training = FusedTraining(group)
    before = {name: value.clone() for name, value in training.params.items()}
    weights = [p.detach().clone() for p in group[0].model.parameters()]
    assert training.gain() > 0
    assert all(torch.equal(training.params[name], value) for name, value in before.items()) and not training.momenta
    assert all(torch.equal(now, was) for now, was in zip(group[0].model.parameters(), weights, strict=True))


def test_a_diverged_trial_leaves_the_others_alone(tmp_path: Path) -> None:
    found = {one.trial: one for one in train_together(
        segments(tmp_path, "rate=1e30", "rate=0.05"), import_file_of(tmp_path), "task"
    )}  # fmt: skip
    assert found[0].failure.startswith("diverged") and not found[1].failure and found[1].curve[-1][1] > 0.7


def test_a_trial_that_cannot_be_scored_leaves_the_others_alone(tmp_path: Path) -> None:
    """Some metrics raise over weights that are not finite."""
    asked = segments(tmp_path, "rate=1e30", "rate=0.05")
    module = import_file_of(tmp_path)
    module.covey = SimpleNamespace(Task=covey.Task, accuracy=accuracy_of_finite)
    found = {one.trial: one for one in train_together(asked, module, "task")}
    assert "diverged" in found[0].failure and not found[1].failure and len(found[1].curve) == 2
    module.covey.accuracy = lambda data: unscored
    found = {one.trial: one for one in train_together(segments(tmp_path, "rate=0.1", "rate=0.05"), module, "task")}
    assert "ValueError: no score" in found[0].failure and "ValueError: no score" in found[1].failure


def accuracy_of_finite(data: tuple[Tensor, Tensor]) -> Callable[[nn.Module], dict[str, float]]:
    def scored(model: nn.Module) -> dict[str, float]:
        if not all(bool(p.isfinite().all()) for p in model.parameters()):
            raise ValueError("not finite")
        return covey.accuracy(data)(model)

    return scored


def unscored(model: nn.Module) -> dict[str, float]:
    raise ValueError("no score")


def import_file_of(folder: Path):  # type: ignore[no-untyped-def]
    (folder / "task.py").write_text(FILE)
    return import_file(folder / "task.py")


@pytest.mark.parametrize(("layer", "used"), [(nn.Linear(4, 4), False), (nn.Conv1d(1, 1, 1), True)])
def test_blas_multiplies_meanwhile_where_nothing_convolves(layer: nn.Module, used: bool) -> None:
    with without_onednn(nn.Sequential(layer)):
        assert torch._C._get_mkldnn_enabled() is used
    assert torch._C._get_mkldnn_enabled()
