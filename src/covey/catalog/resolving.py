"""The way from a SPEC to a plan's strategy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from covey import compose, registry, topology
from covey.catalog.entries import FAMILIES
from covey.central.layouts import LAYOUTS
from covey.errors import PlanError
from covey.exchange.codec import Codec, dense
from covey.parallelism.hybrid import meshed
from covey.parallelism.plan.mesh import Mesh
from covey.parallelism.plan.plan_file import read_layout
from covey.spec import Call, Made, Spec, SpecError, bind, parse, unknown
from covey.strategy import Composition, Entry, Strategy
from covey.systems import LATER, SYSTEMS, System

STRATEGIES = registry.STRATEGIES
STRATEGIES |= {name: entry for family in FAMILIES.values() for name, entry in family.items()}


register, search = registry.register, registry.search  # not to be called before covey's own names are in the table


def names() -> list[str]:
    """The strategies that are programs of their own; `SYSTEMS` are compositions of them."""
    return list(STRATEGIES)


def for_any_model() -> list[str]:
    """Those of them that train any model."""
    return [name for name, entry in STRATEGIES.items() if not entry.models]


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
    spec = _planned(spec, workers) if spec.mesh else spec
    return replace(spec, codecs=tuple(compose.bound(call, spec.text, registry.own_name) for call in spec.codecs))


def _planned(spec: Spec, workers: int) -> Spec:
    """With the mesh of a saved layout instead of the name of its file; none where that has whole models."""
    call = spec.mesh
    assert call is not None
    if "plan" not in call.settings:
        return spec
    if len(call.settings) > 1:
        raise SpecError(spec.text, call.at, "mesh(plan=FILE) has the whole mesh from the file: omit the other settings")
    try:
        saved = parse(read_layout(str(call.settings["plan"]), workers).strategy)
    except PlanError as error:
        raise SpecError(spec.text, call.at, str(error)) from None
    return replace(spec, mesh=saved.mesh)


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
    """The strategy that a SPEC names, for this many workers; refused at once when it cannot work."""
    spec = chosen(spec, workers)
    if spec.strategy.name in SYSTEMS:
        return _system(spec, SYSTEMS[spec.strategy.name], workers)
    entry: Entry = spec.strategy.made.entry if spec.strategy.made else STRATEGIES[spec.strategy.name]
    if spec.mesh:
        return _meshed(spec, spec.mesh, entry, workers)
    settings = bind(spec.strategy, entry.settings, "strategy", spec.text)
    codec = compose.codec(spec, {**STRATEGIES, spec.strategy.name: entry})
    try:
        given = _graph(spec, entry, workers)
        strategy: Strategy = settings.strategy(workers, **({"codec": codec} if codec else {}), **given)
        _check_outside(spec, strategy)
        made_of = Composition(codec=codec or dense, over=given.get("over"))
        strategy = replace(strategy, composition=made_of, on_loss=entry.on_loss, ranges=entry.ranges)
        strategy = compose.fitting(strategy, codec)
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
    """The codec that is written so after a strategy."""
    if text == dense.name:
        return dense
    return compose.codec(parse(f"bsp + {text}"), STRATEGIES) or dense


def _system(spec: Spec, system: System, workers: int) -> Strategy:
    """A system's composition under its own name; what the user wrote goes before what it is made of."""
    made_of = parse(system.spec)
    settings = {**made_of.strategy.settings, **spec.strategy.settings}
    call = replace(spec.strategy, name=made_of.strategy.name, settings=settings)
    mesh = spec.mesh or made_of.mesh
    if spec.mesh and made_of.mesh:
        mesh = replace(spec.mesh, settings={**made_of.mesh.settings, **spec.mesh.settings})
    codecs, over = spec.codecs or made_of.codecs, spec.topology or made_of.topology
    whole = replace(spec, strategy=call, codecs=codecs, topology=over, mesh=mesh)
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
