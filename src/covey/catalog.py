"""What is it called? A table from name to strategy, and the way from a SPEC to a plan's strategy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from covey import topology
from covey.central.cached import Essp, Petuum
from covey.central.parameter_server import Asynchronous, BackupWorkers, Bsp, DelayCompensated, Dssp, Softsync, Ssp
from covey.central.replicated import Allreduce
from covey.decentral.elastic import Easgd
from covey.decentral.gossip import Gosgd
from covey.decentral.local_sgd import LocalSgd
from covey.decentral.neighbours import Dpsgd
from covey.errors import PlanError
from covey.exchange.codec import CODECS, Codec
from covey.spec import Call, Spec, SpecError, bind, parse, unknown
from covey.strategy import Strategy


@dataclass(frozen=True, slots=True)
class Entry:
    """A named strategy: the settings that make it, its paper, the graph it runs over by default, may it have codecs."""

    settings: type[Any]
    paper: str
    graph: str | None = None
    codecs: bool = False

    @property
    def about(self) -> str:
        return (self.settings.__doc__ or "").strip()


STRATEGIES: Mapping[str, Entry] = {
    "bsp":          Entry(Bsp, "Valiant 1990; Chen et al. 2016", codecs=True),
    "ssp":          Entry(Ssp, "Ho et al. 2013; Jiang et al. 2017 (damping)", codecs=True),
    "asynchronous": Entry(Asynchronous, "Agarwal & Duchi 2011; Lian et al. 2015", codecs=True),
    "dssp":         Entry(Dssp, "Zhao et al. 2019", codecs=True),
    "quorum":       Entry(BackupWorkers, "Chen et al. 2016; Abadi et al. 2016", codecs=True),
    "softsync":     Entry(Softsync, "Zhang, Gupta et al. 2016", codecs=True),
    "petuum":       Entry(Petuum, "Ho et al. 2013; Xing et al. 2015"),
    "essp":         Entry(Essp, "Dai et al. 2015"),
    "dc_asgd":      Entry(DelayCompensated, "Zheng et al. 2017", codecs=True),
    "allreduce":    Entry(Allreduce, "Patarasu & Yuan 2009; Li et al. 2020 (PyTorch DDP)"),
    "local_sgd":    Entry(LocalSgd, "Lin et al. 2018; Stich 2019"),
    "easgd":        Entry(Easgd, "Zhang, Choromanska & LeCun 2015"),
    "gosgd":        Entry(Gosgd, "Blot et al. 2016", graph="complete"),
    "dpsgd":        Entry(Dpsgd, "Lian et al. 2017", graph="ring"),
}  # fmt: skip



def names() -> list[str]:
    return list(STRATEGIES)


def resolve(spec: str | Spec, workers: int) -> Strategy:
    """The strategy that a SPEC names, for so many workers; refused at once when it cannot work."""
    spec = parse(spec) if isinstance(spec, str) else spec
    entry = STRATEGIES.get(spec.strategy.name)
    if entry is None:
        raise unknown(spec.text, spec.strategy.at, "strategy", spec.strategy.name, STRATEGIES)
    if spec.mesh:
        raise SpecError(spec.text, spec.mesh.at, "models are not cut here yet: leave 'with mesh(...)' away")
    settings = bind(spec.strategy, entry.settings, "strategy", spec.text)
    try:
        strategy: Strategy = settings.strategy(workers, **_codec(spec, entry), **_graph(spec, entry, workers))
    except SpecError:
        raise
    except PlanError as error:
        raise SpecError(spec.text, spec.topology.at if spec.topology else spec.strategy.at, str(error)) from None
    assert strategy.name == spec.strategy.name, "a strategy must be called what the catalog calls it"
    return strategy


def _graph(spec: Spec, entry: Entry, workers: int) -> dict[str, Any]:
    """The graph that the strategy runs over, if it takes one."""
    if entry.graph is None:
        if spec.topology:
            takers = ", ".join(name for name, other in STRATEGIES.items() if other.graph)
            why = f"{spec.strategy.name} has its own topology; 'over' goes with {takers}"
            raise SpecError(spec.text, spec.topology.at, why)
        return {}
    over = spec.topology or Call(entry.graph)
    if over.name not in topology.GRAPHS:
        raise unknown(spec.text, over.at, "topology", over.name, topology.GRAPHS)
    return {"graph": topology.build(over.name, over.settings, workers), "over": str(over)}


def _codec(spec: Spec, entry: Entry) -> dict[str, Any]:
    """What the strategy's gradients travel as, if it lets one choose."""
    if not spec.codecs:
        return {}
    call = spec.codecs[0]
    if call.name not in CODECS:
        raise unknown(spec.text, call.at, "codec", call.name, CODECS)
    if not entry.codecs:
        takers = ", ".join(name for name, other in STRATEGIES.items() if other.codecs)
        raise SpecError(spec.text, call.at, f"{spec.strategy.name} sends whole numbers only; codecs go with {takers}")
    if len(spec.codecs) > 1:
        raise SpecError(spec.text, spec.codecs[1].at, "one codec is enough: these do not combine")
    codec: Codec = bind(call, CODECS[call.name], "codec", spec.text).codec()
    return {"codec": codec._replace(name=str(call))}
