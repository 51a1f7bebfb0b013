"""The site is built whole: no link leads nowhere, and every strategy and every public name is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import covey
from covey import catalog
from covey.systems import SYSTEMS

ROOT = Path(__file__).parent.parent
pytest.importorskip("mkdocs")
pytestmark = pytest.mark.xdist_group("site")  # which is built once


@pytest.fixture(scope="module", params=["none", pytest.param("all", marks=pytest.mark.full)])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site, with pictures or without, as drawing them takes a while."""
    folder = tmp_path_factory.mktemp("site")
    known = {**os.environ, "COVEY_SITE_PICTURES": request.param, "NO_MKDOCS_2_WARNING": "1"}
    words = ["build", "--strict", "--quiet", "--config-file", "website/mkdocs.yml", "--site-dir", str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", *words], check=False, cwd=ROOT, env=known, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (folder / "pictures.txt").write_text(request.param)
    return folder


def test_every_page_of_the_docs_is_on_the_site(site: Path) -> None:
    pages = [page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if not (site / page.with_suffix(".html")).exists()] == []


def test_the_gallery_has_every_strategy(site: Path) -> None:
    gallery = (site / "gallery.html").read_text()
    assert [name for name in (*catalog.names(), *SYSTEMS) if f">{name}<" not in gallery] == []
    assert "A name for <code>allreduce with mesh(stage=2, microbatches=4)</code>." in gallery
    if (site / "pictures.txt").read_text() == "all":
        drawn = set(re.findall(r'src="pictures/gallery/(\w+)\.svg"', gallery))
        assert {"bsp", "easgd", "gosgd", "allreduce"} <= drawn and len(drawn) > 40
        assert all((site / "pictures" / "gallery" / f"{name}.svg").exists() for name in drawn)


def test_what_people_call_can_be_looked_up(site: Path) -> None:
    reference = (site / "python.html").read_text()
    shown = {name.rpartition(".")[2] for name in re.findall(r'id="(covey\.[\w.]+)"', reference)}
    functions = {name for name in covey.__all__ if name.islower() and name not in covey.MODULES}
    assert functions | {"Task", "Result", "Member", "compare", "advise", "PlanError"} <= shown | {"register"}


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    pages = "".join(page.read_text() for page in site.rglob("*.html"))
    assert re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="https?://[^"]+"', pages) == []
