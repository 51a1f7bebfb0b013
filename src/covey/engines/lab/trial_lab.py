"""A lab without a run, to check whether one can be made and to measure its links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from covey.engines.lab import name, networks, quota, running
from covey.engines.lab.iproute import LabError
from covey.engines.lab.networks import Networks
from covey.engines.lab.running import Lab
from covey.simulate.units import BytesPerSecond


@contextmanager
def bare(rates: Sequence[BytesPerSecond | None]) -> Iterator[tuple[Lab, Networks]]:
    """Hosts with links of these rates, on which nothing runs yet."""
    lab = Lab(name.new())
    try:
        with running.locked():
            nets = networks.free()
            networks.lay(lab.name, rates, nets)
        yield lab, nets
    finally:
        lab.remove()


def make_one() -> str:
    """What labs can have here, in words: one host is made, with all that a lab uses, and removed."""
    with bare([BytesPerSecond(1e6)]) as (lab, _):
        return f"hosts with shaped links, {_quotas(lab)}"


def _quotas(lab: Lab) -> str:
    try:
        found = quota.groups()
        quota.limit(quota.make(str(lab.name), ["h0"], found)["h0"], 0.5)
    except (LabError, OSError) as error:
        return f"but no CPU quotas ({error})"
    return f"CPU quotas by cgroup v{found.version}"
