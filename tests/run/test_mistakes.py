"""A mistake in a task is told in the same few words on every engine, and never called covey's."""

from __future__ import annotations

import re
import runpy
from types import FunctionType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from covey import Task, fit
from covey.cli import app
from covey.errors import CoveyError, PlanError, RoleFailed
from covey.faults import REPORT, story, users_line, words
from tests.worlds import cloud, mlp

X, Y = cloud(64)
OTHER = nn.Linear(6, 3).double()


class Pair(nn.Linear):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x), x


class Ragged(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, number: int) -> Any:
        return X[number, : 1 + number % 6], Y[number]


def scored(value: Any) -> dict[str, Any]:
    return {"evaluate": lambda model: value}


MISTAKES: dict[str, tuple[dict[str, Any], type[CoveyError], str]] = {
    "tuple": (
        {"model": lambda: Pair(6, 3).double()}, RoleFailed,
        r"worker 0 failed: TypeError: .* not tuple \(in the task's loss\(model\(x\), y\): model\(x\) is a tuple of 2, "
        r"y is a tensor of shape \(8,\)\)",
    ),
    "detached": (
        {"loss": lambda output, y: nn.functional.cross_entropy(output, y).detach()}, PlanError,
        r"Task: loss\(model\(x\), y\) gave a number without a gradient: .*\.detach\(\).*",
    ),
    "a float": (scored(0.5), PlanError, r"Task: evaluate\(model\) must give numbers by name, .*, not float 0.5"),
    "nothing": (scored(None), PlanError, r"Task: evaluate\(model\) must give numbers by name, .*, not NoneType"),
    "no metrics": (scored({}), PlanError, r"Task: evaluate\(model\) gave no number at all: .* at least one by name.*"),
    "another model": (
        {"loss": None, "step": lambda model, batch: OTHER(batch[0]).square().mean()}, PlanError,
        r"Task: step\(model, batch\) gave a loss that depends on no parameter of the model: .*",
    ),
    "a list": (scored({"all": [1.0, 2.0]}), PlanError, r"Task: .* one number for 'all', not a list of 2"),
    "our names": (scored({"samples": 3}), PlanError, r"Task: .* gives 'samples', a name of the history.*: rename it"),
    "device": (
        {"data": (X, Y.to("meta"))}, RoleFailed,
        r"worker 0 failed: .*y is a tensor of shape \(8,\) on meta\)",
    ),
    "shape": (
        {"model": lambda: nn.Linear(5, 3).double()}, RoleFailed,
        r"worker 0 failed: RuntimeError: mat1 and mat2 .* \(in the task's model\(x\): x is a tensor of shape \(8, 6\), "
        r"the model is on cpu\)",
    ),
    "ragged": ({"data": Ragged()}, RoleFailed, r"worker 0 failed: RuntimeError: .* \(in the task's data\)"),
    "rate": ({"rate": lambda progress: None}, RoleFailed, r"worker 0 failed: TypeError: .* \(in the task's rate.*\)"),
}  # fmt: skip


def told(mistake: str, engine: str) -> str:
    parts, kind, _ = MISTAKES[mistake]
    with pytest.raises(kind) as refused:
        fit(mlp(**parts), "local_sgd", 1, engine=engine, epochs=1)
    return str(refused.value)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_without_a_line_of_the_users_is_told_in_one(mistake: str) -> None:
    words = told(mistake, "simulated")
    assert words.count("\n") == 0 and REPORT not in words
    assert re.fullmatch(MISTAKES[mistake][2], words), words


QUICK = ["tuple"]


@pytest.mark.parametrize("mistake", [pytest.param(m, marks=() if m in QUICK else pytest.mark.full) for m in MISTAKES])
def test_the_same_words_on_processes(mistake: str) -> None:
    assert told(mistake, "local") == told(mistake, "simulated")


