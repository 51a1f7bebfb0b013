"""How many workers does each job of a cluster get? Policies: functions from what is known to an allocation."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from covey.errors import PlanError
from covey.names import meant
from covey.policy.sharing.allocation import Allocation
from covey.policy.sharing.dolphin import dolphin
from covey.policy.sharing.flexps import flexps
from covey.policy.sharing.gandiva import gandiva
from covey.policy.sharing.job_view import JobsView
from covey.policy.sharing.optimus import optimus
from covey.policy.sharing.queues import fair, fifo
from covey.policy.sharing.slaq import slaq, slaq_maxmin

SharingPolicy = Callable[[JobsView], Allocation]

POLICIES: Mapping[str, SharingPolicy] = {
    "fifo": fifo, "fair": fair, "optimus": optimus, "slaq": slaq, "slaq_maxmin": slaq_maxmin, "gandiva": gandiva,
    "dolphin": dolphin, "flexps": flexps,
}  # fmt: skip


def sharing_policy(name: str) -> SharingPolicy:
    """The policy of this name."""
    if name not in POLICIES:
        raise PlanError(f"there is no policy {name!r}{meant(name, POLICIES)}")
    return POLICIES[name]
