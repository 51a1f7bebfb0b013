"""How does a slow cluster fit on one machine? Hosts as network namespaces, with shaped links and a share of the cores.

`--engine 'lab(hosts=4, rate=100mbit)'`. Every host has two links: `data`, shaped, on which roles speak to each other,
and `control`, unshaped, for snapshots, records and control. What the kernel here cannot do is not offered: there is no
latency setting, for that would need netem.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from covey.errors import PlanError

if TYPE_CHECKING:
    from covey.engines.lab.settings import LabSettings
    from covey.engines.lab.sites import LabPlaces


def places(wanted: LabSettings) -> LabPlaces:
    """The hosts of a lab, checked and not yet made."""
    from covey.engines.lab import iproute
    from covey.engines.lab.sites import LabPlaces  # torch comes with it, which `covey lab` does without

    if missing := iproute.missing():
        raise PlanError(f"a lab cannot be made here: {missing}")
    return LabPlaces(wanted)
