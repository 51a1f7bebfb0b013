"""How far is virtual time from real time? An endpoint and its programs in virtual time are asked at the same loads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from covey.engines import machine
from covey.inference.path.path_costs import SHARES, LoadRatio, PathCosts, ProbedLoad, percentile
from covey.inference.path.path_probe import PathProbe
from covey.inference.request_desk import FrontSettings
from covey.inference.virtual_service import VirtualService

LOADS = (0.2, 0.5, 0.85)  # shares of the highest rate that was seen
SECONDS = 3.0  # of each load

Times = Callable[[int], float]


def rehearsed(
    probe: PathProbe, highest: float, costs: PathCosts, settings: FrontSettings, times: Sequence[Times],
    cores: int | None = None,
) -> PathCosts:  # fmt: skip
    """The costs, with the ratios of real to virtual time at each load; `cores` are those of this machine, or fewer."""
    cores = cores or machine.cores()
    seen = [probe.at_rate(share * highest, SECONDS, seed) for seed, share in enumerate(LOADS)]
    found = [load_ratio(one, costs, settings, times, cores) for one in seen]
    return msgspec.structs.replace(costs, slower=tuple(sorted(found, key=lambda one: one.busy)))


def load_ratio(
    seen: ProbedLoad, costs: PathCosts, settings: FrontSettings, times: Sequence[Times], cores: int
) -> LoadRatio:  # fmt: skip
    """How much longer requests really took than the same arrivals in virtual time."""
    path = msgspec.structs.replace(costs, client=seen.client, slower=())
    service = VirtualService(settings, 1, times, path=path, cores=cores)
    for at in seen.arrivals:
        service.request(at)
    virtual, real = sorted(one.seconds for one in service.run()), sorted(seen.seconds)
    ratios = [percentile(real, share) / percentile(virtual, share) for share in SHARES]
    return LoadRatio(busy=service.busy, ratios=tuple(ratios))
