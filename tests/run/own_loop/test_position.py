"""Where a loop goes on after a resume: whatever its shape, no batch is trained twice, and none is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import pytest
import torch

from covey.errors import PlanError
from covey.run.own_loop.position import Position, SavedPosition

BATCHES, EPOCHS = 5, 3


class Stop(Exception):
    """The process ends, inside a step."""


class Member:
    """A loop's view of a run: which batches were trained, and what followed each step."""

    def __init__(self, kept: SavedPosition | None = None, stop: int = 10_000) -> None:
        self.log: list[str] = []
        self.position = Position(kept, lambda: self.log.append("restored"))
        self.kept: SavedPosition | None = None
        self.stop, self.order = stop, 0

    def shard(self, name: str = "") -> Iterator[str]:
        begun = self.position.begin(self.order)
        if begun is None:
            return
        self.order = begun.order + 1
        with begun:
            for number in range(begun.skip, BATCHES):
                begun.give()
                yield f"{name}{begun.order}.{number}"

    def step(self, what: str) -> None:
        if self.position.stepped():
            return
        self.log.append(f"step {what}")
        if self.position.steps == self.stop:
            self.kept = msgspec.convert(
                msgspec.to_builtins(self.position.here(), str_keys=True), SavedPosition, str_keys=True
            )
            raise Stop

    def after(self, what: str) -> None:
        if not self.position.replays:
            self.log.append(f"after {what}")


class Data:
    """A shard that is made once."""

    def __init__(self, member: Member, name: str = "") -> None:
        self.member, self.name = member, name

    def __iter__(self) -> Iterator[str]:
        return self.member.shard(self.name)


def made_once(member: Member) -> None:
    data = Data(member)
    for _ in range(EPOCHS):
        for batch in data:
            member.step(batch)
            member.after(batch)


def made_each_time(member: Member) -> None:
    for _ in range(EPOCHS):
        for batch in member.shard():
            member.step(batch)
            member.after(batch)


def by_epochs(member: Member) -> None:
    for epoch in member.position.epochs(EPOCHS):
        for batch in member.shard():
            member.step(f"{epoch}: {batch}")
            member.after(batch)


def two_steps(member: Member) -> None:
    """A GAN."""
    for _ in range(EPOCHS):
        for batch in member.shard():
            member.step(f"discriminator {batch}")
            member.after(f"discriminator {batch}")
            member.step(f"generator {batch}")
            member.after(f"generator {batch}")


def accumulating(member: Member) -> None:
    for _ in range(EPOCHS):
        for number, batch in enumerate(member.shard()):
            if number % 2:
                member.step(batch)
                member.after(batch)


def accumulating_by_number(member: Member) -> None:
    for _ in range(EPOCHS):
        for batch in member.shard():
            if member.position.batch_index in (2, BATCHES - 1):
                member.step(batch)
                member.after(batch)


def side_by_side(member: Member) -> None:
    one, two = Data(member, "one "), Data(member, "two ")
    for _ in range(EPOCHS):
        for pair in zip(one, two, strict=True):
            member.step(str(pair))
            member.after(str(pair))


def one_after_the_other(member: Member) -> None:
    for _ in member.position.epochs(EPOCHS):
        for batch in member.shard("one "):
            member.step(batch)
        for batch in member.shard("two "):
            member.step(batch)
            member.after(batch)


def left_early(member: Member) -> None:
    for _ in range(EPOCHS):
        for batch in member.shard():
            member.step(batch)
            member.after(batch)
            if batch.endswith("2"):
                break


def with_validation_in_a_range(member: Member) -> None:
    """Epochs that are over give no batches, and are still scored."""
    for _ in range(EPOCHS):
        for batch in member.shard():
            member.step(batch)
            member.after(batch)
        with torch.no_grad():
            assert len(list(member.shard("validation "))) == BATCHES


def of_its_own(member: Member) -> None:
    for number in range(12):
        member.step(str(number))
        member.after(str(number))


def of_its_own_that_skips(member: Member) -> None:
    for number in range(member.position.first_step(), 12):
        member.step(str(number))
        member.after(str(number))


def of_its_own_that_asks_each_time(member: Member) -> None:
    for number in range(12):
        if number < member.position.first_step():
            continue
        member.step(str(number))
        member.after(str(number))


def with_validation(member: Member) -> None:
    for _ in member.position.epochs(EPOCHS):
        for batch in member.shard():
            member.step(batch)
            member.after(batch)
        with torch.no_grad():
            assert len(list(member.shard("validation "))) == BATCHES


