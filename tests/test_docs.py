"""Every example in the documentation runs: python blocks are executed, `$` lines of console blocks are commands."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
from _pytest.mark.structures import ParameterSet

import covey
from covey import catalog
from covey.cli import app
from covey.engines.lab import iproute
from covey.spec.call import SpecError
from tests.tutorial import FENCE, follow
from tests.warm import Warm

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "tutorials").glob("*.md")),
]
GROUPS = {"clusters.md": "ray"}  # with tests/clusters/test_ray.py: two Rays at once could get in each other's way
LONG = (  # pages whose commands train for long: `make docs` and `make test-full` run them
    "advise.md", "checkpoints.md", "clusters.md", "command_line.md", "compare.md", "compression.md", "data.md",
    "elastic.md", "federated.md", "jobs.md", "large_model.md", "models.md", "scheduling.md", "serve.md", "simulate.md",
    "store.md", "trace.md", "tune.md",
)  # fmt: skip


def blocks(page: Path, language: str) -> list[str]:
    return [body for kind, body in FENCE.findall(page.read_text()) if kind == language]


def commands() -> list[tuple[str, str]]:
    """The commands of all pages, with the names of these."""
    lines = [
        (page.name, line.removeprefix("$ "))
        for page in PAGES
        for block in blocks(page, "console")
        for line in block.splitlines()
        if line.startswith("$ covey")
    ]
    return list(dict.fromkeys(lines))


def in_order() -> list[ParameterSet]:
    """Those of one page run one after the other, in one folder."""
    long = {page: [pytest.mark.full] for page in LONG}
    return [
        pytest.param(page, line, marks=[pytest.mark.xdist_group(GROUPS.get(page, page)), *long.get(page, [])])
        for page, line in commands()
    ]


@pytest.fixture
def desk(tmp_path_factory: pytest.TempPathFactory, page: Path | str) -> Path:
    """A page's folder with the examples in it, where its commands leave their files, for the next ones to find."""
    folder = tmp_path_factory.getbasetemp() / f"desk of {Path(page).stem}"
    if not folder.exists():
        shutil.copytree(ROOT / "examples", folder / "examples")
    return folder


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.name, marks=[pytest.mark.full] if page.name in GROUPS else [])
        for page in PAGES
        if blocks(page, "python")
    ],
)
def test_python_examples(page: Path, desk: Path, warm: Warm) -> None:
    for number, block in enumerate(blocks(page, "python")):
        script = desk / f"{page.stem}_{number}.py"
        script.write_text(block)
        done = warm.run([script], cwd=desk)
        assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(("page", "command"), in_order())
def test_commands(page: str, command: str, desk: Path, warm: Warm) -> None:
    words = shlex.split(command, comments=True)
    if any(word.startswith("lab") for word in words) and (missing := iproute.missing()):
        pytest.skip(missing)
    expected = int(found[1]) if (found := re.search(r"# exits (\d+)", command)) else 0
    env = {name: value for name, value in os.environ.items() if page != RECORDS or name != "COVEY_RUNS"}
    done = warm.run(["-m", *words], cwd=desk, env=env)
    assert done.returncode == expected, done.stdout[-1000:] + done.stderr[-2000:]
    assert "Traceback" not in done.stderr


def test_all_commands_are_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that are not run here: every flag exists, and every strategy."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    for page, line in commands():
        with suppress(typer.Exit):  # --help and --version
            flags = understood(shlex.split(line, comments=True)[1:])
            spec = flags.get("strategy")
            if isinstance(spec, str) and not re.search("# exits 2|--plugin|federate", line):
                workers = re.findall(r"\d+", str(flags.get("workers", ""))) or ["8"]
                assert catalog.resolve(spec, int(workers[-1])), f"{page}: {line}"


COMMAND = cache(typer.main.get_command)  # takes 20 ms


def understood(words: list[str]) -> dict[str, object]:
    """The flags of a command as it would get them."""
    command: Any = COMMAND(app)
    context = command.make_context("covey", words)
    while hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, rest, parent=context)
    return dict(context.params)


def test_a_flag_a_command_or_a_strategy_that_does_not_exist_is_not_understood() -> None:
    with pytest.raises(Exception, match="No such option: --nosuch"):
        understood(["run", "examples/digits.py", "--nosuch", "3"])
    with pytest.raises(Exception, match="No such command 'sumbit'"):
        understood(["jobs", "sumbit"])
    flags = understood(["run", "x.py", "--strategy", "nosuch"])
    with pytest.raises(SpecError, match="nosuch"):
        catalog.resolve(str(flags["strategy"]), 8)


EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
RECORDS = "runs.md"  # whose commands record their runs
INSIDE = "new_rule.md"  # adds to covey's own source
SHOWN = [
    *(
        pytest.param(text, id=f"{page.name} {number}")
        for page in PAGES
        if page.name != INSIDE
        for number, text in enumerate(blocks(page, "python"))
    ),
    *(pytest.param(file.read_text(), id=file.name) for file in EXAMPLES),
]


@pytest.mark.parametrize("text", SHOWN)
def test_examples_use_only_public_names(text: str) -> None:
    assert [name for name in covey_names(ast.parse(text)) if not public(name)] == []


def covey_names(tree: ast.Module) -> set[str]:
    """What a program uses of covey, with all dots: `covey.fit`, `covey.simulate.from_flags`."""
    found = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if re.fullmatch(r"covey(\.\w+)+", name)}


def public(name: str) -> bool:
    """Whether covey lists a name; what an object of covey has is its own."""
    _, first, *rest = name.split(".")
    if first not in covey.MODULES or not rest:
        return first in covey.__all__
    return rest[0] in import_module(f"covey.{first}").__all__


def test_public_names_are_told_from_others() -> None:
    assert public("covey.fit") and public("covey.simulate.from_flags") and public("covey.Result.write")
    assert not public("covey.task.load_task") and not public("covey.data.Shards") and not public("covey.run")


LINKED = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs" / "history").glob("*.md"))]


def anchors(page: Path) -> set[str]:
    """The headings of a page as GitHub names them in addresses."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]+))?\)", page.read_text()):
        there = page.parent / target if target else page
        assert there.exists(), f"{page.name} links to {target}, which is not there"
        assert not anchor or anchor in anchors(there), f"{page.name} links to #{anchor} of {there.name}"


def code(text: str) -> list[str]:
    lines = [line.split("  #")[0].rstrip() for line in text.splitlines()]
    return [line for line in lines if line and "import" not in line]


def test_the_first_loop_that_is_shown_is_the_example() -> None:
    shown, example = blocks(ROOT / "docs" / "own_loop.md", "python")[0], (ROOT / "examples" / "own_loop.py").read_text()
    assert [line for line in code(shown) if line not in code(example)] == []


def test_the_codec_that_is_shown_is_the_example() -> None:
    shown = [line for block in blocks(ROOT / "docs" / "new_codec.md", "python") for line in code(block)]
    assert code((ROOT / "examples" / "plugins" / "new_codec.py").read_text())[1:] == shown


@pytest.fixture(scope="module")
def with_new_rule(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with the three files of the tutorial, as its reader has made them."""
    project = tmp_path_factory.mktemp("tutorial") / "covey"
    for part in ("src", "tests", "docs", "examples", "benchmarks"):
        shutil.copytree(ROOT / part, project / part, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "CONTRIBUTING.md", "SECURITY.md"):
        shutil.copy(ROOT / file, project / file)
    follow(project / "docs" / "new_rule.md", project)
    return project


def checked(project: Path, *words: str, **more: str) -> None:
    """A command of the tutorial does its work in that copy."""
    environment = {**os.environ, "PYTHONPATH": f"{project}/src", **more}
    command = [sys.executable, "-m", *words]
    done = subprocess.run(command, check=False, cwd=project, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


@pytest.mark.xdist_group("new_rule.md")
def test_the_tutorial_on_a_new_rule_can_be_followed(with_new_rule: Path) -> None:
    """Its commands, and of what the last one runs the quick part, in one go."""
    checked(with_new_rule, "tests.pages")
    for page in ("strategies", "compatibility"):
        assert "`k_async" in (with_new_rule / "docs" / f"{page}.md").read_text()
    names = ("behaviour/test_golden", "behaviour/test_values", "central/test_k_async", "test_catalog", "test_house")
    files = [f"tests/{name}.py" for name in names]
    asked = "k_async or every_file or page_on or 300"
    checked(with_new_rule, "pytest", "-q", *files, "-k", asked, COVEY_GOLDEN="write")
    assert all((with_new_rule / f"tests/golden/{room}/k_async.txt").exists() for room in ("strategies", "values"))


@pytest.mark.full
@pytest.mark.xdist_group("new_rule.md")
def test_a_rule_of_the_tutorial_keeps_all_promises(with_new_rule: Path) -> None:
    checked(with_new_rule, "pytest", "-q", "-m", "not full and not alone", "tests", "-k", "k_async")


def test_the_page_on_strategies_is_what_the_entries_declare() -> None:
    from tests.pages import strategies

    assert strategies.PAGE.read_text() == strategies.page(), "run: make pages (python -m tests.pages)"
