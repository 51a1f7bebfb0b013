"""What waits in links and mailboxes is bounded while a role is stuck; no strategy deadlocks with a small window."""

from __future__ import annotations

import pytest

from covey import catalog
from covey.check import laws
from covey.check.unread import watched
from covey.simulate import Cluster, Seconds
from tests.promises.specs import SPECS, workable
from tests.worlds import mlp

UNEVEN = Cluster(compute=Seconds(0.01), jitter=0.5, slowdowns={2: 3.0})
BUSIEST = {
    "gosgd": "gosgd(probability=1)", "ako": "ako(partitions=2)", "malt": "malt(bound=3)", "sgp": "sgp(overlap=2)",
}  # fmt: skip
"""Settings with which workers send without waiting for an answer, as the bare names do more rarely."""

OWN_LIMIT = {"malt(bound=3)": 4, "sgp(overlap=2)": 3}
"""How many messages may lie unread on a link of those that limit that themselves: one more than their bound."""

NAMES = [SPECS.get(name, name) for name in catalog.for_any_model()] + list(BUSIEST.values())


@pytest.mark.parametrize("spec", NAMES)
def test_a_stuck_worker_fills_no_memory_and_nobody_deadlocks(spec: str) -> None:
    """With a window of one byte: one message on each link, and one more that its receiver waits for."""
    assert not laws.bounded(spec, OWN_LIMIT.get(spec, 2), mlp(samples=64), workable(spec, 4))


@pytest.mark.full
@pytest.mark.parametrize("spec", NAMES)
def test_with_room_for_one_message_nobody_deadlocks(spec: str) -> None:
    watched(mlp(samples=64), spec, workable(spec, 4), UNEVEN, window=1, steps=9)
