"""What a setting may be is asked of the code, so it cannot be wrong; here is what that gives."""

from __future__ import annotations

from dataclasses import fields
from typing import get_type_hints

import pytest

from covey import catalog
from covey.cli.ranges import allowed


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


@pytest.mark.parametrize("name", catalog.names())
def test_every_setting_can_be_tried_without_an_accident(name: str) -> None:
    owner = catalog.STRATEGIES[name].settings
    for field in fields(owner):
        allowed(name, name, field.name, get_type_hints(owner)[field.name], 4)
