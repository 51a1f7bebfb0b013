"""What a setting may be is asked of the code, so it cannot be wrong; here is what that gives."""

from __future__ import annotations

from dataclasses import fields
from typing import get_type_hints

import pytest

from covey import catalog
from covey.cli.tables.codec import describe
from covey.cli.tables.ranges import allowed
from covey.exchange.codecs.by_name import CODECS, WRAPPERS
from tests.conftest import Golden


@pytest.mark.parametrize(
    ("name", "setting", "words"),
    [
        ("ssp", "bound", "0 or more"),
        ("quorum", "size", "1 to 4"),
        ("gosgd", "probability", "more than 0, up to 1"),
        ("easgd", "pull", "more than 0, less than 0.4"),
        ("crossbow", "pull", "more than 0, less than 0.222222"),
        ("local_sgd", "growth", "1 or more"),
        ("local_sgd", "momentum", "keep or reset or average"),
        ("vap", "strong", "true or false"),
        ("asynchronous", "momentum", "more than -1, less than 1"),
    ],
)
def test_in_words(name: str, setting: str, words: str) -> None:
    assert allowed(name, name, setting, get_type_hints(catalog.STRATEGIES[name].settings)[setting], 4) == words


def test_of_every_setting(golden: Golden) -> None:
    """Every limit of a setting, from the values that are refused."""
    found = [
        f"{name}({field.name}): {allowed(name, name, field.name, get_type_hints(entry.settings)[field.name], 4) or '-'}"
        for name, entry in catalog.STRATEGIES.items()
        for field in fields(entry.settings)
    ]
    for name in (*CODECS, *WRAPPERS):
        told = describe(name, 4)["settings"]
        found += [f"+ {name}({setting}): {known['allowed'] or '-'}" for setting, known in told.items()]
    golden("ranges.txt", "\n".join(found) + "\n")


def test_a_limit_far_from_zero_is_found() -> None:
    assert describe("qsgd", 4)["settings"]["levels"]["allowed"] == "1 to 32767"
    assert describe("fixed16", 4)["settings"]["fraction"]["allowed"] == "0 to 30"
