"""covey strategies: which are there, and what is one of them?"""

from __future__ import annotations

import json as text_of
import shlex
from dataclasses import MISSING, Field, asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from covey.cli import json_file, options
from covey.cli.errors import explained
from covey.cli.tables import completion
from covey.cli.tables.guide import GuideFlags, print_guide
from covey.cli.tables.picture import picture as draw
from covey.cli.training import load_plugins
from covey.errors import PlanError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from covey.strategy import Entry, Strategy

WORKERS = 4  # of the examples
COLUMNS = ("optimization", "architecture", "scheduling", "exchange", "topology")
CLIPS = {
    "each gradient": "clips each worker's own gradient",
    "each update": "clips the mean gradient of an update, by its norm over all servers",
    "each update of one server": "clips the mean gradient of an update; needs 1 server",
    "never": "is refused",
}
LOSSES = {
    "continue": "is replaced while the others go on, with --on-failure continue",
    "restart": "ends the run, or restarts it with --on-failure restart",
}

Name = Annotated[
    str | None,
    typer.Argument(
        metavar="[NAME]", autocompletion=completion.specs,
        help="One of them, a SPEC such as 'ssp(bound=2)', or a codec.",
    ),
]  # fmt: skip


Picture = Annotated[
    Path | None, options.flag("--picture", "FILE", "Draw it at work with 3 workers, as an SVG.", options.OUTPUT)
]


@options.grouped
def command(
    *,
    name: Name = None,
    guide: GuideFlags,
    plugin: options.Plugins = None,
    picture: Picture = None,
    output: options.OutputFlags,
) -> None:
    """List the strategies, tell all about one or about a codec, or find three for you."""
    manner, json = output.voice, output.json
    with explained(manner):
        json_file.check(json)
        if guide.guide or guide.answers is not None:
            beside = name or (f"--picture {picture}" if picture else f"--plugin {plugin[0]}" if plugin else None)
            return print_guide(guide, beside, output)
        json_file.check(picture, "--picture", "strategy.svg")
        if picture is not None and name is None:
            raise PlanError(f"--picture {picture} draws one strategy: covey strategies bsp --picture {picture}")

        load_plugins(plugin, manner)
        from covey import catalog, registry
        from covey.cli.tables import codec
        from covey.systems import SYSTEMS

        if name is None:
            registry.search()
        if name is not None and codec.described(name):
            return _tell_codec(name, picture, json, manner)

        told = [describe(one) for one in ([name] if name else [*catalog.names(), *SYSTEMS])]
        json_file.write(json, text_of.dumps(told[0] if name else told, indent=1, ensure_ascii=False) + "\n")
        console = json_file.console(json)
        if picture is not None and name is not None:
            json_file.write(picture, draw(told[0]["spec"]), "--picture")
        if manner == "quiet":
            return
        if name is None:
            _print_all(console, told)
        if name or manner == "verbose":
            for one in told:
                _print_one(console, one)


def _tell_codec(name: str, picture: Path | None, json: Path | None, manner: str) -> None:
    from covey.cli.tables import codec

    if picture is not None:
        raise PlanError(f"--picture {picture} draws strategies: covey strategies 'bsp + {name}' --picture {picture}")
    told = codec.describe(name, WORKERS)
    json_file.write(json, text_of.dumps(told, indent=1, ensure_ascii=False) + "\n")
    if manner != "quiet":
        rows = codec.rows(told, _spoken_settings(told))
        _print_page(json_file.console(json), told["name"], rows, _example(told["spec"]))


def describe(spec: str) -> dict[str, Any]:
    """All that is known of a strategy, as it goes to JSON."""
    from covey import catalog, compose
    from covey.spec import parse
    from covey.systems import CATEGORIES, LACKING, ROWS, SYSTEMS

    strategy = catalog.resolve(spec, WORKERS)
    system = SYSTEMS.get(strategy.name)
    made_of = parse(system.spec).strategy.name if system else strategy.name
    entry = catalog.STRATEGIES[made_of]
    row = system.row if system else ROWS.get(strategy.name)
    hints = get_type_hints(entry.settings)
    return {
        "name": strategy.name,
        "spec": entry.example if spec == strategy.name and entry.example else spec,
        "about": entry.about,
        "use": entry.use,
        "models": entry.models,
        "details": entry.details,
        "traffic": entry.traffic.models if entry.traffic else "",
        "made_of": system.spec if system else None,
        "missing": system.missing if system else LACKING.get(strategy.name, ""),
        "printed": asdict(row) if row else None,
        "categorized": asdict(CATEGORIES[strategy.name]) if strategy.name in CATEGORIES else None,
        "taxonomy": asdict(strategy.taxonomy),
        "settings": {field.name: _setting(field, strategy, spec, hints) for field in fields(entry.settings)},
        "scored": strategy.description.scored,
        "rate": strategy.description.rate,
        "scaling": strategy.description.scaling,
        "clips": strategy.terms.clips,
        "samples": strategy.description.samples,
        "on_loss": strategy.on_loss,
        "ranges": strategy.ranges,
        "servers": strategy.servers.count,
        "replicas": strategy.servers.copied,
        "over": strategy.composition.over,
        "topologies": _topologies(entry, strategy),
        "codecs": compose.names(entry),
        "pull": entry.codecs == "pushes",
        "plain": entry.plain,
        "paper": system.paper if system else entry.paper,
        "example": _example(entry.example if spec == strategy.name and entry.example else spec, entry.models),
    }


