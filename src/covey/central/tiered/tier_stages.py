"""Which machines serve, and which train, by how many of them may vanish (Harlap et al. 2017: AgileML's stages)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from covey.message import Address


class Tiers(NamedTuple):
    """Who does what until somebody comes or goes."""

    stage: int
    owners: tuple[Address, ...]  # who steps each partition
    team: tuple[int, ...]  # the workers that compute


@dataclass(frozen=True, slots=True)
class TierRule:
    """When to use which stage.

    Args:
        reliable: How many machines stay; each has a server, and the workers of the same numbers.
        partitions: Into how many the parameters are divided, for the whole run.
        second: Above how many transient machines for a reliable one they serve, and reliable ones keep backups.
        third: Above how many reliable machines do not train, as they have enough to do with backups.
    """

    reliable: int
    partitions: int
    second: float = 1.0
    third: float = 15.0

    def stage(self, transient: int) -> int:
        """1: reliable machines serve; 2: transient ones do, with backups on reliable ones; 3: also train alone."""
        ratio = transient / self.reliable
        return 1 if ratio <= self.second else 2 if ratio <= self.third else 3

    def keeper(self, partition: int) -> Address:
        """The server on whose machine a partition, or its backup, is."""
        return Address("server", partition % self.reliable)

    def arrange(self, present: Collection[int], serving: Sequence[Address] = ()) -> Tiers:
        """The roles of the workers that are there; those that are `serving` already go on with it, if they can."""
        transient = [rank for rank in sorted(present) if rank >= self.reliable]
        stage = self.stage(len(transient))
        if stage == 1:
            return Tiers(1, tuple(map(self.keeper, range(self.partitions))), tuple(sorted(present)))
        order = dict.fromkeys([*(who.rank for who in serving if who.role == "worker"), *transient])
        # half of the transient machines serve (Harlap et al. 2017, section 3.2)
        hosts = [rank for rank in order if rank in transient][: (len(transient) + 1) // 2]
        owners = tuple(Address("worker", hosts[number % len(hosts)]) for number in range(self.partitions))
        return Tiers(stage, owners, tuple(transient) if stage == 3 else tuple(sorted(present)))
