"""An engine says what it does: its entry is what the docs, the help, the doctor and a run know of it."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from typer.testing import CliRunner

import covey
from covey import doctor, registry
from covey.cli import app
from covey.engines.cluster import cluster_processes, places
from covey.engines.entries import ENGINES, engine, names, only_hosts, table
from covey.errors import PlanError
from covey.run import clusters, fit
from covey.run.clusters import engine_of
from covey.run.options import Options, options

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "examples/plugins/own_engine.py"


@pytest.fixture(autouse=True)
def tables(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    kept = [(known, dict(known)) for known in (ENGINES, registry._from_outside, registry._unusable)]
    monkeypatch.setattr(registry, "_state", {"searched": True, "installing": False})
    yield
    for known, before in kept:
        known.clear()  # type: ignore[attr-defined]
        known.update(before)  # type: ignore[attr-defined]


def test_the_page_on_clusters_shows_every_engine_as_its_entry_says() -> None:
    assert "\n".join(["", *table(), ""]) in (ROOT / "docs/clusters.md").read_text(), "copy what table() gives"


def test_the_help_names_every_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for command in ("run", "launch"):
        assert ", ".join(names()) in CliRunner().invoke(app, [command, "--help"]).output
    assert all(f'"{name}' in (fit.__doc__ or "") for name in names())


@pytest.mark.parametrize("module", [clusters, cluster_processes, places, engine])
def test_nothing_is_looked_up_behind_an_engines_back(module: object) -> None:
    calls = [node for node in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(node, ast.Call)]  # type: ignore[arg-type]
    assert not [call for call in calls if isinstance(call.func, ast.Name) and call.func.id in ("getattr", "hasattr")]


def test_what_a_place_must_do_and_what_it_may() -> None:
    assert covey.Places.__abstractmethods__ == {"open", "invite", "lost", "close"}
    assert covey.Engine.__abstractmethods__ == {"places"}
    page = (ROOT / "docs/own_engine.md").read_text()
    for owner in (covey.Places, covey.Engine):
        shown = {name for name in vars(owner) if not name.startswith("_")}
        missing = {name for name in shown if f"{name}(" not in page and f".{name}`" not in page}
        assert missing <= {"about", "check_installed", "require", "environment", "ranks"}, "for covey's own"


# -- engines from outside ----------------------------------------------------------------------------------------------


def test_a_file_brings_an_engine_with_its_settings() -> None:
    assert registry.load(PLUGIN) == ["subprocesses"]
    assert names()[-1] == "subprocesses" and not only_hosts("subprocesses")
    found = engine_of(Options(engine="subprocesses(sites=3)"))
    assert found is not None and found.places(2, None).open(1.0) == ["localhost"] * 3
    with pytest.raises(PlanError, match="'subprocesses' has no setting 'site'; did you mean 'sites'. It has: sites=0"):
        engine_of(Options(engine="subprocesses(site=3)"))
    with pytest.raises(PlanError, match="hosts=… is not for subprocesses, which finds its hosts itself: omit it"):
        engine_of(options({"engine": "subprocesses", "hosts": "hosts.txt"}))
    assert doctor.checks()["subprocesses"][1]() == "ready"


def test_the_page_shows_the_file() -> None:
    assert f"```python\n{PLUGIN.read_text()}```" in (ROOT / "docs/own_engine.md").read_text()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import no_such_module", "cannot be imported: ModuleNotFoundError: No module named 'no_such_module'"),
        ("@covey.register('ray')\n@dataclass\nclass A(Works): ...", "there is an engine 'ray' already"),
        ("@covey.register('local')\n@dataclass\nclass A(Works): ...", "there is an engine 'local' already"),
        ("@covey.register('a')\nclass A(Works): ...", "A cannot be registered: a dataclass is needed"),
        ("@covey.register('a')\n@dataclass\nclass A(covey.Engine): ...", "A lacks places: see covey.Engine"),
        ("@covey.register('a', cuts=True)\n@dataclass\nclass A(Works): ...", "only strategies have cuts: omit that"),
    ],
)  # fmt: skip
def test_an_engine_that_cannot_be_used_is_refused_in_one_line(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    works = "class Works(covey.Engine):\n    def places(self, workers, hosts): ..."
    file.write_text(f"import covey\nfrom dataclasses import dataclass\n{works}\n{text}\n")
    with pytest.raises(PlanError) as error:
        registry.load(file)
    assert said in str(error.value) and str(error.value).startswith(str(file)) and "\n" not in str(error.value)


def test_entry_points_bring_engines_and_a_broken_one_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = PLUGIN.read_text().replace('@covey.register("subprocesses")\n', "")
    (tmp_path / "offered_engines.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    offered = [
        EntryPoint("mine", "offered_engines:SubprocessEngine", "covey.engines"),
        EntryPoint("broken", "no_such_package:Broken", "covey.engines"),
        EntryPoint("lab", "offered_engines:SubprocessEngine", "covey.engines"),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: [p for p in offered if p.group == group])
    monkeypatch.setattr(registry, "_state", {"searched": False, "installing": False})
    assert "mine" in doctor.checks()
    assert engine_of(Options(engine="mine(sites=2)")) is not None
    said = capsys.readouterr().err.splitlines()
    assert [line.split(" = ")[0] for line in said] == ["covey: entry point broken", "covey: entry point lab"]
    assert "there is an engine 'lab' already" in said[1]
    with pytest.raises(PlanError, match="broken = no_such_package:Broken .*ModuleNotFoundError"):
        engine_of(Options(engine="broken"))
    with pytest.raises(PlanError, match="no engine 'mines'; did you mean 'mine'"):
        engine_of(Options(engine="mines"))


def test_a_package_that_an_engine_needs_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Needy(covey.Engine):
        needs, install = "no_such_package", "pip install no_such_package"

        def places(self, workers: int, hosts: Path | None) -> covey.Places: ...  # type: ignore[empty-body]

    ENGINES.clear()
    ENGINES["needy"] = Needy
    with pytest.raises(PlanError, match='engine="needy" needs no_such_package: pip install no_such_package'):
        engine_of(Options(engine="needy"))
    monkeypatch.setattr(doctor, "CHECKS", {})
    (found,) = doctor.examine()
    assert (found.name, found.state) == ("needy", "missing") and not found.fatal
    assert found.fix == "only for this engine: pip install no_such_package"
