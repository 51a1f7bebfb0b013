"""The launcher's view of custom training loops: votes, sample orders, and workers that have left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from covey.engines.process import control
from covey.errors import PlanError
from covey.message import Address

COUNT: dict[control.How, Callable[[Sequence[float]], float]] = {
    "any": lambda values: float(any(values)),
    "all": lambda values: float(all(values)),
    "mean": lambda values: sum(values) / len(values),
    "sum": sum,
}
TOGETHER = (
    "all must take equally many steps. If workers have different amounts of data, take batches from member.loader(…) "
    "or member.shard(…) over all of the data, which give each equally many. To stop early, stop together: "
    '`if member.agree(done, how="any"): break`; to skip a batch, let all skip it: `if member.agree(not '
    "torch.isfinite(loss).item()): continue`. Or use a strategy that waits for nobody, such as easgd or asynchronous"
)
SHARD = "member.shard with"  # begins the fingerprint of a pass that has no sampler, and says what it has
EQUALLY = "all workers must call it equally often before they leave"


class OwnLoops:
    """Each loop is a worker's; `in_step`: they wait for one another, so all must take equally many steps."""

    def __init__(
        self, workers: Sequence[Address], in_step: bool, tell: Callable[[Iterable[Address], control.Downward], None],
        elastic: bool = False,
    ) -> None:  # fmt: skip
        self.workers, self.in_step, self.tell = workers, in_step, tell
        self.elastic = elastic  # a lost worker's next incarnation goes through votes again
        self.away: set[Address] = set()  # that are lost, and their next incarnations until they know where they are
        self.results: dict[int, control.VoteResult] = {}  # of all votes, where somebody may ask again
        self.votes: dict[int, dict[Address, control.Vote]] = {}
        self.given = dict.fromkeys(workers, 0)
        self.left: dict[Address, control.Left] = {}
        self.over: set[Address] = set()  # whose run ended before their loops did
        self.orders: dict[int, dict[Address, str]] = {}

    def hear(self, who: Address, word: control.Vote | control.Left | control.SampleOrder) -> None:
        """A loop votes, leaves, or begins to read; what cannot go well is refused at once, with names."""
        if isinstance(word, control.SampleOrder):
            return self.compare(who, word)
        if isinstance(word, control.Vote) and word.number in self.results:
            return self.tell([who], self.results[word.number])
        if isinstance(word, control.Left):
            self.check_equal(who, word)
            self.left[who] = word
        else:
            self.check_alike(who, word)
            self.votes.setdefault(word.number, {})[who] = word
        self.check_present()
        for worker in self.workers:
            self.check_step(worker)
        self.close_votes()

    def note(self, who: Address, word: control.Report | control.RoleEnded) -> None:
        """How far a worker is."""
        if isinstance(word, control.RoleEnded):
            if who in self.given and who not in self.left:
                self.over.add(who)
                self.close_votes()
        elif who in self.given:
            self.given[who] = word.given
            self.check_step(who)

    def lose(self, who: Address) -> None:
        """A worker is lost: votes end without it until its next incarnation is where the others are."""
        self.away.add(who)
        self.left.pop(who, None)
        self.over.discard(who)
        for number, votes in list(self.votes.items()):
            if votes.pop(who, None) and not votes:
                del self.votes[number]
        self.close_votes()

    def hear_incarnation(self, who: Address, word: control.Installed | control.Resumed) -> None:
        """A new incarnation knows where it goes on: it votes again."""
        if isinstance(word, control.Resumed):
            self.away.discard(word.who or who)

    def check_alike(self, who: Address, vote: control.Vote) -> None:
        """All vote on the same thing."""
        for other, theirs in self.votes.get(vote.number, {}).items():
            if (theirs.about, theirs.how) != (vote.about, vote.how):
                raise PlanError(
                    f"{who} called {vote.about} after {vote.steps} steps where {other} called {theirs.about} after "
                    f"{theirs.steps}: all workers must make the same calls in the same order"
                )

    def check_present(self) -> None:
        """All workers that must vote are still there."""
        for number, votes in self.votes.items():
            for gone, left in self.left.items():
                if left.votes < number:
                    who, vote = next(iter(votes.items()))
                    raise PlanError(
                        f"{gone} left its training loop after {left.steps} steps, and {who} waits for it in "
                        f"{vote.about} after {vote.steps}: {TOGETHER if self.in_step else EQUALLY}"
                    )

    def check_equal(self, who: Address, word: control.Left) -> None:
        """Where workers wait for one another, none has taken more steps than another that has left."""
        for gone, left in self.left.items():
            if self.in_step and word.steps != left.steps:
                raise PlanError(
                    f"{gone} left its training loop after {left.steps} steps, and {who} after {word.steps}, under a "
                    f"strategy whose workers wait for one another: {TOGETHER}"
                )

    def check_step(self, who: Address) -> None:
        """Where workers wait for one another, none takes a step that another will not take."""
        if not self.in_step or who in self.left or who in self.over or who in self.away:
            return
        for gone, left in self.left.items():
            if self.given[who] > left.steps:
                raise PlanError(
                    f"{gone} left its training loop after {left.steps} steps, and {who} goes on, under a strategy "
                    f"whose workers wait for one another: {TOGETHER}"
                )
        for votes in self.votes.values():
            for voter, vote in votes.items():
                if who not in votes and self.given[who] > vote.steps:
                    raise PlanError(
                        f"{voter} waits in {vote.about} after {vote.steps} steps, and {who} went on to the next step "
                        "without it: all workers must make the same calls, with the same arguments, at the same place "
                        "of the loop"
                    )

    def close_votes(self) -> None:
        """End every vote that all have cast."""
        for number, votes in list(self.votes.items()):
            if all(worker in votes or worker in self.over or worker in self.away for worker in self.workers):
                del self.votes[number]
                cast = [votes[worker] for worker in self.workers if worker in votes]
                result = control.VoteResult(number, COUNT[cast[0].how]([vote.value for vote in cast]))
                if self.elastic:
                    self.results[number] = result
                self.tell(votes, result)

    def waits_for_votes(self, workers: Iterable[Address]) -> bool:
        """Whether all of these wait for another worker's vote."""
        return bool(self.votes) and all(any(who in votes for votes in self.votes.values()) for who in workers)

    def compare(self, who: Address, order: control.SampleOrder) -> None:
        """All loaders must go through the samples in one order, of which each worker takes its share."""
        told = self.orders.setdefault(order.number, {})
        for other, theirs in told.items():
            if theirs == order.fingerprint:
                continue
            both = order.fingerprint, theirs
            if any(SHARD in each for each in both):
                mine, yours = (each if SHARD in each else "member.loader" for each in both)
                raise PlanError(
                    f"{who} takes its batches from {mine}, and {other} in the same pass from {yours}: give all workers "
                    "all of the data, and the same batch_size; member.shard gives each its share"
                )
            raise PlanError(
                f"the loader of {who} draws different samples from that of {other}, so their shares would overlap: "
                "its sampler and generator must be made the same way on all workers, without the rank or the time"
            )
        told[who] = order.fingerprint
        if len(told) == len(self.workers):
            del self.orders[order.number]

    def gone(self) -> str:
        """Who has left, in words; nothing while all are there."""
        return "".join(f"\n  {who} left its training loop after {left.steps} steps" for who, left in self.left.items())
