"""A checkpoint to which every role has written counts; one that lacks a role's state does not, and it is said why."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from covey.checkpoint import CheckpointDirectory
from covey.engines.process import control
from covey.engines.process.launcher.interval import Interval
from covey.engines.process.launcher.keeping import CheckpointKeeper
from covey.message import Address
from tests.test_checkpoint import run, state

ROLES = [Address("worker", 0), Address("worker", 1), Address("server", 0)]


class Restarts:
    """In which incarnation each role is, and who was lost after its last step."""

    def __init__(self) -> None:
        self.incarnations, self.finished, self.empty = dict.fromkeys(ROLES, 0), set[Address](), set[Address]()

    def incarnation(self, who: Address) -> int:
        return self.incarnations[who]


class Answers:
    """What roles have answered, as a monitor of them collects it."""

    def __init__(self) -> None:
        self.board = SimpleNamespace(tell=lambda roles, word: None)
        self.roster = SimpleNamespace(roles=ROLES)
        self.restarts = Restarts()
        self.inbox: dict[type, dict[Address, Any]] = {control.Copied: {who: control.Copied() for who in ROLES}}

    def collect(self, kind: type, roles: Iterable[Address]) -> dict[Address, Any]:
        return {who: self.inbox[kind].pop(who) for who in roles}

    def wait_for(self, missing: Callable[[], list[Address]]) -> None:
        assert not missing()

    def pump(self, timeout: float) -> None:
        pass


@pytest.mark.parametrize("failed", [None, *ROLES])
def test_a_checkpoint_counts_when_every_role_has_written(failed: Address | None, tmp_path: Path) -> None:
    """One host's disk may be full while the launcher's, on which the rest lies, is not."""
    told, said, answers = list[Path](), list[str](), Answers()
    monitor: Any = answers
    with CheckpointDirectory(tmp_path / "kept") as kept:
        kept.told = told.append
        keeper = CheckpointKeeper(kept, Interval(5.0), monitor, said.append)
        keeper.copy(run)
        for who in ROLES:
            if who != failed:
                state().write(keeper._place, who)
        words = {who: control.Saved("No space left on device" if who == failed else "", 0.1) for who in ROLES}
        answers.inbox[control.Saved] = words
        keeper.complete()
        keeper.close()
        if failed is None:
            assert kept.all() == told == [kept.newest()[0]] and said == [f"wrote checkpoint {told[0]}"]
        else:
            assert kept.all() == [] == told and sorted(os.listdir(kept.directory)) == [".lock"], "nothing is left of it"
            why = f"could not write a checkpoint to {kept.directory}: {failed}: No space left on device; training"
            assert said[0].startswith(why) and len(said) == 1


@pytest.mark.parametrize("had_written", [True, False])
@pytest.mark.parametrize("ended", [True, False])
def test_a_role_that_is_lost_while_it_writes_drops_the_checkpoint_and_one_that_had_written_does_not(
    had_written: bool, ended: bool, tmp_path: Path
) -> None:
    """Nobody waits for the lost one, and what the others write is removed when the last of them is through."""
    said, answers, lost = list[str](), Answers(), ROLES[1]
    monitor: Any = answers
    with CheckpointDirectory(tmp_path / "kept") as kept:
        keeper = CheckpointKeeper(kept, Interval(5.0), monitor, said.append)
        keeper.copy(run)
        saved = answers.inbox[control.Saved] = {lost: control.Saved()} if had_written else {}
        if ended:
            answers.restarts.finished.add(lost)
        else:
            answers.restarts.incarnations[lost] += 1
        for who in ROLES:
            state().write(keeper._place, who)
            assert keeper.writing and not keeper._commit
            if who != lost:
                saved[who] = control.Saved()
                keeper.look()
        keeper.complete()
        assert len(kept.all()) == had_written and len(said) == 1
        why = f"could not write a checkpoint to {kept.directory}: {lost} was lost before it had written its state"
        assert said[0].startswith("wrote checkpoint" if had_written else why)
        keeper.interval.begin(-99.0, 0)
        assert keeper.due() != ended and keeper.due() != ended
        over = f"{lost} was lost after its last step: training goes on, and no other checkpoint is taken"
        assert said[1:] == [over] * ended
        keeper.close()


def test_nobody_waits_for_the_state_of_an_empty_seat(tmp_path: Path) -> None:
    answers, said = Answers(), list[str]()
    monitor: Any = answers
    with CheckpointDirectory(tmp_path / "kept") as kept:
        keeper = CheckpointKeeper(kept, Interval(5.0), monitor, said.append)
        answers.restarts.empty.add(ROLES[1])
        answers.restarts.finished.add(ROLES[1])
        keeper.copy(run)
        assert ROLES[1] not in keeper._awaited() and not keeper._gone()
        assert not keeper._over() and said == []
