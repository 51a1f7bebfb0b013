from __future__ import annotations

import os
import subprocess
import sys

import pytest

from covey import catalog
from covey.cli.tables import completion
from covey.exchange.codecs.by_name import CODECS, WRAPPERS
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
