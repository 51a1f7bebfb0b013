"""The random stream of a role: seeded by the run's seed and the role's name, the same in every engine."""

from __future__ import annotations

from random import Random

from covey.message import Address


def chance(seed: int, address: Address, what: str = "") -> Random:
    """The role's own stream of random numbers; `what` names another one of the same role."""
    # Random hashes a text with SHA-512, so neighbouring seeds and ranks have nothing in common.
    return Random(f"{seed}/{address.role}/{address.rank}" + (f"/{what}" if what else ""))
