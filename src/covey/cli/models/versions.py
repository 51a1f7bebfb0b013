"""covey models list, show, diff, promote and rm; covey lineage."""

from __future__ import annotations

import json as text_of
from typing import Annotated, Any

import typer

from covey.cli import json_file, options
from covey.cli.errors import explained
from covey.cli.models.flags import Store, Version, Versions, Where, opened
from covey.errors import PlanError

Sought = Annotated[
    str, typer.Argument(metavar="X", help="A version, an exported file, an endpoint, or the ID of a recorded run.")
]


def list_models(where: Where = None, store: Store = None, json: options.Json = None) -> None:
    """List the versions, by name and number."""
    with explained("normal"):
        json_file.check(json)
        from covey.cli.tables.models import print_versions
        from covey.store.conditions import parse_condition

        condition = parse_condition(where) if where is not None else None
        place = opened(store)
        found = place.versions(condition)
        if json is not None:
            json_file.write(json, _json([brief(version) for version in found]))
        if json != json_file.OUTPUT:
            print_versions(json_file.console(json), place.folder, found, where)


def show(name: Version, store: Store = None, json: options.Json = None) -> None:
    """Show one version: its scores, its tensors, and where it came from."""
    with explained("normal"):
        json_file.check(json)
        from covey.cli.tables.models import print_lineage, print_tensors
        from covey.store.lineage import as_json, lines

        place = opened(store)
        version = place.named(name)
        if json is not None:
            json_file.write(json, _json(as_json(place, version)))
        if json != json_file.OUTPUT:
            console = json_file.console(json)
            print_lineage(console, lines(place, version))
            print_tensors(console, version)


def diff(one: Version, other: Version, store: Store = None, json: options.Json = None) -> None:
    """Show in what two versions differ: what was asked, scores, tensors."""
    with explained("normal"):
        json_file.check(json)
        from covey.cli.tables.models import print_difference
        from covey.store.differences import compared_versions

        place = opened(store)
        found = compared_versions(place, place.named(one), place.named(other))
        if json is not None:
            json_file.write(json, _json(found.as_json()))
        if json != json_file.OUTPUT:
            print_difference(json_file.console(json), found)


def promote(name: Version, where: Where = None, store: Store = None) -> None:
    """Make a version the one that its name means; with --where only if it fits."""
    with explained("normal"):
        from covey.store.conditions import parse_condition
        from covey.store.model_store import facts_of
        from covey.store.versions import NEWEST

        place = opened(store)
        version = place.named(name if ":" in name else f"{name}:{NEWEST}")
        if where is not None:
            condition, facts = parse_condition(where), facts_of(version)
            condition.check(facts)
            if not condition.fits(facts):
                raise PlanError(f"{version.text} is not promoted: it does not fit --where '{where}'")
        place.promote(version)
        _say(f"{version.name} is {version.text} now")


def rm(names: Versions, store: Store = None) -> None:
    """Remove versions, and the tensors that no other version uses."""
    with explained("normal"):
        from covey.simulate.units import format_bytes

        place = opened(store)
        for name in names:
            if ":" not in name:
                raise PlanError(f"{name}: say which version to remove, as {name}:3; covey models list shows them")
        found = {version.text: version for version in map(place.named, names)}
        freed = place.remove(*found.values())
        _say(f"removed {', '.join(found)}; {format_bytes(freed)} freed")


def lineage(sought: Sought, store: Store = None, json: options.Json = None) -> None:
    """Show where a model came from and what was made of it, from its data to its endpoints.

    covey lineage digits:3
    """
    with explained("normal"):
        json_file.check(json)
        from covey.cli.tables.models import print_lineage
        from covey.store.lineage import as_json, lines
        from covey.store.lineage import sought as meant

        place = opened(store)
        version = meant(place, sought)
        if json is not None:
            json_file.write(json, _json(as_json(place, version)))
        if json != json_file.OUTPUT:
            print_lineage(json_file.console(json), lines(place, version))


def brief(version: Any) -> dict[str, Any]:
    """A version in one object of JSON."""
    run = version.origin.run
    return {
        "version": version.text, "made": version.made, "promoted": version.promoted, "metrics": version.metrics,
        "task": run.task, "strategy": run.strategy, "engine": run.engine, "workers": run.workers,
        "parent": version.origin.parent, "bytes": version.size,
    }  # fmt: skip


def _say(line: str) -> None:
    json_file.console(None).print(line, markup=False, soft_wrap=True)


def _json(value: Any) -> str:
    return text_of.dumps(value, indent=1) + "\n"
