"""Tasks that a function makes, and how their arguments are written."""

from __future__ import annotations

from pathlib import Path

import pytest

import covey
from covey.errors import PlanError
from covey.names import task_file, task_name
from covey.task import load_task
from covey.task.file import task_parameters
from covey.task.made import read_arguments, written_arguments

TEXT = """
import covey, torch
def task(rate=0.1, width: int = 8, kind="relu", deep=False):
    task.called = (rate, width, kind, deep)
    return covey.Task(model=lambda: torch.nn.Linear(4, width), data=(torch.ones(8, 4), torch.zeros(8, width)),
                      optimizer=lambda params: torch.optim.SGD(params, lr=rate), loss=torch.nn.functional.mse_loss)
def wrong(rate=0.1):
    return rate
def needs(rate):
    return task(rate)
fixed = task()
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    place = tmp_path / "made.py"
    place.write_text(TEXT)
    return place


def test_a_function_is_called_with_the_written_arguments(file: Path) -> None:
    assert load_task(f"{file}").model().out_features == 8
    found = load_task(f'{file}:task(rate=1e-3, width=32, kind="a:b, c", deep=true)')
    assert found.model().out_features == 32
    assert found.optimizer(iter(found.model().named_parameters())).param_groups[0]["lr"] == 1e-3
    assert list(task_parameters(str(file))) == ["rate", "width", "kind", "deep"]
    assert task_parameters(f"{file}:fixed") == {}


def test_arguments_are_written_as_they_are_read() -> None:
    given = {"a": 1, "b": 2.5, "c": "word", "d": 'two "words"', "e": True, "f": "1", "g": "true", "h": 1e-05}
    assert read_arguments("f.py:task", written_arguments(given)) == given


@pytest.mark.parametrize(("name", "why"), [
    ("task(rat=1)", "has no parameter 'rat'; did you mean 'rate'"),
    ("task(1)", "write key=value"),
    ("task(rate=1, rate=2)", "rate is given twice"),
    ("task(rate=1", "there is no file|after the colon"),
    ("task(rate=high)", "the task wants a number for 'rate', not 'high'"),
    ("task(width=2.5)", "the task wants width: int, not 2.5"),
    ("fixed(rate=1)", "is a covey.Task, which takes no arguments"),
    ("wrong", "must return a covey.Task; it returned float 0.1"),
    ("needs", "needs rate: give it a default"),
])  # fmt: skip
def test_what_cannot_be_called_is_refused(file: Path, name: str, why: str) -> None:
    with pytest.raises(PlanError, match=why.replace("(", r"\(")):
        load_task(f"{file}:{name}")


def test_names_are_taken_apart() -> None:
    assert task_name("a/b.py") == (Path("a/b.py"), "", None)
    assert task_name("a/b.py:mine") == (Path("a/b.py"), "mine", None)
    assert task_name('b.py:mine(url="http://x:1", n=2)') == (Path("b.py"), "mine", 'url="http://x:1", n=2')
    assert task_file("b.py:mine(n=2)") == Path("b.py") == task_file("b.py:mine")
    assert task_name("b.py:mine(x='../a')").absolute() == f"{Path.cwd()}/b.py:mine(x='../a')"


def test_every_process_of_a_run_makes_the_same_task(file: Path) -> None:
    """A worker, a server and the scorer, each in its own process, find 5 outputs."""
    result = covey.fit(f"{file}:task(width=5)", "bsp", workers=1, steps=2, runs=False)
    assert result.weights["weight"].shape == (5, 4)
