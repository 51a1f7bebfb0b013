"""The processes of this machine by which an engine runs its sites: agents and daemons that covey has started."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress

from covey.engines.process import liveness
from covey.engines.process.liveness import STOPPED, Silence, still
from covey.errors import PeerLost

OURS = ("covey: site", "covey: fork server")  # of the processes that covey has given a name


class EngineProcesses:
    """Sees to it that none of them is stopped: the run would not hear of its sites, or would never end."""

    def __init__(self, pids: Callable[[], list[int]], stall: float) -> None:
        self.pids = pids
        self.silence: Silence[int] = Silence(stall)
        self.silence.every = self.silence.stall / 4  # to look at them all takes some milliseconds

    def check(self) -> None:
        """End what has been stopped for too long, and report it."""
        if not self.silence.due:
            return
        stopped = {pid: liveness.state(pid) for pid in self.below(self.pids())}
        signs = {pid: how if how in STOPPED else object() for pid, how in stopped.items()}
        if silent := self.silence.look(signs):
            names = {pid: title(pid) for pid in silent}
            for pid in silent:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)  # processes that wait for it go on
            told = [still(f"{name} (process {pid})", stopped[pid], self.silence.stall) for pid, name in names.items()]
            raise PeerLost("\n".join(told))

    def below(self, pids: list[int]) -> Iterator[int]:
        """These and what they have started, but for roles and their parents, whom others watch."""
        for pid in pids:
            name = title(pid)
            if not name.startswith("covey: ") or name.startswith(OURS):
                yield pid
                yield from self.below(liveness.children(pid))


def title(pid: int) -> str:
    """A process as `ps` shows it."""
    with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().rstrip(b"\0 ").replace(b"\0", b" ").decode(errors="replace")[:80]
    return ""
