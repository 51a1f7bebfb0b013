"""Who serves a queue? One process at a time, until it is interrupted or all jobs have ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from covey.engines.interrupt import Interrupt, interruptible
from covey.errors import CoveyError
from covey.jobs.full_disk import refused_if_full, unless_full
from covey.jobs.head import Head
from covey.jobs.job_folder import JobFolder, ServedCluster
from covey.jobs.job_log import KnownJob
from covey.policy.sharing import sharing_policy

EVERY = 0.2  # seconds between two looks


def serve(
    path: Path, slots: int, policy: str = "fair", slice: float = 60.0, *, until_empty: bool = False,
    told: Callable[[str], None] = lambda line: None,
) -> dict[str, KnownJob]:  # fmt: skip
    """Serve a folder until somebody interrupts, or with `until_empty` until all of its jobs have ended.

    Jobs that run when the head ends go on; the next head takes them over.
    """
    sharing_policy(policy)
    folder, cluster, interrupt = JobFolder(path), ServedCluster(slots, policy, slice), Interrupt()
    with refused_if_full(folder.path), folder.served(cluster) as is_ours, interruptible(interrupt):
        head = Head(folder, cluster, told := unless_full(told))
        with closing(head.log):
            told(f"serving {folder.path}: {slots} slot{'' if slots == 1 else 's'}, {policy}")
            while not interrupt.asked:
                if not is_ours():
                    raise CoveyError(
                        f"{folder.path} was removed or replaced, so this head serves it no more; jobs that ran go on: "
                        "put the folder back, or start covey jobs serve for the new one"
                    )
                head.look()
                if until_empty and head.idle:
                    break
                time.sleep(EVERY)
            return head.jobs
