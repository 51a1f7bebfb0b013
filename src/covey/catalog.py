"""What is it called? A table from name to strategy, and the way from a SPEC to a plan's strategy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from covey import topology
from covey.central.aggressive import ABsp
from covey.central.cached import Essp, Petuum
from covey.central.coded import GradientCoding
from covey.central.downpour import Downpour
from covey.central.layouts import LAYOUTS
from covey.central.managed import Bosen
from covey.central.parameter_server import (
    Asynchronous,
    BackupWorkers,
    Bsp,
    DelayCompensated,
    Dssp,
    Softsync,
    Ssp,
    ValueBound,
)  # fmt: skip
from covey.central.poseidon import Poseidon
from covey.central.replicated import Allreduce
from covey.central.sandblaster import Sandblaster
from covey.central.scheduled import P3, ByteScheduler, Staggered, TicTac
from covey.central.sliced import BigDl, CaffeOnSpark, Sliced
from covey.central.speculative import SpecSync
from covey.central.tree import FireCaffe
from covey.central.value_bound import Vap
from covey.decentral.butterfly import Butterfly
from covey.decentral.crossbow import Crossbow
from covey.decentral.dogwild import Dogwild
from covey.decentral.elastic import Eamsgd, Easgd
from covey.decentral.extrapolated import Mpca
from covey.decentral.gossip import Gosgd
from covey.decentral.hogwild import Hogwild, HogwildPlusPlus
from covey.decentral.local_sgd import LocalSgd
from covey.decentral.malt import Malt
from covey.decentral.neighbours import Dpsgd
from covey.decentral.outer import Bmuf, Diloco
from covey.decentral.pairwise import Adpsgd
from covey.decentral.partial import Ako
from covey.decentral.push_sum import Sgp
from covey.decentral.sparknet import SparkNet
from covey.decentral.tree import TreeEasgd
from covey.errors import PlanError
from covey.exchange.codec import Codec
from covey.exchange.codecs import CODECS
from covey.spec import Call, Spec, SpecError, bind, parse, unknown
from covey.strategy import Strategy
from covey.systems import LATER, SYSTEMS, System


@dataclass(frozen=True, slots=True)
class Entry:
    """A named strategy: the settings that make it, its paper, the graph it runs over by default, may it have codecs."""

    settings: type[Any]
    paper: str
    graph: str | None = None
    codecs: bool = False
    placed: bool = False  # has servers, which `over` places
    example: str = ""  # what trains the digits, where the bare name's defaults are for far longer runs or refuse them

    @property
    def about(self) -> str:
        return (self.settings.__doc__ or "").strip()


STRATEGIES: Mapping[str, Entry] = {
    "bsp":          Entry(Bsp, "Valiant 1990; Chen et al. 2016", codecs=True, placed=True),
    "ssp":          Entry(Ssp, "Ho et al. 2013; Jiang et al. 2017 (damping)", codecs=True, placed=True),
    "asynchronous": Entry(Asynchronous, "Agarwal & Duchi 2011; Lian et al. 2015", codecs=True, placed=True),
    "dssp":         Entry(Dssp, "Zhao et al. 2019", codecs=True, placed=True),
    "quorum":       Entry(BackupWorkers, "Chen et al. 2016; Abadi et al. 2016", codecs=True, placed=True),
    "softsync":     Entry(Softsync, "Zhang, Gupta et al. 2016", codecs=True, placed=True),
    "petuum":       Entry(Petuum, "Ho et al. 2013; Xing et al. 2015", placed=True),
    "essp":         Entry(Essp, "Dai et al. 2015", placed=True),
    "bosen":        Entry(Bosen, "Wei et al. 2015", placed=True),
    "dc_asgd":      Entry(DelayCompensated, "Zheng et al. 2017", codecs=True, placed=True),
    "vap":          Entry(Vap, "Wei et al. 2013; Dai et al. 2015"),
    "value_bound":  Entry(ValueBound, "Langer et al. 2020", codecs=True),
    "a_bsp":        Entry(ABsp, "Wang et al. 2018"),
    "specsync":     Entry(SpecSync, "Zhang et al. 2018"),
    "gradient_coding": Entry(GradientCoding, "Tandon et al. 2017"),
    "downpour":     Entry(Downpour, "Dean et al. 2012; Li et al. 2014 (filters)"),
    "sandblaster":  Entry(Sandblaster, "Dean et al. 2012"),
    "sliced":       Entry(Sliced, "Dai et al. 2019; Feng et al. 2016", codecs=True),
    "bigdl":        Entry(BigDl, "Dai et al. 2019"),
    "caffeonspark": Entry(CaffeOnSpark, "Feng et al. 2016"),
    "p3":           Entry(P3, "Jayarajan et al. 2019"),
    "tictac":       Entry(TicTac, "Hashemi et al. 2019"),
    "bytescheduler": Entry(ByteScheduler, "Peng et al. 2019"),
    "staggered":    Entry(Staggered, "Tsai et al. 2018"),
    "firecaffe":    Entry(FireCaffe, "Iandola et al. 2015"),
    "allreduce":    Entry(Allreduce, "Patarasu & Yuan 2009; Li et al. 2020 (PyTorch DDP)"),
    "poseidon":     Entry(Poseidon, "Zhang et al. 2017"),
    "local_sgd":    Entry(LocalSgd, "Lin et al. 2018; Stich 2019"),
    "easgd":        Entry(Easgd, "Zhang, Choromanska & LeCun 2015"),
    "gosgd":        Entry(Gosgd, "Blot et al. 2016", graph="complete"),
    "dpsgd":        Entry(Dpsgd, "Lian et al. 2017", graph="ring"),
    "adpsgd":       Entry(Adpsgd, "Lian et al. 2018", graph="bipartite"),
    "sgp":          Entry(Sgp, "Assran et al. 2019", graph="one_peer_exponential"),
    "malt":         Entry(Malt, "Li et al. 2015", graph="complete"),
    "ako":          Entry(Ako, "Watcharapichat et al. 2016"),
    "hogwild":      Entry(Hogwild, "Recht et al. 2011", example="hogwild(momentum=drop)"),
    "hogwild++":    Entry(HogwildPlusPlus, "Zhang, Hsieh & Akella 2016", example="hogwild++(momentum=drop)"),
    "dogwild":      Entry(Dogwild, "Noel & Osindero 2014"),
    "bmuf":         Entry(Bmuf, "Chen & Huo 2016"),
    "diloco":       Entry(Diloco, "Douillard et al. 2023", example="diloco(period=8)"),
    "sparknet":     Entry(SparkNet, "Moritz et al. 2016"),
    "crossbow":     Entry(Crossbow, "Koliousis et al. 2019"),
    "butterfly":    Entry(Butterfly, "Zhao & Canny 2013"),
    "eamsgd":       Entry(Eamsgd, "Zhang, Choromanska & LeCun 2015", example="eamsgd(momentum=0.9)"),
    "tree_easgd":   Entry(TreeEasgd, "Zhang 2016"),
    "mpca":         Entry(Mpca, "Langer et al. 2018"),
}  # fmt: skip


def names() -> list[str]:
    """The strategies that are programs of their own; `SYSTEMS` are compositions of them."""
    return list(STRATEGIES)


def resolve(spec: str | Spec, workers: int) -> Strategy:
    """The strategy that a SPEC names, for so many workers; refused at once when it cannot work."""
    spec = parse(spec) if isinstance(spec, str) else spec
    if spec.strategy.name in SYSTEMS:
        return _system(spec, SYSTEMS[spec.strategy.name], workers)
    entry = STRATEGIES.get(spec.strategy.name)
    if entry is None:
        if spec.strategy.name in LATER:
            raise SpecError(spec.text, spec.strategy.at, f"{spec.strategy.name} {LATER[spec.strategy.name]}")
        raise unknown(spec.text, spec.strategy.at, "strategy", spec.strategy.name, [*STRATEGIES, *SYSTEMS])
    if spec.mesh:
        raise SpecError(spec.text, spec.mesh.at, "models are not cut here yet: leave 'with mesh(...)' away")
    settings = bind(spec.strategy, entry.settings, "strategy", spec.text)
    try:
        strategy: Strategy = settings.strategy(workers, **_codec(spec, entry), **_graph(spec, entry, workers))
        strategy = _placed(spec, entry, strategy, workers)
    except SpecError:
        raise
    except PlanError as error:
        raise SpecError(spec.text, spec.topology.at if spec.topology else spec.strategy.at, str(error)) from None
    assert strategy.name == spec.strategy.name, "a strategy must be called what the catalog calls it"
    return strategy


def _system(spec: Spec, system: System, workers: int) -> Strategy:
    """A system's composition under its own name; what the user wrote goes before what it is made of."""
    made_of = parse(system.spec)
    settings = {**made_of.strategy.settings, **spec.strategy.settings}
    call = replace(spec.strategy, name=made_of.strategy.name, settings=settings)
    whole = replace(spec, strategy=call, topology=spec.topology or made_of.topology)
    return replace(resolve(whole, workers), name=spec.strategy.name)


