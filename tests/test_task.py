"""A task checks itself, gives a loss, and is found in a file."""

from __future__ import annotations

import copy
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

import covey
from covey.errors import PlanError
from covey.model.scored import ScoredModel
from covey.scoring import accuracy
from covey.task import Task, load_task
from covey.task.definition import scores

X, Y = torch.randn(10, 4, generator=torch.Generator().manual_seed(0)), torch.arange(10) % 3

FILE = """
import torch
from torch import nn
from covey.task import Task

{before}
task = Task(
    model=lambda: nn.Linear(4, 3),
    data=(torch.zeros(10, 4), torch.zeros(10, dtype=torch.long)),
    optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
    loss=nn.functional.cross_entropy,
    batch_size={batch_size},
)
other = task
number = 7
"""


def make(**changes: Any) -> Task:
    settings: dict[str, Any] = {
        "model": lambda: nn.Linear(4, 3),
        "data": TensorDataset(X, Y),
        "optimizer": lambda params: torch.optim.SGD(params, lr=0.1),
        "loss": nn.functional.cross_entropy,
    }
    return Task(**(settings | changes))


class Growing(Dataset[Any]):
    length = 10

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> Any:
        return X[number], Y[number]


class Shrinking(Dataset[Any]):
    """One sample less each time it is asked."""

    def __init__(self) -> None:
        self.left = 11

    def __len__(self) -> int:
        self.left -= 1
        return self.left

    def __getitem__(self, number: int) -> Any:
        return X[number], Y[number]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": nn.Linear(4, 3)}, r"model=lambda: Linear\(…\)"),
        ({"model": 3}, "model must be a function, not int 3"),
        ({"optimizer": torch.optim.SGD(nn.Linear(1, 1).parameters())}, r"lambda params: torch.optim.SGD\(params, …\)"),
        ({"loss": None}, "neither was given"),
        ({"step": lambda model, batch: batch}, "give either .* both were given"),
        ({"loss": nn.CrossEntropyLoss}, r"loss=CrossEntropyLoss\(\)"),
        ({"loss": "mse"}, "loss must be a function, not str 'mse'"),
        ({"loss": None, "step": 1}, "step must be a function"),
        ({"evaluate": {"accuracy": 1.0}}, "evaluate must be a function, not dict"),
        ({"better": {"perplexity": "less"}}, "'perplexity': 'lower'.*not .'perplexity': 'less'"),
        ({"better": {"accuracy": "higher", "perplexity": "less"}}, "better must say of metrics"),
        ({"better": ["accuracy"]}, "better must say of metrics whether higher or lower is better"),
        ({"rate": 0.5}, "rate must be a function"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1, not 0"),
        ({"batch_size": 1.5}, "batch_size must be a whole number"),
        ({"accumulate": 0}, "accumulate must be a whole number of at least 1, not 0"),
        ({"clip_norm": 0.0}, "clip_norm must be more than 0, not 0.0"),
        ({"ema": 1.0}, "ema must be a number between 0 and 1"),
        ({"loaders": -1}, "loaders must be a whole number of at least 0"),
        ({"data": X}, r"one tensor goes in as \(x,\)"),
        ({"data": {"x": X}}, "not dict"),
        ({"data": iter([1])}, "a stream as a torch IterableDataset"),
        ({"data": (X, Y[:3])}, "same length, not 10 and 3"),
        ({"data": (X, [1, 2])}, "a tuple of tensors, not a tuple of 2"),
        ({"data": ()}, "a tuple of tensors"),
        ({"data": Shrinking()}, r"len\(data\) gave 10, then 9; a data set must keep its length"),
        ({"data": TensorDataset(X[:0])}, "at least one sample"),
    ],
)
def test_a_wrong_task_says_what_would_work(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        make(**changes)


def test_loss_and_step_give_the_same_number() -> None:
    task, model = make(), nn.Linear(4, 3)
    stepping = make(loss=None, step=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]))
    assert task.forward(model, (X, Y)) == stepping.forward(model, [X, Y])
    assert task.forward(model, [X, Y]).requires_grad


