"""What is it called? A table from name to strategy, and the way from a SPEC to a plan's strategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from covey import topology
from covey.central.parameter_server import Asynchronous, Bsp, Ssp
from covey.central.replicated import Allreduce
from covey.decentral.elastic import Easgd
from covey.decentral.gossip import Gosgd
from covey.decentral.local_sgd import LocalSgd
from covey.decentral.neighbours import Dpsgd
from covey.errors import PlanError
from covey.spec import Call, Spec, SpecError, bind, parse, unknown
from covey.strategy import Strategy


@dataclass(frozen=True, slots=True)
class Entry:
    """A named strategy: its settings (which make it), where it was published, the graph it runs over by default."""

    settings: type[Any]
    paper: str
    graph: str | None = None

    @property
    def about(self) -> str:
        return (self.settings.__doc__ or "").strip()


STRATEGIES: Mapping[str, Entry] = {
    "bsp":          Entry(Bsp, "Valiant 1990; Chen et al. 2016"),
    "ssp":          Entry(Ssp, "Ho et al. 2013"),
    "asynchronous": Entry(Asynchronous, "Agarwal & Duchi 2011; Lian et al. 2015"),
    "allreduce":    Entry(Allreduce, "Patarasu & Yuan 2009; Li et al. 2020 (PyTorch DDP)"),
    "local_sgd":    Entry(LocalSgd, "Lin et al. 2018; Stich 2019"),
    "easgd":        Entry(Easgd, "Zhang, Choromanska & LeCun 2015"),
    "gosgd":        Entry(Gosgd, "Blot et al. 2016", graph="complete"),
    "dpsgd":        Entry(Dpsgd, "Lian et al. 2017", graph="ring"),
}  # fmt: skip

CODECS: Mapping[str, Callable[..., Any]] = {}


def names() -> list[str]:
    return list(STRATEGIES)


def resolve(spec: str | Spec, workers: int) -> Strategy:
    """The strategy that a SPEC names, for so many workers; refused at once when it cannot work."""
    spec = parse(spec) if isinstance(spec, str) else spec
    entry = STRATEGIES.get(spec.strategy.name)
    if entry is None:
        raise unknown(spec.text, spec.strategy.at, "strategy", spec.strategy.name, STRATEGIES)
    for codec in spec.codecs:
        if not CODECS:
            raise SpecError(
                spec.text, codec.at, f"no codec '{codec.name}': this covey sends numbers as they are; leave it away"
            )
        raise unknown(spec.text, codec.at, "codec", codec.name, CODECS)
    if spec.mesh:
        raise SpecError(spec.text, spec.mesh.at, "models are not cut here yet: leave 'with mesh(...)' away")
    settings = bind(spec.strategy, entry.settings, "strategy", spec.text)
    try:
        if entry.graph is None:
            if spec.topology:
                takers = ", ".join(name for name, other in STRATEGIES.items() if other.graph)
                raise PlanError(f"{spec.strategy.name} has its own topology; 'over' goes with {takers}")
            return _checked(settings.strategy(workers))
        over = spec.topology or Call(entry.graph)
        if over.name not in topology.GRAPHS:
            raise unknown(spec.text, over.at, "topology", over.name, topology.GRAPHS)
        graph = topology.build(over.name, over.settings, workers)
        return _checked(settings.strategy(workers, graph, str(over)))
    except SpecError:
        raise
    except PlanError as error:
        raise SpecError(spec.text, spec.topology.at if spec.topology else spec.strategy.at, str(error)) from None


def _checked(strategy: Strategy) -> Strategy:
    assert strategy.name in STRATEGIES, "a strategy must be called what the catalog calls it"
    return strategy
