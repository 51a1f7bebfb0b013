"""docs/strategies.md: strategies.template.md, with what the catalog's entries declare in its places."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from covey import catalog
from covey.strategy import Entry

PAGE = Path(__file__).parents[2] / "docs" / "strategies.md"
TEMPLATE = Path(__file__).with_name("strategies.template.md")
WORKERS = 4


def page() -> str:
    parts = {"table": table(), "families": families(), "scalings": scalings()}
    text = TEMPLATE.read_text()
    for place, lines in parts.items():
        assert text.count(f"{{{{{place}}}}}") == 1, f"{TEMPLATE.name} has no place for {place}"
        text = text.replace(f"{{{{{place}}}}}", "\n".join(lines))
    return text


def table() -> Iterable[str]:
    """Where each strategy stands, and what it sends."""
    yield "| | optimization | architecture | scheduling | exchange | models sent | on a loss |"
    yield "|---|---|---|---|---|---|---|"
    for name, entry in catalog.STRATEGIES.items():
        place, sent = catalog.resolve(name, WORKERS).taxonomy, entry.traffic.models if entry.traffic else ""
        where = f"{place.optimization} | {place.architecture} | {place.scheduling} | {place.exchange}"
        yield f"| `{name}` | {where} | {sent} | {entry.on_loss} |"


def families() -> Iterable[str]:
    """A short paragraph for each strategy, under the title of its family."""
    for title, entries in catalog.FAMILIES.items():
        yield from (f"### {title}", "")
        yield from (paragraph(name, entry) for name, entry in entries.items())
        yield ""


def paragraph(name: str, entry: Entry) -> str:
    about = re.sub(r" \([^()]* \d{4}\)\.$", ".", entry.about)  # the paper follows
    parts = [f"**`{entry.written(name)}`**: {about}", entry.details, f"*Use:* {entry.use}", f"*{entry.paper}*"]
    return "- " + " ".join(part for part in parts if part)


def scalings() -> Iterable[str]:
    """What a user should make of the learning rate with n workers, and where."""
    found: dict[str, list[str]] = {}
    for name in catalog.names():
        found.setdefault(catalog.resolve(name, WORKERS).description.scaling, []).append(f"`{name}`")
    yield from (f"- {said[0].upper()}{said[1:]}: {', '.join(names)}." for said, names in found.items())