def _topologies(entry: Entry, strategy: Strategy) -> list[str]:
    """What may follow `over`; proxies give servers the sums of groups, which some rules cannot use."""
    from covey import topology
    from covey.central.layouts import LAYOUTS

    if entry.graph:
        return list(topology.GRAPHS)
    sums = strategy.servers.grouped is not None
    return [name for name in LAYOUTS if name != "proxies" or sums] if entry.placed else []


def _setting(field: Field[Any], strategy: Strategy, spec: str, hints: dict[str, Any]) -> dict[str, Any]:
    """A setting's default, what it is here (some follow from the number of workers), and what it may be."""
    from covey.cli.tables.ranges import allowed

    default = None if field.default is MISSING else field.default
    may_be = allowed(spec, strategy.name, field.name, hints[field.name], WORKERS)
    return {"default": default, "value": strategy.settings.get(field.name, default), "allowed": may_be}


def _example(spec: str, models: str = "") -> str:
    """What trains with it, by a task that has such a model."""
    task, until = ("lasso", "error:0.05") if models else ("digits", "accuracy:0.95")
    return f"covey run examples/{task}.py --strategy {shlex.quote(spec)} --workers {WORKERS} --until {until}"


def _print_all(console: Console, told: list[dict[str, Any]]) -> None:
    from covey.exchange.codecs.by_name import CODECS, WRAPPERS

    about = _grid()
    for one in told:
        if not one["made_of"]:
            about.add_row(one["name"], one["about"])
    table = _grid(gap=1)  # at 80 columns only the two longest fold
    for column in COLUMNS:
        table.add_column(no_wrap=column in COLUMNS[:3])
    table.add_row("name", *COLUMNS, style="dim")
    for one in told:
        table.add_row(one["name"], *(one["taxonomy"][column] for column in COLUMNS))
    console.print(about)
    console.print()
    console.print(table)
    systems = _grid()
    for one in told:
        if one["made_of"]:
            systems.add_row(one["name"], one["made_of"], one["missing"])
    rates = _grid()
    rates.add_row("name", "what becomes of your rate", "with n workers", style="dim")
    for one in told:
        if not one["made_of"]:
            rates.add_row(one["name"], one["rate"], one["scaling"])
    console.print()
    console.print(rates)
    console.print("\nsystems of the surveys, and what they are made of", style="dim")
    console.print(systems)
    console.print("\ncovey strategies NAME describes one of them, or one of these codecs:", style="dim")
    console.print(f"  {', '.join([*CODECS, *WRAPPERS])}")


def _print_one(console: Console, told: dict[str, Any]) -> None:
    _print_page(console, told["name"], _rows(told), told["example"])


def _print_page(console: Console, title: str, rows: list[tuple[str, str]], example: str) -> None:
    table = _grid()
    for name, value in rows:
        table.add_row(name, value)
    console.print()
    console.print(title, style="bold green")
    console.print(table)
    console.print("\ntry", style="dim")
    console.print(f"  {example}", soft_wrap=True, markup=False)  # in one piece, to be copied


def _rows(told: dict[str, Any]) -> list[tuple[str, str]]:
    usual = f"{told['over']}; " if told["over"] else ""
    topologies = f"{usual}any of {', '.join(told['topologies'])}" if told["topologies"] else "takes none"
    return [
        ("about", told["about"]),
        *([("use it for", told["use"])] if told["use"] else []),
        *([("details", told["details"])] if told["details"] else []),
        *([("models", told["models"])] if told["models"] else []),
        *([("made of", told["made_of"])] if told["made_of"] else []),
        *([("missing", told["missing"])] if told["missing"] else []),
        *([("printed as", ", ".join(told["printed"].values()))] if told["printed"] else []),
        *([("categorized as", "; ".join(told["categorized"].values()))] if told["categorized"] else []),
        *((column, told["taxonomy"][column]) for column in COLUMNS),
        ("settings", _spoken_settings(told) or "none"),
        ("over", topologies),
        ("codecs", _codecs(told)),
        *([("models sent", f"{told['traffic']}, per step and worker; n workers")] if told["traffic"] else []),
        ("scored", told["scored"]),
        ("learning rate", told["rate"]),
        ("with n workers", told["scaling"]),
        ("clip_norm", CLIPS[told["clips"]]),
        ("samples", told["samples"]),
        ("a lost worker", LOSSES[told["on_loss"]]),
        *([("workers", "may come and go, with --workers MIN:MAX")] if told["ranges"] else []),
        *([("a lost server", "a copy takes its place, with --replicas 2")] if told["replicas"] else []),
        ("paper", told["paper"]),
    ]


def _codecs(told: dict[str, Any]) -> str:
    """Which it takes, for what, or why none."""
    if not told["codecs"]:
        return f"takes none: it {told['plain']}"
    for_what = "for what goes to servers, and with + pull for what comes back" if told["pull"] else "for all it sends"
    return f"{', '.join(told['codecs'])}; {for_what}"


def _spoken_settings(told: dict[str, Any]) -> str:
    return "\n".join(_spoken(name, setting) for name, setting in told["settings"].items())


def _spoken(name: str, setting: dict[str, Any]) -> str:
    default, value = setting["default"], setting["value"]
    may_be = f"  may be {setting['allowed']}" if setting["allowed"] else ""
    if default is None:
        usual = f"{name}={value:g}  (follows from {WORKERS} workers)" if value else f"{name}  not used unless given"
        return usual + may_be
    return f"{name}={_written(value)}" + (f"  (default: {_written(default)})" if value != default else "") + may_be


def _written(value: Any) -> str:
    """As it is written in a SPEC."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _grid(gap: int = 2) -> Table:
    """Columns without lines, the first one green."""
    from rich.table import Table

    grid = Table.grid(padding=(0, gap, 0, 0))
    grid.add_column(style="green", no_wrap=True)
    return grid