@pytest.mark.parametrize(
    ("task", "batch", "message"),
    [
        (make(), X, r"a tensor of shape \(10, 4\); for other batches give step="),
        (make(), (X, Y, Y), "a tuple of 3"),
        (make(loss=nn.CrossEntropyLoss(reduction="none")), (X, Y), r"must give one number.*shape \(10,\)"),
        (make(loss=None, step=lambda model, batch: 1.0), X, r"step\(model, batch\) must give .*not float 1.0"),
    ],
)
def test_forward_explains_a_batch_or_a_loss_that_does_not_fit(task: Task, batch: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        task.forward(nn.Linear(4, 3), batch)


def test_a_task_of_lambdas_travels_by_cloudpickle() -> None:
    task = cloudpickle.loads(cloudpickle.dumps(make(evaluate=accuracy((X, Y)), rate=lambda progress: 1 - progress)))
    model = task.model()
    assert task.forward(model, (X, Y)).item() > 0
    assert set(task.evaluate(model)) == {"accuracy"}
    assert task.rate(0.25) == 0.75


@pytest.mark.parametrize("data", [TensorDataset(X, Y), (X, Y), list(zip(X, Y, strict=True))])
def test_accuracy_counts_right_answers_in_eval_mode_and_leaves_no_trace(data: Any) -> None:
    class Oracle(nn.Module):
        """Right for even samples, and only in eval mode."""

        def __init__(self) -> None:
            super().__init__()
            self.frozen = nn.BatchNorm1d(4).eval()

        def forward(self, x: Tensor) -> Tensor:
            assert not self.training and not torch.is_grad_enabled()
            row = (X[:, None] == x).all(-1).T.long().argmax(1)
            return nn.functional.one_hot((Y[row] + row % 2) % 3, 3)

    model, before = Oracle(), torch.get_rng_state()
    assert accuracy(data, batch_size=3)(model) == {"accuracy": 0.5}
    assert model.training and not model.frozen.training
    assert torch.equal(torch.get_rng_state(), before)


def test_accuracy_over_data_that_changes_its_length_is_refused() -> None:
    data = Growing()
    score = accuracy(data)
    assert score(nn.Linear(4, 3))["accuracy"] <= 1
    data.length = 7
    with pytest.raises(PlanError, match=r"len\(data\) was 10 and is 7 now"):
        score(nn.Linear(4, 3))


def test_accuracy_restores_the_mode_after_an_error() -> None:
    model = nn.Linear(5, 3)
    with pytest.raises(RuntimeError):
        accuracy((X, Y))(model)
    assert model.training


def test_a_function_of_the_users_own_scores_a_model_in_eval_mode() -> None:
    class Judged(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Linear(4, 3), nn.Dropout(0.5), nn.BatchNorm1d(3).eval())

    seen = []

    def evaluate(model: nn.Module) -> dict[str, float]:
        seen.append([model.training, *(part.training for part in model.children())])
        return {"same": float(torch.equal(model(X), model(X))), "gradients": float(torch.is_grad_enabled())}

    model = Judged()
    assert ScoredModel(model, evaluate).measure() == {"same": 1, "gradients": 1}
    assert [part.training for part in (model, *model)] == [True, True, True, False]
    task = Task(
        model=Judged, data=(X, Y), optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        loss=nn.functional.cross_entropy, batch_size=5, evaluate=evaluate,
    )  # fmt: skip
    assert covey.fit(task, "bsp", workers=1, engine="simulated", epochs=2).history[-1]["same"] == 1
    assert len(seen) > 2 and not any(any(modes) for modes in seen)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", sys.path.copy())
    path = tmp_path / "a folder" / "train.py"
    path.parent.mkdir()
    path.write_text(FILE.format(before="", batch_size=8))
    return path


def test_a_task_is_found_by_its_name(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_task(str(file)) is not load_task(f"{file}:other")
    monkeypatch.chdir(file.parent)
    assert load_task("train.py:task").batch_size == 8


def test_a_task_file_is_a_module_with_its_folder_on_the_path(file: Path) -> None:
    (file.parent / "neighbour_of_train.py").write_text("size = 5\n")
    (file.parent / "late_neighbour_of_train.py").write_text("factor = 0.5\n")
    before = "from neighbour_of_train import size\nclass Net(nn.Linear): pass\n"
    file.write_text(FILE.format(before=before, batch_size="size"))
    with file.open("a") as out:
        out.write("def late():\n    import late_neighbour_of_train\n    return late_neighbour_of_train.factor\n")
    task = load_task(str(file))
    module = sys.modules[task.model.__module__]
    assert task.batch_size == 5
    assert module.late() == 0.5
    assert module.Net.__module__ == module.__name__


def test_a_file_that_was_changed_within_a_second_is_read_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    os.utime(file, (1, 1))
    assert load_task(str(file)).batch_size == 8
    file.write_text(file.read_text().replace("batch_size=8", "batch_size=7"))
    os.utime(file, (1, 1))
    assert load_task(str(file)).batch_size == 7
    assert not (file.parent / "__pycache__").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (":tsk", r"has no 'tsk'; it has .*train.py:task, .*train.py:other"),
        (":number", "has 'number' as int 7, not as a covey.Task; it has"),
        (":", "after the colon goes the name"),
        (":a-b", "after the colon goes the name"),
    ],
)
def test_a_wrong_name_lists_the_right_ones(file: Path, name: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        load_task(f"{file}{name}")


def test_a_missing_file_or_task_says_so(file: Path) -> None:
    with pytest.raises(PlanError, match="there is no file .*trian.py; did you mean .*train.py"):
        load_task(str(file.with_name("trian.py")))
    with pytest.raises(PlanError, match="is not a plain file; give a Python file"):
        load_task(str(file.parent))
    file.write_text("x = 1\n")
    with pytest.raises(PlanError, match=r"has no 'task'; write task = covey.Task\(…\) in it"):
        load_task(str(file))


def test_what_the_file_raises_surfaces_with_its_line(file: Path) -> None:
    file.write_text(FILE.format(before="raise KeyError('mine')", batch_size=1))
    known = set(sys.modules)
    with pytest.raises(KeyError, match="mine") as caught:
        load_task(str(file))
    last = traceback.extract_tb(caught.tb)[-1]
    assert (last.filename, last.line) == (str(file), "raise KeyError('mine')")
    assert not any("train" in name for name in set(sys.modules) - known)


@pytest.mark.parametrize("strategy", ["allreduce", "bsp"])
def test_a_model_that_all_roles_would_share_is_refused(strategy: str) -> None:
    one = nn.Linear(4, 3)
    with pytest.raises(PlanError, match=r"same model.*deepcopy"):
        covey.fit(make(model=lambda: one), strategy, 2, engine="simulated", steps=1)
    covey.fit(make(model=lambda: copy.deepcopy(one)), strategy, 2, engine="simulated", steps=1)


@pytest.mark.parametrize("strategy", ["allreduce", "bsp", "local_sgd"])
def test_an_optimizer_of_other_parameters_is_refused(strategy: str) -> None:
    stray = make(optimizer=lambda _: torch.optim.SGD(nn.Linear(4, 3).parameters(), lr=0.1))
    with pytest.raises(PlanError, match=r"train nothing.*lambda params"):
        covey.fit(stray, strategy, 2, engine="simulated", steps=1)


@pytest.mark.parametrize("strategy", ["allreduce", "bsp"])
@pytest.mark.parametrize("kind", [torch.optim.LBFGS, torch.optim.SparseAdam])
def test_an_optimizer_that_cannot_use_one_dense_gradient_is_refused(strategy: str, kind: Any) -> None:
    other = make(optimizer=lambda params: kind([one for _, one in params]))
    with pytest.raises(PlanError, match=f"{kind.__name__} .* SGD or Adam"):
        covey.fit(other, strategy, 2, engine="simulated", steps=1)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (0.9, "must give numbers by name"),
        ({"accuracy": 0.9, 3: 0.1}, "must give numbers by name"),
        ({}, "gave no number at all"),
        ({"accuracy": 0.9, "samples": 3}, "'samples', a name of the history's own"),
        ({"loss": 0.9, "training_loss": 3}, "'training_loss', a name of the history's own"),
        ({"accuracy": torch.ones(2)}, "must give one number for 'accuracy'"),
    ],
)
def test_scores_that_are_none_are_refused(found: object, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        scores(found)


def test_a_mistake_in_a_task_names_its_line(tmp_path: Path) -> None:
    file = tmp_path / "two_tasks.py"
    made = (
        "covey.Task(model=torch.nn.Identity, data=({x},), optimizer=torch.optim.SGD, loss=torch.nn.functional.l1_loss)"
    )
    lines = [
        "import covey, torch",
        f"good = {made.format(x='torch.ones(3, 1)')}",
        f"bad = {made.format(x='torch.ones(0)')}",
    ]
    file.write_text("\n".join(lines))
    with pytest.raises(PlanError, match=r"^two_tasks\.py, line 3: Task: data is empty"):
        load_task(f"{file}:good")
