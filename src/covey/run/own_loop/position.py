"""Where a user's own loop is, and how a script that begins at its top comes back there after `--resume`.

A checkpoint is written while the loop waits inside `member.step`: what follows there, such as `scheduler.step()`, is
still to come. So the batches of that round are given once more, the steps that were taken with them are not taken
again, and from the end of the last of them on everything is as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType

import msgspec
import torch

from covey.errors import PlanError

PATIENCE = 1000  # passes that give nothing, until the loop is taken to be one that never ends by itself


class RunEnded(BaseException):  # no Exception: a loop that goes on after any of those would never end
    """The run has ended, and the loop still asks for batches; `with covey.join(…)` ends with it, and goes on after."""


class SavedPosition(msgspec.Struct, frozen=True):
    """The position at the beginning of a round: the batches of a step, or of several, and what the loop does there."""

    passes: int = 0  # over data, that had begun
    under_way: dict[int, tuple[int, int]] = {}  # by its number: which order it deals in, how many batches it has given
    calls: int = 0  # of `step` in this round
    steps: int = 0  # and in all
    asked: bool = False  # and it had asked for one more, which was not taken
    epoch: int | None = None  # of `member.epochs`
    epoch_passes: int = 0  # that had begun before that epoch
    left: bool = False  # the loop was over
    votes: int = 0  # in which the loop had taken part
    epoch_votes: int = 0  # before that epoch
    pass_votes: dict[int, int] = {}  # when each pass that is over had ended
    samples: list[int] = []  # of each worker, in all steps


class Pass:
    """One time through a shard or a loader; `skip` batches of it were given before the run was kept."""

    def __init__(self, position: Position, number: int, order: int, skip: int = 0) -> None:
        self.position, self.number, self.order, self.given = position, number, order, skip
        self.skip = skip

    @property
    def counted(self) -> bool:
        """Whether it trains."""
        return self.number >= 0

    def __enter__(self) -> Pass:
        return self

    def give(self) -> None:
        """A batch is about to be given to the loop."""
        self.position.draws(self)
        self.given += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.position.under_way.pop(self.number, None)
        if self.counted:
            self.position.pass_votes[self.number] = self.position.votes


class Position:
    """Where the loop is; `kept` is where it was when the run was kept, and `restore` puts back what else was."""

    def __init__(
        self, kept: SavedPosition | None = None, restore: Callable[[], None] = lambda: None,
        rewind: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """Where a step is replayed and the one after it was `asked` for, `rewind` undoes what the replays have done."""
        self.kept, self.restore, self.rewind = kept or SavedPosition(), restore, rewind
        self.passes = self.calls = self.epoch_passes = self.epoch_votes = 0
        self.steps = self.kept.steps - self.kept.calls
        self.epoch: int | None = None
        self.left = self.ended = False  # the loop, and the run
        self.empty = 0  # passes that were asked for after the run had ended
        self.under_way: dict[int, Pass] = {}
        self.leading: Pass | None = None  # the one whose batch begins a round
        self.batch_index = -1  # of the batch that was given last, in its pass
        self.round = SavedPosition()
        self.replays = self.kept.calls
        self.pending = self.kept.asked  # it is where it was when it asks for its next step
        self.votes, self.pass_votes = 0, dict[int, int]()
        self.samples = list(self.kept.samples)
        self._last: tuple[int, ...] = ()  # the samples of each worker in the last step

    @property
    def resumed(self) -> bool:
        return self.kept.steps > 0

    def epochs(self, count: int) -> Iterator[int]:
        """The numbers of the epochs that are not over."""
        first = self.kept.epoch or 0
        if self.kept.epoch is not None:
            self.passes = self.kept.epoch_passes
            self.pass_votes.update(self.kept.pass_votes)
            self.votes = max(self.votes, self.kept.epoch_votes)
        for self.epoch in range(first, count):
            self.epoch_passes, self.epoch_votes = self.passes, self.votes
            yield self.epoch

    def begin(self, order: int) -> Pass | None:
        """Another pass over data; None if it was over when the run was kept, or the run has ended.

        One without gradients is not counted. Its samples are dealt in the order of that number, or in the one that
        they had when the run was kept.
        """
        if not torch.is_grad_enabled():
            return Pass(self, -1, order)
        if self.ended:
            self._give_nothing()
            return None
        number, self.passes = self.passes, self.passes + 1
        if number < self.kept.passes and number not in self.kept.under_way:
            self.votes = self.pass_votes[number] = max(self.votes, self.kept.pass_votes.get(number, 0))
            return None
        if number in self.kept.under_way:
            self.votes = max(self.votes, self.kept.votes)
        found = Pass(self, number, *self.kept.under_way.get(number, (order, 0)))
        self.under_way[number] = found
        return found

    def _give_nothing(self) -> None:
        """The run has ended; `while True: yield from loader` must end too."""
        self.empty += 1
        if self.empty >= PATIENCE:
            raise RunEnded

    def draws(self, one: Pass) -> None:
        """After a step a round begins with a batch of the pass that began the last one, or of another if that is over.

        So the batches whose gradients add up to one step are of one round.
        """
        if not one.counted:
            return
        self.batch_index = one.given
        alone = self.leading is None or self.leading.number not in self.under_way
        if self.leading is None or (self.calls and (alone or one is self.leading)):
            self.leading, self.calls = one, 0
            self.round = SavedPosition(
                self.passes, {number: (each.order, each.given) for number, each in self.under_way.items()},
                epoch=self.epoch, epoch_passes=self.epoch_passes, votes=self.votes, epoch_votes=self.epoch_votes,
            )  # fmt: skip

    def stepped(self) -> bool:
        """A step is asked for; True if it was taken before the run was kept."""
        self.calls, self.steps = self.calls + 1, self.steps + 1
        if self.replays:
            self.replays -= 1
            if not self.replays:
                (self.rewind if self.pending else self.restore)()
            return True
        if self.pending:
            self.pending = False
            self.restore()
        return False

    def first_step(self, optimizers: int = 1) -> int:
        """The last step that was taken before the run was kept, 0 if none was; the same number whenever it is asked.

        Asking says that the loop, which draws its own batches, begins there. Without this it goes through all its steps
        again, and takes none of them.
        """
        if optimizers > 1:
            raise PlanError(
                "member.first_step is for loops with one step in each iteration, and several optimizers take more: "
                "omit it, as in range(1000): a resumed loop then repeats its iterations without stepping"
            )
        if self.kept.passes:
            raise PlanError(
                "member.first_step: this loop's batches come from member.loader or member.shard, which skip them"
            )
        if self.replays > 1:
            if self.calls:
                raise PlanError("member.first_step: call it before the first member.step, which begins at that step")
            self.calls = self.steps = self.kept.steps - 1
            self.replays = 1
        return max(0, self.kept.steps - 1)

    def count(self, samples: Sequence[int]) -> None:
        """A step is about to be taken, in which each worker has this many samples."""
        self._last = tuple(samples)
        before = self.samples or [0] * len(samples)
        self.samples = [sum(pair) for pair in zip(before, samples, strict=True)]

    def here(self, under_way: bool = False) -> SavedPosition:
        """(While the loop waits in a step) What to keep; with `under_way` as if it had not asked for this step."""
        calls, steps, samples = self.calls, self.steps, self.samples
        if under_way:
            samples = [whole - last for whole, last in zip(samples, self._last, strict=True)]
            calls, steps = calls - 1, steps - 1
        return msgspec.structs.replace(
            self.round, calls=calls, steps=steps, asked=under_way, left=self.left, samples=samples,
            pass_votes=dict(self.pass_votes),
        )  # fmt: skip
