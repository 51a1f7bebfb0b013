"""What the site has beside docs/: pages of the repository's root, the sources of examples, and the strategy gallery."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
PAGES = ("SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")
SOURCES = ("examples/cluster.toml", "examples/plugins/new_codec.py", "examples/plugins/own_engine.py",
           "examples/plugins/own_strategies.py")  # fmt: skip
PICTURES = os.environ.get("COVEY_SITE_PICTURES", "all")  # or none: drawing them trains every strategy for some steps


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""
    for name in PAGES:
        files.append(File.generated(config, name, content=_inside((ROOT / name).read_text())))
    for name in SOURCES:
        files.append(File.generated(config, f"{name}.md", content=_source(name)))
    files.append(File.generated(config, "gallery.md", content=_gallery(files, config)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links that leave docs/ to the pages above."""
    for name in PAGES:
        markdown = markdown.replace(f"](../{name}", f"]({name}")
    return re.sub(r"\]\(\.\./(examples/[\w./]+)\)", r"](\1.md)", markdown)


def _inside(text: str) -> str:
    """A page of the root as it is inside docs/: its links to docs/ lose that folder, those to files are plain words."""
    text = re.sub(r"\]\(docs/([^)]+)\)", r"](\1)", text)
    return re.sub(r"\[([^\]]+)\]\((?!http|#)(?![\w/]+\.md)[^)]+\)", r"\1", text)


def _source(name: str) -> str:
    kind = "toml" if name.endswith("toml") else "python"
    return f"# {name}\n\n```{kind}\n{(ROOT / name).read_text()}```\n"


def _gallery(files: Files, config: Any) -> str:
    """Every strategy: what it does, when to use it, what travels, and a picture of it at work."""
    from covey import catalog
    from covey.cli.strategies import describe
    from covey.systems import SYSTEMS

    lines = [
        "# Strategy gallery", "",
        "Pictures show three workers of which the last is slower. Time goes to the right; a bar is computing, a gap is",
        "waiting, an arrow is a message. `covey strategies NAME --picture FILE` draws them.", "",
    ]  # fmt: skip
    for name in (*catalog.names(), *SYSTEMS):
        told = describe(name)
        made_of, missing = told["made_of"], told["missing"]
        about = f"A name for `{made_of}`." if made_of else told["about"]
        lines += [f"## {name}", "", about, "", *([f"Not here: {missing}.", ""] if made_of and missing else [])]
        if PICTURES == "all" and (picture := _picture(told["spec"])):
            uri = f"pictures/gallery/{name}.svg"
            files.append(File.generated(config, uri, content=picture))
            lines += [f"![{name} at work]({uri})", ""]
        place = told["taxonomy"]
        lines += [
            *([f"**Use it for** {told['use']}", ""] if told["use"] else []),
            f"*{place['optimization']}, {place['architecture']}, {place['scheduling']}; {place['exchange']}*", "",
            *([f"Models sent per step and worker: {told['traffic']}", ""] if told["traffic"] else []),
            *([f"{told['details']}", ""] if told["details"] else []),
            f"`{told['example']}`", "",
            f"{told['paper']}", "",
        ]  # fmt: skip
    return "\n".join(lines)


def _picture(spec: str) -> str | None:
    from covey.cli.tables.picture import picture
    from covey.errors import CoveyError

    try:
        return picture(spec)
    except CoveyError:
        return None
