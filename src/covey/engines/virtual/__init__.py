"""How is a run performed in virtual time?"""

from collections.abc import Mapping, Sequence

from covey.engines.virtual.cpu_charging import CpuChargingEngine
from covey.engines.virtual.engine import VirtualEngine, VirtualOutcome
from covey.engines.virtual.run_faults import VirtualAttempt
from covey.engines.virtual.run_scores import Score
from covey.message import Address
from covey.model.replica import Replica
from covey.observe.instruments import Instrument
from covey.observe.referee import Referee
from covey.simulate import Cluster
from covey.strategy import Plan


def engine(
    plan: Plan, replicas: Mapping[Address, Replica], cluster: Cluster, instruments: Sequence[Instrument],
    referee: Referee, score: Score | None = None, formulas_from: int | None = None,
    attempt: VirtualAttempt | None = None,
) -> VirtualEngine:  # fmt: skip
    """The engine for this cluster: one that charges only compute and messages is several times faster."""
    kind = CpuChargingEngine if cluster.charges_cpu else VirtualEngine
    return kind(plan, replicas, cluster, instruments, referee, score, formulas_from, attempt)


__all__ = ["VirtualOutcome", "VirtualEngine", "engine"]
