"""Settings as values: what can be one, how they are told, and what no role takes from another."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from covey.errors import PlanError, WireError
from covey.message import assemble, pack, read_header
from covey.settings import Agreement, History, LoopSettings, Settings, SettingsUpdate, after, changed, read
from covey.settings.values import MOST_BYTES, size_of
from tests.worlds import worker


def settings(**more: Any) -> Settings:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1)
    optimizer.param_groups[0].update(more)
    return read(optimizer)


def told(word: SettingsUpdate) -> SettingsUpdate:
    """The message, over a wire."""
    word.sender = worker(0)
    header, _ = pack(word)
    found = assemble(read_header(header, 0, worker(0)), [])
    assert isinstance(found, SettingsUpdate)
    return found


def test_numbers_words_and_lists_are_settings() -> None:
    given = {
        "betas": [0.9, torch.tensor(0.5)], "lr": torch.tensor(0.25), "weight_decay": np.float32(0.5), "name": "head",
        "fused": None, "foreach": True, "every": np.int64(3),
    }  # fmt: skip
    found = settings(**given).groups[0]
    expected = {
        "betas": (0.9, 0.5), "lr": 0.25, "weight_decay": 0.5, "name": "head", "fused": None, "foreach": True, "every": 3
    }  # fmt: skip
    assert {key: found[key] for key in given} == expected
    assert all(type(found[key]) is type(value) for key, value in expected.items())
    assert "params" not in found


@pytest.mark.parametrize("value", [object(), {"a": 1}, torch.zeros(2), "x" * 300, [0.1] * 300, ["a"], 1 << 70, 1j])
def test_nothing_else_is(value: Any) -> None:
    with pytest.raises(PlanError, match="'odd' of parameter group 0 is a"):
        settings(odd=value)


def test_too_much_is_refused() -> None:
    many = torch.optim.SGD([{"params": [nn.Parameter(torch.zeros(1))], "name": "x" * 250} for _ in range(1000)], lr=0.1)
    with pytest.raises(PlanError, match=f"too many to be told.*{MOST_BYTES >> 10} KiB"):
        LoopSettings(many)
    keys = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    keys.param_groups[0].update({f"key{number}": 0 for number in range(100)})
    with pytest.raises(PlanError, match="64 settings of each"):
        LoopSettings(keys)


VALUES = st.one_of(
    st.floats(allow_nan=False), st.integers(-(1 << 61), 1 << 61), st.booleans(), st.none(), st.text(max_size=20),
    st.lists(st.floats(allow_nan=False), max_size=5).map(tuple),
)  # fmt: skip
KEYS = st.text(min_size=1, max_size=8).filter(lambda key: key not in ("params", "param_names"))  # no settings
GROUPS = st.lists(st.dictionaries(KEYS, VALUES, max_size=5), min_size=2, max_size=2)


@given(before=GROUPS, more=GROUPS, clip=st.none() | st.floats(0.1, 10))
def test_what_is_told_is_what_is_heard(before: list[Any], more: list[Any], clip: float | None) -> None:
    first = Settings(tuple(before))
    second = Settings(tuple({**a, **b} for a, b in zip(before, more, strict=True)), (0,), clip)
    heard = after(told(changed(0, first, None)), None, 2, 1)
    assert heard == first
    assert after(told(changed(1, second, first)), heard, 2, 1) == second
    assert heard == first, "what was heard before stays"


HOSTILE = {
    "a group that is not there": {"rows": [(7, "lr", 0.1)]},
    "a group before the first": {"rows": [(-1, "lr", 0.1)]},
    "parameters": {"rows": [(0, "params", [1.0])]},
    "a long key": {"rows": [(0, "k" * 300, 0.1)]},
    "a long word": {"rows": [(0, "lr", "x" * 300)]},
    "a long list": {"rows": [(0, "lr", [0.1] * 300)]},
    "many keys": {"rows": [(0, f"key{number}", 0.1) for number in range(100)]},
    "an optimizer that is not there": {"active": [3]},
    "many optimizers": {"active": [0] * 50},
    "a norm below zero": {"clip": -1.0},
    "a change of nothing": {"whole": False},
}


@pytest.mark.parametrize("what", HOSTILE)
def test_what_cannot_be_of_this_optimizer_is_refused_by_name(what: str) -> None:
    word = SettingsUpdate(**{"step": 0, "whole": True, "rows": [(0, "lr", 0.1)], "active": [0], **HOSTILE[what]})
    with pytest.raises(WireError, match="worker 0 sent"):
        after(told(word), None, 1, 1)


@pytest.mark.parametrize("rows", [[(0, "lr", {"a": 1})], [(0, "lr", [[0.1]])], [(0, 1, 0.1)], [(0, "lr")], "rows", [3]])
def test_rows_of_another_form_are_no_message(rows: Any) -> None:
    word = SettingsUpdate(0, True, [], [0], sender=worker(0))
    body = msgspec.to_builtins(word) | {"rows": rows}
    header = msgspec.msgpack.encode([word.wire_name, worker(0), [], msgspec.Raw(msgspec.msgpack.encode(body))])
    with pytest.raises(WireError, match="cannot be read"):
        assemble(read_header(header, 0, worker(0)), [])


def test_the_past_is_kept_as_far_as_gradients_can_be_of_it() -> None:
    history = History()
    for step in range(5_000):
        history.add(step, settings(lr=float(step)))
    assert len(history.changes) <= 256
    assert history.at(4_990).groups[0]["lr"] == 4_990.0  # type: ignore[union-attr]
    assert len(history.changes) < 20


# -- do all agree? ----------------------------------------------------------------------------------------------------


def test_all_agree_however_far_apart_they_are() -> None:
    agreement = Agreement()
    agreement.add(worker(0), 0, 5, settings())
    agreement.add(worker(0), 5, 9, settings(lr=0.2))
    agreement.add(worker(1), 0, 5, settings())
    agreement.add(worker(1), 5, 20, settings(lr=0.2))
    agreement.add(worker(0), 9, 30, settings(lr=0.2))
    assert len(agreement.line) == 2


@pytest.mark.parametrize(
    ("first", "last", "lr", "step"), [(0, 6, 0.1, 5), (3, 4, 0.2, 3), (7, 8, 0.1, 7), (4, 9, 0.2, 4)]
)
def test_the_first_step_in_which_they_differ_is_named(first: int, last: int, lr: float, step: int) -> None:
    agreement = Agreement()
    agreement.add(worker(0), 0, 5, settings())
    agreement.add(worker(0), 5, 9, settings(lr=0.2))
    with pytest.raises(
        PlanError, match=rf"at step {step}: lr of parameter group 0 is 0\.\d on worker 0 and {lr} on worker 1"
    ):
        agreement.add(worker(1), first, last, settings(lr=lr))


def test_steps_that_nobody_told_agree_with_anything() -> None:
    agreement = Agreement()
    agreement.add(worker(0), 0, 1, settings())
    agreement.add(worker(0), 4, 5, settings())
    agreement.add(worker(1), 2, 3, settings(lr=9.0))
    with pytest.raises(PlanError, match="at step 4"):
        agreement.add(worker(1), 3, 6, settings(lr=9.0))


def test_what_was_told_of_a_gap_is_compared_too() -> None:
    """Worker 0 told nothing of steps 1 to 8; workers 1 and 2 do, later, and not the same."""
    agreement = Agreement()
    agreement.add(worker(0), 0, 1, settings())
    agreement.add(worker(0), 9, 10, settings())
    agreement.add(worker(1), 3, 5, settings(lr=0.2))
    agreement.add(worker(1), 5, 6, settings(lr=0.2))
    agreement.add(worker(2), 1, 3, settings(lr=0.3))
    assert [(known.first, known.settings and known.settings.groups[0]["lr"]) for known in agreement.line] == [
        (0, 0.1), (1, 0.3), (3, 0.2), (6, None), (9, 0.1)
    ]  # fmt: skip
    with pytest.raises(PlanError, match="at step 5: lr of parameter group 0 is 0.2 on worker 1 and 0.1 on worker 2"):
        agreement.add(worker(2), 5, 7, settings())
    for step in range(6, 9):
        agreement.add(worker(1), step, step + 1, settings(lr=0.2))
    assert len(agreement.line) == 4 and agreement.end == 10


def test_all_that_differs_is_named() -> None:
    for other, words in (
        (Settings((*settings().groups, {})), "1 parameter groups, and worker 1 has 2"),
        (settings()._replace(active=(1,)), r"steps the optimizers \[0\], and worker 1 \[1\]"),
        (settings()._replace(clip=2.0), "clips to None, and worker 1 to 2.0"),
    ):
        agreement = Agreement()
        agreement.add(worker(0), 0, 1, settings())
        with pytest.raises(PlanError, match=words):
            agreement.add(worker(1), 0, 1, other)


def test_memory_of_the_past_is_bounded() -> None:
    agreement = Agreement()
    for step in range(5_000):
        agreement.add(worker(0), step, step + 1, settings(lr=float(step)))
    assert len(agreement.line) <= 4096


def test_a_word_to_the_launcher_is_small() -> None:
    """However many changes there are between two reports, a word of them is what the control line takes."""
    optimizer = torch.optim.SGD([{"params": [nn.Parameter(torch.zeros(1))]} for _ in range(300)], lr=0.1)
    loop = LoopSettings(optimizer)
    for step in range(200):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 + step
        loop.note(step)
    words = []
    while loop.reached != loop.reported[0]:
        words.append(loop.news())
    assert len(words) > 1
    assert all(sum(map(size_of, found)) < 1 << 20 for _, found in words)
    assert sum(len(found) for _, found in words) == 200
    assert words[-1][0] == 200


def test_a_list_that_the_loop_changes_in_place_is_noticed_in_any_group() -> None:
    """The other group has only numbers, which cannot be changed in place."""
    groups = [{"params": [nn.Parameter(torch.zeros(1))]} for _ in range(2)]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    optimizer.param_groups[1]["levels"] = levels = [1.0, 2.0]
    loop = LoopSettings(optimizer)
    loop.note(0)
    levels[0] = 5.0
    loop.note(1)
    assert loop.own.last and (loop.own.last.step, loop.own.last.settings.groups[1]["levels"]) == (1, (5.0, 2.0))
