"""The house in order: rooms that the docs list, one meaning for each class name, files that a person can read."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src/covey"
FILES = sorted(SOURCE.rglob("*.py"))
pytestmark = pytest.mark.xdist_group("house")  # one process reads them
ROOMS = [file.parent for file in FILES if file.name == "__init__.py"]


@cache
def trees() -> dict[Path, ast.Module]:
    return {file: ast.parse(file.read_text()) for file in FILES}


def name(file: Path) -> str:
    return str(file.relative_to(SOURCE))


def test_one_class_name_has_one_meaning() -> None:
    found = defaultdict(list)
    for file, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(name(file))
    assert {key: files for key, files in found.items() if len(files) > 1} == {}


def test_the_page_on_architecture_lists_every_room() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    table = page[page.index("| package | question |") : page.index("## A run on processes")]
    told = set(re.findall(r"`([a-z_0-9]+)(?:/|\.py)`", table))
    there = {room.name for room in ROOMS if room != SOURCE}
    there |= {file.stem for file in SOURCE.glob("*.py") if not file.name.startswith("__")}
    assert told == there


@pytest.mark.parametrize("room", ROOMS, ids=name)
def test_a_room_says_which_question_it_answers_and_holds_at_most_20_files(room: Path) -> None:
    said = ast.get_docstring(ast.parse((room / "__init__.py").read_text()))
    assert said and (room == SOURCE or "?" in said.splitlines()[0]), "the first line of __init__.py is its question"
    assert len(list(room.glob("*.py"))) <= 20


def test_every_test_that_has_a_share_exists() -> None:
    lines = [line.split() for line in (ROOT / "tests/shares.txt").read_text().splitlines() if line[0] != "#"]
    assert all(0 <= float(part) < 1 for part, _ in lines) and lines == sorted(lines, key=lambda line: line[1])
    named = [(ROOT / file, function) for _, name in lines for file, _, function in [name.partition("::")]]
    assert [name for name in named if f"def {name[1]}(" not in name[0].read_text()] == []


def test_what_watches_the_clock_is_where_make_looks_for_it() -> None:
    folders = re.findall(r"^clock := (.*)$", (ROOT / "Makefile").read_text(), re.M)[0].split()
    marked = [file for file in (ROOT / "tests").rglob("*.py") if re.search(r"\bmark\.alone\b", file.read_text())]
    assert marked and [file for file in marked if not any(file.is_relative_to(ROOT / one) for one in folders)] == []


def test_files_have_at_most_300_lines_and_classes_250() -> None:
    assert [name(file) for file in FILES if len(file.read_text().splitlines()) > 300] == []
    large = [
        f"{name(file)}: {node.name}"
        for file, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and (node.end_lineno or 0) - node.lineno >= 250
    ]
    assert large == []


def test_strategies_do_not_write_into_the_parts_of_a_replica() -> None:
    """They tell it what happens: `progress.begin`, `progress.add`, `show`."""
    written = {
        (name(file), target.attr)
        for file, tree in trees().items()
        if name(file).startswith(("central/", "decentral/"))
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AugAssign)
        for target in ast.walk(node)
        if isinstance(target, ast.Attribute) and isinstance(target.ctx, ast.Store) and of_replica(target.value)
    }
    assert {attribute for _, attribute in written} <= {"batch", "divide", "weight"}, written


def of_replica(owner: ast.expr) -> bool:
    """Whether this is a replica, or a part of one."""
    return bool(re.search(r"\b(replica|share)(\.(progress|updates|working|layout))?$", ast.unparse(owner)))


def test_that_forward_takes_a_third_of_a_batch_is_written_once() -> None:
    thirds = {
        name(file)
        for file, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and ast.unparse(node.right) == "3"
    }
    assert thirds == set(), "use model/compute_shares.py"


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Imports for types only count too: whoever reads a file must be able to read those below it first."""
    modules = {dotted(file): file for file in FILES}
    below = {module: imported(trees()[file], modules) - {module} for module, file in modules.items()}
    while leaves := [module for module, others in below.items() if not others & below.keys()]:
        for module in leaves:
            del below[module]
    assert sorted(below) == []


def dotted(file: Path) -> str:
    parts = file.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.Module, modules: dict[str, Path]) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{alias.name}" for alias in node.names} & modules.keys()
            found |= inside or {node.module}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & modules.keys()


ASKS = {
    "central/cached/cache.py": 1,  # exact changes are already in the worker's own copy
    "central/scheduled/priorities.py": 1,  # slices stay whole where a codec looks at shapes
    "central/server/client.py": 1,  # `auto` sends samples to servers
    "central/server/parameter_server.py": 1,  # a refusal
    "decentral/averaging/model_means.py": 2,  # for all that average models
    "decentral/gossip/ako.py": 1,  # what a codec drops stays owed
}


def test_strategies_hardly_ask_which_kind_a_codec_is() -> None:
    """They send through it: what several ask is asked once, in `exchange/` or `servers/`."""
    found: dict[str, int] = {}
    for file, tree in trees().items():
        if name(file).startswith(("central/", "decentral/")):
            asked = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
            asked = [node for node in asked if node.attr in ("traits", "pull") and "codec" in ast.unparse(node.value)]
            found |= {name(file): len(asked)} if asked else {}
    assert found == ASKS