def failing(text: str, tmp_path: Any, *flags: str) -> tuple[int, str]:
    file = tmp_path / "mine.py"
    file.write_text(
        f"import sys, torch, covey\nfrom torch import nn\n{text}\n"
        "task = covey.Task(model=lambda: nn.Linear(6, 3), data=(torch.zeros(8, 6), torch.zeros(8).long()),\n"
        "    batch_size=4, optimizer=lambda params: torch.optim.SGD(params, lr=0.1), step=step)\n"
    )
    shown = CliRunner().invoke(app, ["simulate", str(file), "--workers", "1", "--strategy", "local_sgd", *flags])
    return shown.exit_code, shown.stderr


def test_a_line_of_the_users_is_where_the_traceback_begins(tmp_path: Any) -> None:
    code, said = failing("def step(model, batch):\n    return model(batch[0][:, :2]).sum()", tmp_path)
    assert code == 1 and said.count("Traceback") == 1 and REPORT not in said
    assert "return model(batch[0][:, :2]).sum()" in said and "covey/task.py" not in said
    assert "worker 0 failed: RuntimeError" in said


def test_sys_exit_in_a_task_does_not_end_the_program_in_silence(tmp_path: Any) -> None:
    code, said = failing("def step(model, batch):\n    sys.exit(0)", tmp_path)
    assert code == 1 and "worker 0 failed: SystemExit: 0" in said


def test_what_is_coveys_own_mistake_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("covey.model.replica.Replica.descend", None)
    with pytest.raises(RoleFailed, match="worker 0 failed: TypeError: 'NoneType' object is not callable") as failed:
        fit(mlp(), "local_sgd", 1, engine="simulated", epochs=1)
    assert str(failed.value).endswith(REPORT) and "covey/decentral/averaging/local_sgd.py" in str(failed.value)


def test_a_script_that_is_no_python_is_the_users_mistake(tmp_path: Any) -> None:
    """Also where a role reads it, which `covey launch` has it do."""
    script = tmp_path / "train.py"
    script.write_text("def f(:\n    pass\n")
    with pytest.raises(SyntaxError) as raised:
        runpy.run_path(str(script))
    told = story(raised.value.with_traceback(None))  # this test's own lines are a user's
    assert told == f'  File "{script}", line 1\n    def f(:\n          ^\nSyntaxError: invalid syntax\n'


def test_an_exception_of_the_users_own_kind_keeps_its_words() -> None:
    class Own(Exception):
        __slots__ = ()

    def step(model: nn.Module, batch: Any) -> Tensor:
        raise Own("out of ideas")

    task = Task(
        model=lambda: nn.Linear(6, 3), data=(X, Y), step=step,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
    )  # fmt: skip
    with pytest.raises(RoleFailed, match=r"worker 0 failed: .*Own: out of ideas") as failed:
        fit(task, "local_sgd", 1, engine="simulated", epochs=1)
    assert str(failed.value).count("out of ideas") >= 2, "with the traceback from the user's line on"


def raised_in(module: str, filename: str) -> Exception:
    """An exception out of code that has no file."""
    fail = FunctionType(compile("raise ValueError('wrong')", filename, "exec"), {"__name__": module})
    with pytest.raises(ValueError, match="wrong") as failed:
        fail()
    error = failed.value
    assert error.__traceback__ is not None
    return error.with_traceback(error.__traceback__.tb_next)  # without this test, which is a user's


@pytest.mark.parametrize(
    ("module", "filename", "users"),
    [
        ("__main__", "<stdin>", True),
        ("__main__", "<ipython-input-3>", True),
        ("torch.fx.graph_module", "<eval_with_key>.4", False),  # what a package generates
        ("dataclasses", "<string>", False),
        ("__main__", "<frozen runpy>", False),
        ("rich.console", "/usr/lib/python3/dist-packages/rich/console.py", False),
        ("rich.console", "/home/me/.local/lib/python3.11/site-packages/rich/console.py", False),
        ("models", "/home/me/models.py", True),
    ],
)
def test_code_of_packages_or_that_nobody_typed_is_not_the_users(module: str, filename: str, users: bool) -> None:
    assert (users_line(raised_in(module, filename)) is not None) == users


def test_a_note_does_not_take_the_place_of_the_exception() -> None:
    error = ValueError("wrong")
    error.add_note("(in worker 1)")
    assert words(error) == "ValueError: wrong"