def _graph(spec: Spec, entry: Entry, workers: int) -> dict[str, Any]:
    """The graph that the strategy runs over, if it takes one."""
    if entry.graph is None:
        if spec.topology and not entry.placed:
            takers = ", ".join(name for name, other in STRATEGIES.items() if other.graph or other.placed)
            why = f"{spec.strategy.name} has its own topology; 'over' goes with {takers}"
            raise SpecError(spec.text, spec.topology.at, why)
        return {}
    over = spec.topology or Call(entry.graph)
    if over.name not in topology.GRAPHS:
        raise unknown(spec.text, over.at, "topology", over.name, topology.GRAPHS)
    return {"graph": topology.build(over.name, over.settings, workers), "over": str(over)}


def _placed(spec: Spec, entry: Entry, strategy: Strategy, workers: int) -> Strategy:
    """The strategy with its servers where `over` puts them."""
    if not entry.placed or spec.topology is None:
        return strategy
    if spec.topology.name not in LAYOUTS:
        raise unknown(spec.text, spec.topology.at, "layout of servers", spec.topology.name, LAYOUTS)
    layout = bind(spec.topology, LAYOUTS[spec.topology.name], "layout", spec.text)
    return layout.place(strategy, workers)


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
    return {"codec": replace(codec, name=str(call))}
