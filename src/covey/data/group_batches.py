"""The batches of a group whose members pass over their data together."""

from __future__ import annotations

from covey.data.shards import Shards


class GroupBatches:
    """Who computes which of its batches at a step of the group.

    Shares of the data differ by a sample, and so may the numbers of batches: who has none left in a pass takes part
    without samples until the others are through.
    """

    def __init__(self, deal: Shards, members: int) -> None:
        self.deal, self.members = deal, members

    def ranks(self, replica: int) -> range:
        """Of a replica's members, as the data is dealt out."""
        return range(replica * self.members, (replica + 1) * self.members)

    def steps(self, replica: int) -> int:
        """Of a group in a pass over its data."""
        return max(self.deal.steps(rank) for rank in self.ranks(replica))

    def own(self, rank: int, step: int) -> int | None:
        """Which of its own batches a member computes; None: it has none left in this pass."""
        passes, done = divmod(step, self.steps(rank // self.members))
        mine = self.deal.steps(rank)
        return passes * mine + done if done < mine else None

    def batch(self, rank: int, step: int) -> int:
        """How many samples a member has."""
        own = self.own(rank, step)
        return 0 if own is None else self.deal.batch(rank, own)

    def samples(self, replica: int, step: int) -> int:
        """How many all members of a replica have."""
        return sum(self.batch(rank, step) for rank in self.ranks(replica))

    def total(self, rank: int, steps: int) -> int:
        """How many samples a member sees in so many steps of its group."""
        passes, rest = divmod(steps, self.steps(rank // self.members))
        size = self.deal.size(rank)
        return passes * size + min(size, rest * self.deal.batch_size)
