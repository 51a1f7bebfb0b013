from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

from covey import catalog
from covey.cli.tables import completion
from covey.cli.training import check_names
from covey.exchange.codecs.by_name import CODECS, WRAPPERS
from covey.registry import GROUPS
from covey.spec import SpecError, parse
from covey.systems import SYSTEMS


def test_the_names_that_are_written_down_are_all_there_are() -> None:
    assert list(completion.STRATEGIES) == catalog.names()
    assert list(completion.CODECS) == [*CODECS, *WRAPPERS]


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("ea", {"easgd", "eamsgd"}), ("bsp + top", {"bsp + topk"}), ("bsp +in", {"bsp +int8"}),
        ("tensorf", {"tensorflow"}),
    ],
)  # fmt: skip
def test_a_spec_is_completed(typed: str, offered: set[str]) -> None:
    assert set(completion.specs(typed)) >= offered
    assert all(one.startswith(typed) for one in completion.specs(typed))


def test_everything_is_offered_where_nothing_was_typed() -> None:
    assert set(completion.specs("")) == {*completion.STRATEGIES, *SYSTEMS}


def test_a_shell_asks_and_torch_is_not_imported() -> None:
    """As bash does it: the words so far are in the environment, and the answer is a line for each offer."""
    code = "import sys; from covey.cli import main\ntry: main()\nfinally: assert 'torch' not in sys.modules"
    asked = {"_COVEY_COMPLETE": "complete_bash", "COMP_WORDS": "covey run x.py --strategy eas", "COMP_CWORD": "4"}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **asked}, check=False, capture_output=True, text=True
    )
    assert done.stdout.split() == ["easgd"], done.stderr


@pytest.mark.parametrize("spec", ["eagsd", "bsp + topkk", "local_sgd(period=8) + pwersgd(rank=4)"])
def test_a_misspelt_name_is_refused_before_torch_is_imported_and_in_the_same_words(spec: str) -> None:
    code = "import sys; from covey.cli import main\ntry: main()\nfinally: assert 'torch' not in sys.modules"
    words = ["run", "examples/digits.py", "--strategy", spec]
    done = subprocess.run([sys.executable, "-c", code, *words], check=False, capture_output=True, text=True)
    with pytest.raises(SpecError) as refused:
        catalog.resolve(spec, 2)
    assert done.returncode == 2 and "Assertion" not in done.stderr
    assert " ".join(str(refused.value).split()) in " ".join(done.stderr.split())


def test_names_that_others_may_bring_are_not_refused_early(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(completion.OUTSIDE) <= set(GROUPS)
    for known in ("fedavg", "bsp + pull + int8", "tensorflow", "allreduce with mesh(shard=2)"):
        completion.check_names(parse(known))
    with pytest.raises(SpecError):
        completion.check_names(parse("mine"))
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: ["somebody's"])
    completion.check_names(parse("mine"))
    check_names("theirs", [Path("plugin.py")])
