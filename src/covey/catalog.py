"""What is it called? A table from name to strategy, and the way from a SPEC to a plan's strategy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from covey import compose, registry, topology
from covey.central.cached.bosen import Bosen
from covey.central.cached.petuum import Essp, Petuum
from covey.central.cached.value_bound import Vap
from covey.central.layers.outer_products import OuterProducts
from covey.central.layers.poseidon import Poseidon
from covey.central.layers.weird_trick import OneWeirdTrick
from covey.central.layouts import LAYOUTS
from covey.central.lbfgs.sandblaster import Sandblaster
from covey.central.replicated.allreduce import Allreduce
from covey.central.replicated.firecaffe import FireCaffe
from covey.central.replicated.gradient_coding import GradientCoding
from covey.central.scheduled.priorities import P3, ByteScheduler, Staggered, TicTac
from covey.central.server.aggressive import ABsp
from covey.central.server.delayed import BoundedDelay
from covey.central.server.downpour import Downpour
from covey.central.server.parameter_server import (
    Asynchronous,
    BackupWorkers,
    Bsp,
    DelayCompensated,
    Dssp,
    Softsync,
    Ssp,
    ValueBound,
)  # fmt: skip
from covey.central.server.speculative import SpecSync
from covey.central.sliced.slice_owners import BigDl, CaffeOnSpark, Sliced
from covey.decentral.averaging.crossbow import Crossbow
from covey.decentral.averaging.local_sgd import LocalSgd
from covey.decentral.averaging.mpca import Mpca
from covey.decentral.averaging.outer import Bmuf, Diloco
from covey.decentral.averaging.sparknet import SparkNet
from covey.decentral.elastic.easgd import Eamsgd, Easgd
from covey.decentral.elastic.tree_easgd import TreeEasgd
from covey.decentral.gossip.adpsgd import Adpsgd
from covey.decentral.gossip.ako import Ako
from covey.decentral.gossip.butterfly_mixing import Butterfly
from covey.decentral.gossip.dpsgd import Dpsgd
from covey.decentral.gossip.gosgd import Gosgd
from covey.decentral.gossip.malt import Malt
from covey.decentral.gossip.push_sum import Sgp
from covey.decentral.shared.dogwild import Dogwild
from covey.decentral.shared.hogwild import Hogwild, HogwildPlusPlus
from covey.errors import PlanError
from covey.exchange.codec import Codec, dense
from covey.parallelism.pipeline.hybrid import meshed
from covey.parallelism.plan.mesh import Mesh
from covey.spec import Call, Made, Spec, SpecError, bind, parse, unknown
from covey.strategy import Composition, Entry, Strategy, Taken
from covey.systems import LATER, SYSTEMS, System

ROWS_WAIT = "compresses already: rows of changes wait until its rate leaves room for them; petuum is it without rows"
CODES_ADD = "adds and subtracts what comes until only the mean is left, which needs exact numbers"
SEARCHES = "searches along a line, which needs exact losses and gradients"
OWN_WIRE = "has its own wire; sliced is it with any codec"
TREE_ADDS = "adds up on the way to its root, and nobody but the root could decode; use allreduce(pattern=binomial)"
FACTORS = "sends factors, which must make the gradient to the bit; use allreduce"
EXACT_FACTORS = "sends factors, which must make the gradient to the bit; use asynchronous"
OUTPUTS = "sends what layers make, not their gradients; use allreduce"
ONE_MEMORY = "writes into memory that all share: nothing travels"
LOSSY = "loses blocks on the way, and what a codec carries on must arrive; use gosgd or malt"
"""Why a strategy takes no codec."""

GATES = "looks into one worker's whole forward and backward, of which a stage has a part: use bsp, sliced or allreduce"
"""Why a strategy takes no cut models."""

CUTS_ITSELF = "divides the layers of its model itself: omit 'with mesh(...)'"

STRATEGIES = registry.STRATEGIES
STRATEGIES |= {
    "bsp":          Entry(Bsp, "Valiant 1990; Chen et al. 2016", codecs="pushes", placed=True),
    "ssp":          Entry(Ssp, "Ho et al. 2013; Jiang et al. 2017 (damping)", codecs="pushes", placed=True),
    "bounded_delay": Entry(BoundedDelay, "Li et al. 2014", codecs="pushes", placed=True),
    "asynchronous": Entry(Asynchronous, "Agarwal & Duchi 2011; Lian et al. 2015", codecs="pushes", placed=True),
    "dssp":         Entry(Dssp, "Zhao et al. 2019", codecs="pushes", placed=True),
    "quorum":       Entry(BackupWorkers, "Chen et al. 2016; Abadi et al. 2016", codecs="pushes", placed=True),
    "softsync":     Entry(Softsync, "Zhang, Gupta et al. 2016", codecs="pushes", placed=True),
    "petuum":       Entry(Petuum, "Ho et al. 2013; Xing et al. 2015", placed=True, codecs="pushes"),
    "essp":         Entry(Essp, "Dai et al. 2015", placed=True, codecs="pushes"),
    "bosen":        Entry(Bosen, "Wei et al. 2015", placed=True, plain=ROWS_WAIT),
    "dc_asgd":      Entry(DelayCompensated, "Zheng et al. 2017", codecs="pushes", placed=True),
    "vap":          Entry(Vap, "Wei et al. 2013; Dai et al. 2015", codecs="exchanges"),
    "value_bound":  Entry(ValueBound, "Langer et al. 2020", codecs="pushes"),
    "a_bsp":        Entry(ABsp, "Wang et al. 2018", codecs="pushes"),
    "specsync":     Entry(SpecSync, "Zhang et al. 2018", codecs="pushes"),
    "gradient_coding": Entry(GradientCoding, "Tandon et al. 2017", plain=CODES_ADD),
    "downpour":     Entry(Downpour, "Dean et al. 2012; Li et al. 2014 (filters)", codecs="pushes"),
    "sandblaster":  Entry(Sandblaster, "Dean et al. 2012", plain=SEARCHES),
    "sliced":       Entry(Sliced, "Dai et al. 2019; Feng et al. 2016", codecs="pushes"),
    "bigdl":        Entry(BigDl, "Dai et al. 2019", plain=OWN_WIRE),
    "caffeonspark": Entry(CaffeOnSpark, "Feng et al. 2016", plain=OWN_WIRE),
    "p3":           Entry(P3, "Jayarajan et al. 2019", codecs="pushes", whole=GATES),
    "tictac":       Entry(TicTac, "Hashemi et al. 2019", codecs="pushes", whole=GATES),
    "bytescheduler": Entry(ByteScheduler, "Peng et al. 2019", codecs="pushes", whole=GATES),
    "staggered":    Entry(Staggered, "Tsai et al. 2018", codecs="pushes", whole=GATES),
    "firecaffe":    Entry(FireCaffe, "Iandola et al. 2015", plain=TREE_ADDS),
    "allreduce":    Entry(Allreduce, "Patarasu & Yuan 2009; Li et al. 2020 (PyTorch DDP)", codecs="exchanges"),
    "poseidon":     Entry(Poseidon, "Zhang et al. 2017", plain=FACTORS, whole=GATES),
    "outer_products": Entry(OuterProducts, "Chilimbi et al. 2014", plain=EXACT_FACTORS, placed=True),
    "one_weird_trick": Entry(OneWeirdTrick, "Krizhevsky 2014", plain=OUTPUTS, whole=CUTS_ITSELF),
    "local_sgd":    Entry(LocalSgd, "Lin et al. 2018; Stich 2019", codecs="exchanges"),
    "easgd":        Entry(Easgd, "Zhang, Choromanska & LeCun 2015", codecs="exchanges"),
    "gosgd":        Entry(Gosgd, "Blot et al. 2016", graph="complete", codecs="exchanges"),
    "dpsgd":        Entry(Dpsgd, "Lian et al. 2017", graph="ring", codecs="exchanges"),
    "adpsgd":       Entry(Adpsgd, "Lian et al. 2018", graph="bipartite", codecs="exchanges"),
    "sgp":          Entry(Sgp, "Assran et al. 2019", graph="one_peer_exponential", codecs="exchanges"),
    "malt":         Entry(Malt, "Li et al. 2015", graph="complete", codecs="exchanges"),
    "ako":          Entry(Ako, "Watcharapichat et al. 2016", codecs="exchanges"),
    "hogwild":      Entry(Hogwild, "Recht et al. 2011", example="hogwild(momentum=drop)", plain=ONE_MEMORY),
    "hogwild++":    Entry(
        HogwildPlusPlus, "Zhang, Hsieh & Akella 2016", example="hogwild++(momentum=drop)", plain=ONE_MEMORY
    ),
    "dogwild":      Entry(Dogwild, "Noel & Osindero 2014", plain=LOSSY),
    "bmuf":         Entry(Bmuf, "Chen & Huo 2016", codecs="exchanges"),
    "diloco":       Entry(Diloco, "Douillard et al. 2023", example="diloco(period=8)", codecs="exchanges"),
    "sparknet":     Entry(SparkNet, "Moritz et al. 2016", codecs="exchanges"),
    "crossbow":     Entry(Crossbow, "Koliousis et al. 2019", codecs="exchanges"),
    "butterfly":    Entry(Butterfly, "Zhao & Canny 2013", codecs="exchanges"),
    "eamsgd":       Entry(
        Eamsgd, "Zhang, Choromanska & LeCun 2015", example="eamsgd(momentum=0.9)", codecs="exchanges"
    ),
    "tree_easgd":   Entry(TreeEasgd, "Zhang 2016", codecs="exchanges"),
    "mpca":         Entry(Mpca, "Langer et al. 2018", codecs="exchanges"),
}  # fmt: skip


register = registry.register  # which must not be called before covey's own names are in the table


def names() -> list[str]:
    """The strategies that are programs of their own; `SYSTEMS` are compositions of them."""
    return list(STRATEGIES)


def chosen(strategy: str | Spec | Any, workers: int) -> Spec:
    """What was asked for, as a value: a SPEC, or an object with a method `strategy(workers)`.

    Names and objects that only this process knows are bound to their settings, so that the value can travel.
    """
    if not isinstance(strategy, str | Spec):
        return _of_object(strategy, workers)
    spec = parse(strategy) if isinstance(strategy, str) else strategy
    calls = (spec.strategy, *spec.codecs)
    if any(not call.made and not registry.taken(call.name) for call in calls):
        registry.search()
    for call in calls:
        if not call.made and (why := registry.why_unusable(call.name)):
            raise SpecError(spec.text, call.at, why)
    name, entry = spec.strategy.name, STRATEGIES.get(spec.strategy.name)
    if entry and not spec.strategy.made and registry.own_name(entry.settings):
        made = Made(bind(spec.strategy, entry.settings, "strategy", spec.text), entry)
        spec = replace(spec, strategy=replace(spec.strategy, made=made))
    elif not entry and not spec.strategy.made and name not in SYSTEMS:
        if name in LATER:
            raise SpecError(spec.text, spec.strategy.at, f"{name} {LATER[name]}")
        raise unknown(spec.text, spec.strategy.at, "strategy", name, [*STRATEGIES, *SYSTEMS])
    return replace(spec, codecs=tuple(compose.bound(call, spec.text, registry.own_name) for call in spec.codecs))


def _of_object(given: Any, workers: int) -> Spec:
    """The SPEC of a settings object."""
    made_by = getattr(type(given), "strategy", None)
    if isinstance(given, type) or not callable(made_by):
        raise PlanError(
            f"strategy={given!r:.60} is not a strategy: give a SPEC such as 'ssp(bound=3)', or an object with a method "
            "strategy(workers) that gives a covey.Strategy"
        )
    name = registry.registered(type(given)) or next((n for n, e in STRATEGIES.items() if e.settings is type(given)), "")
    if name:
        return Spec(Call(name, made=Made(given, STRATEGIES[name])))
    strategy = given.strategy(workers)
    if not isinstance(strategy, Strategy):
        raise PlanError(f"{type(given).__qualname__}.strategy(workers) gave {strategy!r:.60}, not a covey.Strategy")
    if what := registry.taken(strategy.name):
        raise PlanError(f"there is a {what} '{strategy.name}' already: give {type(given).__qualname__} another name")
    plain = "is an object without registered codecs: use @covey.register"
    whole = "is an object: register it with @covey.register(…, cuts=True) if it works with cut models"
    return Spec(Call(strategy.name, made=Made(given, Entry(type(given), "", plain=plain, whole=whole))))


def resolve(spec: str | Spec | Any, workers: int) -> Strategy:
    """The strategy that a SPEC names, for so many workers; refused at once when it cannot work."""
    spec = chosen(spec, workers)
    if spec.strategy.name in SYSTEMS:
        return _system(spec, SYSTEMS[spec.strategy.name], workers)
    entry: Entry = spec.strategy.made.entry if spec.strategy.made else STRATEGIES[spec.strategy.name]
    if spec.mesh:
        return _meshed(spec, spec.mesh, entry, workers)
    settings = bind(spec.strategy, entry.settings, "strategy", spec.text)
    codec = compose.codec(spec, {**_takers(), spec.strategy.name: entry.codecs}, entry.plain)
    try:
        given = _graph(spec, entry, workers)
        strategy: Strategy = settings.strategy(workers, **({"codec": codec} if codec else {}), **given)
        _check_outside(spec, strategy)
        made_of = Composition(codec=codec.name if codec else dense.name, over=given.get("over"))
        strategy = compose.fitting(replace(strategy, composition=made_of), codec)
        strategy = _placed(spec, entry, strategy, workers)
    except SpecError:
        raise
    except PlanError as error:
        raise SpecError(spec.text, spec.topology.at if spec.topology else spec.strategy.at, str(error)) from None
    assert strategy.name == spec.strategy.name, "a strategy must be called what the catalog calls it"
    return strategy


def _check_outside(spec: Spec, strategy: object) -> None:
    """Refuse what a method from outside made, if it cannot be run or written as a SPEC."""
    if not spec.strategy.made:
        return
    name, owner = spec.strategy.name, type(spec.strategy.made.settings).__qualname__
    if not isinstance(strategy, Strategy):
        raise PlanError(f"{owner}.strategy(workers) gave {strategy!r:.60}, not a covey.Strategy")
    if strategy.name != name:
        raise PlanError(
            f"{owner} is called '{name}', and its strategy(workers) says name={strategy.name!r}: use one name"
        )
    try:
        parse(strategy.text)
    except SpecError as error:
        raise PlanError(
            f"{name}: its name and settings must read as a SPEC, so use numbers and single words\n{error}"
        ) from None


def _meshed(spec: Spec, call: Call, entry: Entry, workers: int) -> Strategy:
    """The strategy among replicas that are groups of workers, each with a stage of the model."""
    if call.name != "mesh":
        raise unknown(spec.text, call.at, "mesh", call.name, ["mesh"])
    if entry.whole:
        raise SpecError(spec.text, call.at, f"{spec.strategy.name} {entry.whole}")
    written = bind(call, Mesh, "mesh", spec.text)
    try:
        mesh = written.fitted(workers)
        assert mesh.replica is not None
        return meshed(resolve(replace(spec, mesh=None), mesh.replica), mesh)
    except SpecError:
        raise
    except PlanError as error:
        raise SpecError(spec.text, call.at, str(error)) from None


def codec(text: str) -> Codec:
    """The codec that a strategy says it has."""
    if text == dense.name:
        return dense
    return compose.codec(parse(f"bsp + {text}"), _takers()) or dense


def _takers() -> dict[str, Taken]:
    """What each strategy has codecs for."""
    return {name: entry.codecs for name, entry in STRATEGIES.items()}


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