LOOPS: list[Callable[[Member], None]] = [
    made_once, made_each_time, by_epochs, two_steps, accumulating, accumulating_by_number, side_by_side,
    one_after_the_other, left_early, with_validation, with_validation_in_a_range, of_its_own, of_its_own_that_skips,
    of_its_own_that_asks_each_time,
]  # fmt: skip

OWN = (of_its_own, of_its_own_that_skips, of_its_own_that_asks_each_time)


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_a_loop_that_was_stopped_in_any_step_goes_on_there(loop: Callable[[Member], None]) -> None:
    whole = Member()
    loop(whole)
    steps = whole.position.steps
    assert steps >= 6
    for stop in range(1, steps + 1):
        first = Member(stop=stop)
        with pytest.raises(Stop):
            loop(first)
        assert first.kept is not None and (first.kept.calls <= 2 or loop in OWN), "no more is replayed than one round"
        second = Member(first.kept)
        loop(second)
        begun = second.log.index("restored")
        assert begun == 0, f"nothing counts before the loop is where it was: {second.log}"
        assert first.log + second.log[1:] == whole.log, f"stopped in step {stop}"
        assert second.position.steps == steps


def test_a_loop_that_was_stopped_twice_goes_on_as_well() -> None:
    whole, first = Member(), Member(stop=4)
    two_steps(whole)
    with pytest.raises(Stop):
        two_steps(first)
    second = Member(first.kept, stop=17)
    with pytest.raises(Stop):
        two_steps(second)
    third = Member(second.kept)
    two_steps(third)
    assert first.log + second.log[1:] + third.log[1:] == whole.log


def test_a_loop_with_loaders_need_not_skip() -> None:
    first = Member(stop=4)
    with pytest.raises(Stop):
        made_once(first)
    with pytest.raises(PlanError, match="member.first_step"):
        Member(first.kept).position.first_step()


def test_the_first_step_is_the_same_number_whenever_it_is_asked() -> None:
    fresh = Member()
    for _ in range(3):
        assert fresh.position.first_step() == 0
        fresh.step("")
    resumed = Member(SavedPosition(calls=7, steps=7))
    for _ in range(3):
        assert resumed.position.first_step() == 6
        resumed.step("")
    assert resumed.position.steps == 9


def test_the_first_step_is_asked_for_before_a_step() -> None:
    """Afterwards the loop is elsewhere already: it would take its second step for the seventh."""
    resumed = Member(SavedPosition(calls=7, steps=7))
    resumed.step("")
    with pytest.raises(PlanError, match=r"call it before the first member\.step"):
        resumed.position.first_step()


class Voter(Member):
    """A loop that votes before each step, and after each pass; a vote that others have taken has their outcome."""

    def __init__(self, kept: SavedPosition | None = None, stop: int = 10_000, taken: list[str] | None = None) -> None:
        super().__init__(kept, stop)
        self.taken = [] if taken is None else taken

    def vote(self, about: str) -> None:
        self.position.votes += 1
        number = self.position.votes - 1
        assert self.taken[number : number + 1] in ([], [about]), "it votes on what the others voted on"
        self.taken[number:] = self.taken[number:] or [about]

    def after(self, what: str) -> None:
        if not self.position.pending:  # what follows earlier steps is undone when the loop is where it was
            super().after(what)

    def shard(self, name: str = "") -> Iterator[str]:
        yield from super().shard(name)
        if torch.is_grad_enabled() and name in ("", "two "):
            self.vote(f"end of {self.position.passes}")

    def step(self, what: str) -> None:
        self.vote(f"step {what}")
        if self.position.steps + 1 == self.stop:
            self.position.stepped()
            self.position.count([3, 4])
            self.kept = self.position.here(under_way=True)
            raise Stop
        super().step(what)
        self.position.count([3, 4])


WHOLE = [each for each in LOOPS if each not in (*OWN, left_early)]  # whose passes are not broken off


@pytest.mark.parametrize("loop", WHOLE, ids=lambda loop: loop.__name__)
def test_a_loop_goes_on_where_another_one_is_in_a_step_that_is_not_done(loop: Callable[[Member], None]) -> None:
    whole = Voter()
    loop(whole)
    steps = whole.position.steps
    for stop in range(1, steps + 1):
        first = Voter(stop=stop)
        with pytest.raises(Stop):
            loop(first)
        assert first.kept is not None
        assert first.kept.steps == stop - 1 and sum(first.kept.samples) == 7 * (stop - 1)
        second = Voter(first.kept, taken=first.taken)
        loop(second)
        assert second.log.index("restored") == 0, f"nothing counts before the loop is where it was: {second.log}"
        assert first.log + second.log[1:] == whole.log, f"stopped in step {stop}"
        assert second.position.steps == steps and second.taken == whole.taken
