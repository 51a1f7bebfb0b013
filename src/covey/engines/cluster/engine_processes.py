"""The processes of this machine by which an engine runs its sites: agents and daemons that covey has started."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress

from covey.engines.process import liveness
from covey.engines.process.liveness import STOPPED, Silence, still
from covey.errors import PeerLost

SITE = "covey: site"
OURS = (SITE, "covey: fork server")  # of the processes that covey has given a name


class EngineProcesses:
    """Sees to it that none of them is stopped: the run would not hear of its sites, or would never end."""

    def __init__(self, pids: Callable[[], list[int]], stall: float, apart: bool = False) -> None:
        """`apart`: the run goes on without a lost site, so one that was stopped is only ended."""
        self.pids, self.apart = pids, apart
        self.silence: Silence[int] = Silence(stall)
        self.silence.every = self.silence.stall / 4  # to look at them all takes some milliseconds

    def check(self) -> None:
        """End what has been stopped for too long, and report it."""
        if not self.silence.due:
            return
        of_site = dict(self.below(self.pids()))
        stopped = {pid: liveness.state(pid) for pid in of_site}
        signs = {pid: how if how in STOPPED else object() for pid, how in stopped.items()}
        if silent := self.silence.look(signs):
            names = {pid: title(pid) for pid in silent if not (self.apart and of_site[pid])}
            for pid in silent:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)  # processes that wait for it go on
            told = [still(f"{name} (process {pid})", stopped[pid], self.silence.stall) for pid, name in names.items()]
            if told:
                raise PeerLost("\n".join(told))

    def below(self, pids: list[int], of_site: bool = False) -> Iterator[tuple[int, bool]]:
        """These and what they have started, each with whether it belongs to a site.

        Roles and their parents are left out, as others watch them.
        """
        for pid in pids:
            name = title(pid)
            if not name.startswith("covey: ") or name.startswith(OURS):
                belongs = of_site or name.startswith(SITE)
                yield pid, belongs
                yield from self.below(liveness.children(pid), belongs)


def title(pid: int) -> str:
    """A process as `ps` shows it."""
    with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().rstrip(b"\0 ").replace(b"\0", b" ").decode(errors="replace")[:80]
    return ""
