"""What a role remembers has a name, and comes back by it, whatever the order of calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from covey.checkpoint import RoleState
from covey.engines.remembered import Remembered
from covey.errors import CheckpointError
from covey.message import Address

ME = Address("worker", 3)


@dataclass
class Clocks:
    done: dict[int, int]


def kept(memories: Mapping[str, Any]) -> RoleState:
    return RoleState.of(done=2, seconds=0.0, memories=dict(memories), replica={}, rng=Random(0), mailbox=[])


def test_what_is_remembered_comes_back_by_name() -> None:
    memories = Remembered(ME, kept({"velocity": 1.5, "round": 7}))
    assert (memories.remember("round", 0).value, memories.remember("velocity", 0.0).value) == (7, 1.5)


def test_a_name_is_given_once() -> None:
    memories = Remembered(ME)
    memories.remember("velocity", 1.0)
    with pytest.raises(ValueError, match="worker 3 remembers two things by one name, 'velocity'"):
        memories.remember("velocity", 2.0)


def test_a_program_that_begins_again_has_what_it_had() -> None:
    memories = Remembered(ME, kept({"clocks": {"$value": {"done": {"0": 3}}}, "late": 1}))
    memories.begin_again()  # as it does at its start, too
    memories.remember("clocks", Clocks({})).value.done[1] = 4
    memories.begin_again()
    assert memories.remember("clocks", Clocks({})).value == Clocks({0: 3, 1: 4})
    assert memories.values() == {"clocks": Clocks({0: 3, 1: 4}), "late": 1}, "what it has not asked back yet is kept on"


def test_what_the_checkpoint_lacks_is_refused_unless_it_was_not_due_yet() -> None:
    memories = Remembered(ME, kept({"speed": 1.5}))
    with pytest.raises(
        CheckpointError, match=r"the checkpoint has no 'velocity' of worker 3, only 'speed'.*without resume="
    ):
        memories.remember("velocity", 0.0)
    assert memories.remember("late", 2, begun=True).value == 2
    assert memories.remember("speed", 0.0, begun=True).value == 1.5
