"""The engine lab: what it takes, and whether it works here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from covey.engines.entries.engine import Engine
from covey.engines.entries.trouble import Trouble

if TYPE_CHECKING:
    from covey.engines.cluster.places import Places
    from covey.engines.lab.settings import LabSettings


@dataclass(frozen=True, kw_only=True)
class LabEngine(Engine):
    """network namespaces of this machine, with shaped links"""

    hosts: int | None = None  # as many as there are workers
    rate: str = "unshaped"  # of each link, or of each host's in order, with commas between
    cpu: float | str = ""  # cores of each host; by default an equal share

    goes_on = True
    refuses: ClassVar[Mapping[str, str]] = {
        "hosts": "which makes its hosts itself: the engine 'lab(hosts=4)'",
        "interface": "whose roles use its shaped links: omit it",
    }

    def places(self, workers: int, hosts: Path | None) -> Places:
        from covey.engines.lab import places

        return places(self.settings(workers))

    def settings(self, workers: int) -> LabSettings:
        """The rate and the cores of each host."""
        from covey.engines.lab.settings import read

        return read(workers, self.hosts, self.rate, str(self.cpu))

    @classmethod
    def check(cls) -> str:
        """Whether hosts can be made as network namespaces: one is made, and removed."""
        from covey.engines.lab import iproute, trial_lab

        if missing := iproute.missing():
            found, _, fix = missing.partition(": ")
            raise Trouble(found, f"only for this engine: {fix}", "missing")
        try:
            return trial_lab.make_one()
        except iproute.LabError as error:
            first, *_ = str(error).splitlines()
            raise Trouble(first, "only for this engine: a kernel with namespaces, veth, bridges and tbf") from error
