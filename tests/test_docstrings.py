"""Everything public has a docstring with one sentence, its arguments, and an example that runs."""

from __future__ import annotations

import inspect
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import covey
from covey.data.fashion import available
from covey.run.own_loop.member import Member
from tests.warm import Warm

ROOT = Path(__file__).parent.parent
SKIPPED = {
    "errors": ("CheckpointError", "CoveyError", "PeerLost", "RoleFailed", "SaveError", "Stalled"),
    "modules": covey.MODULES,
}

RUN = """
import covey, doctest, itertools, sys, torch
from torch.utils.data import DataLoader
from covey.run.own_loop.member import Member

def find(path):
    thing = covey
    for name in path.split("."):
        thing = Member if name == "Member" else getattr(thing, name)
    return thing

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
result = covey.fit("examples/digits.py", "bsp", workers=2, engine="simulated", steps=2)
runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
ran = []
for path in sys.argv[1:]:
    with covey.join(model, optimizer) as member:
        example = doctest.DocTestParser().get_doctest(find(path).__doc__, globals(), path, None, 0)
        runner.run(example)
    ran += [path] if example.examples else []
assert ran == sys.argv[1:]
sys.exit(bool(runner.failures))
"""


def public() -> Iterator[tuple[str, Any]]:
    """Names of covey, and the methods of what users hold."""
    for name in covey.__all__:
        if name not in SKIPPED["modules"] and name not in SKIPPED["errors"]:
            yield name, getattr(covey, name)
    yield from ((f"data.{name}", getattr(covey.data, name)) for name in covey.data.__all__)
    yield from ((f"nn.{name}", getattr(covey.nn, name)) for name in covey.nn.__all__)
    yield "spark.fit", covey.spark.fit
    methods = ("shard", "loader", "epochs", "first_step", "step", "accumulate", "clip", "agree", "gather", "keep")
    yield from ((f"Member.{name}", getattr(Member, name)) for name in methods)
    yield from ((f"Result.{name}", getattr(covey.Result, name)) for name in ("to_json", "write"))


PUBLIC = dict(public())


def arguments(thing: Any) -> set[str]:
    """What a caller may give; of exceptions, results, nodes, replicas and configs, which users do not make, nothing."""
    made_by_covey = Exception | covey.Result | covey.Node | covey.Replica | covey.SiteConfig
    if isinstance(thing, type) and issubclass(thing, made_by_covey):
        return set()
    return set(inspect.signature(thing).parameters) - {"self"}


@pytest.mark.parametrize("name", PUBLIC)
def test_docstrings_have_a_sentence_their_arguments_and_an_example(name: str) -> None:
    text = inspect.getdoc(PUBLIC[name]) or ""
    assert re.match(r"[A-Z].*[.;]$", text.splitlines()[0])
    assert arguments(PUBLIC[name]) == set(re.findall(r"^ {4}(\w+): ", text, re.M))
    assert ">>> " in text


def test_every_public_method_of_a_member_is_listed() -> None:
    methods = {name for name, value in vars(Member).items() if inspect.isfunction(value) and name[0] != "_"}
    assert {f"Member.{name}" for name in methods} == {name for name in PUBLIC if name.startswith("Member.")}


def test_errors_have_a_sentence() -> None:
    for name in SKIPPED["errors"]:
        assert (getattr(covey, name).__doc__ or "").endswith(".")


def run(warm: Warm, folder: Path, names: list[str]) -> None:
    shutil.copytree(ROOT / "examples", folder / "examples")
    (folder / "run.py").write_text(RUN)
    done = warm.run([folder / "run.py", *names], cwd=folder)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]


def test_examples_in_docstrings_run(tmp_path: Path, warm: Warm) -> None:
    """In one process: most of their time is that of torch's first optimizer."""
    absent = {"spark.fit"} if available() else {"spark.fit", "data.fashion_mnist"}
    run(warm, tmp_path, [name for name in PUBLIC if name not in absent])


@pytest.mark.full
def test_the_example_of_spark_runs(tmp_path: Path, warm: Warm) -> None:
    pytest.importorskip("pyspark")
    run(warm, tmp_path, ["spark.fit"])
