"""Strategies and codecs from outside: by name, by file, by entry point, as objects."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import make_dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

import covey
from covey import catalog, registry
from covey.engines import handover
from covey.errors import PlanError
from covey.exchange.codecs.by_name import CODECS, WRAPPERS
from covey.spec import Spec, parse
from covey.systems import LATER, SYSTEMS
from tests.worlds import mlp

PLUGIN = "examples/plugins/own_strategies.py"


@pytest.fixture(autouse=True)
def tables(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test begins and ends with covey's own names."""
    kept = [(table, dict(table)) for table in (registry.STRATEGIES, CODECS, registry._from_outside, registry._unusable)]
    monkeypatch.setattr(registry, "_state", {"searched": True, "installing": False})
    yield
    for table, before in kept:
        table.clear()  # type: ignore[attr-defined]
        table.update(before)  # type: ignore[attr-defined]


def fit(strategy: Any, **given: Any) -> covey.Result:
    return covey.fit(mlp(samples=97), strategy, 3, engine="simulated", epochs=2, **given)


def test_a_file_brings_names_for_specs() -> None:
    assert registry.load(PLUGIN) == ["median", "shifting", "scaled_signs"]
    assert fit("median").strategy == "median"
    assert fit("shifting(weight=0.25)").strategy == "shifting(weight=0.25)"
    assert fit("bsp + scaled_signs").strategy == "bsp + scaled_signs"


def test_an_object_is_a_strategy_without_being_registered() -> None:
    class Own:
        def strategy(self, workers: int) -> covey.Strategy:
            from dataclasses import replace

            return replace(catalog.resolve("bsp", workers), name="own")

    assert fit(Own()).strategy == "own"
    same = covey.fit(mlp(samples=97), "bsp", 3, engine="simulated", epochs=2)
    assert all(torch.equal(value, same.weights[name]) for name, value in fit(Own()).weights.items())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import no_such_module", "cannot be imported: ModuleNotFoundError: No module named 'no_such_module'"),
        ("def broken(:", "cannot be imported: SyntaxError"),
        ("x = 1", "registers nothing: put @covey.register"),
        ("@covey.register\n@dataclass\nclass A:\n    def codec(self): ...", "A is registered without a name"),
        ("@covey.register('Big Name')\n@dataclass\nclass A:\n    def codec(self): ...", "'Big Name' cannot be"),
        ("@covey.register('bsp')\n@dataclass\nclass A:\n    def strategy(self, workers): ...", "a strategy 'bsp'"),
        ("@covey.register('topk')\n@dataclass\nclass A:\n    def codec(self): ...", "there is a codec 'topk' already"),
        ("@covey.register('a')\nclass A:\n    def codec(self): ...", "A cannot be registered: a dataclass is needed"),
        ("@covey.register('a')\n@dataclass\nclass A: ...", "A cannot be registered"),
        (
            "@covey.register('a', use='x')\n@dataclass\nclass A:\n    def codec(self): ...",
            "A is a codec, and only strategies have use: omit that",
        ),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_refused_in_one_line(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(f"import covey\nfrom dataclasses import dataclass\n{text}\n")
    with pytest.raises(PlanError) as error:
        registry.load(file)
    assert said in str(error.value) and str(error.value).startswith(str(file)) and "\n" not in str(error.value)


TAKEN = {
    **dict.fromkeys([*catalog.names(), *SYSTEMS, *LATER], "a strategy"),
    **dict.fromkeys([*CODECS, *WRAPPERS, "pull"], "a codec"),
}


@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.parametrize("method", ["strategy", "codec"])
def test_every_word_of_a_spec_is_taken(name: str, method: str) -> None:
    """Systems, and what goes around a codec, too."""
    own = make_dataclass("Own", [], namespace={method: lambda self, *given: None})
    with pytest.raises(PlanError, match=re.escape(f"there is {TAKEN[name]} '{name}' already")):
        covey.register(name)(own)


def test_two_files_cannot_have_one_name_but_one_may_be_loaded_twice(tmp_path: Path) -> None:
    registry.load(PLUGIN)
    registry.load(PLUGIN)
    other = tmp_path / "other.py"
    other.write_text(Path(PLUGIN).read_text().replace('wire_name = "', 'wire_name = "x.'))
    with pytest.raises(PlanError, match="there is a strategy 'median' already: give Median another name"):
        registry.load(other)


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        (3, "strategy=3 is not a strategy: give a SPEC"),
        (
            type("Odd", (), {"strategy": lambda self, workers: 3})(),
            "gave 3, not a covey.Strategy",
        ),
        (
            type("Bsp", (), {"strategy": lambda self, n: catalog.resolve("bsp", n)})(),
            "there is a strategy 'bsp' already",
        ),
    ],
)
def test_objects_that_are_no_strategies_are_refused(strategy: Any, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        fit(strategy)


def test_what_was_registered_for_whole_models_without_codecs_refuses_others() -> None:
    registry.load(PLUGIN)
    with pytest.raises(PlanError, match="median was registered without codecs=…; codecs go with bsp"):
        catalog.resolve("median + topk", 3)
    with pytest.raises(PlanError, match="shifting was registered without cuts=True"):
        catalog.resolve("shifting with mesh(stage=2)", 4)


# -- entry points ------------------------------------------------------------------------------------------------------


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An installed package with a strategy that works and one that does not."""
    (tmp_path / "offered_strategies.py").write_text(
        Path(PLUGIN).read_text().replace('wire_name = "', 'wire_name = "e.')
    )
    monkeypatch.syspath_prepend(tmp_path)
    offered = [
        EntryPoint("broken", "no_such_package:Broken", "covey.strategies"),
        EntryPoint("median", "offered_strategies:Median", "covey.strategies"),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: [p for p in offered if p.group == group])
    monkeypatch.setattr(registry, "_state", {"searched": False, "installing": False})


@pytest.mark.usefixtures("points")
def test_an_entry_point_brings_a_name_and_a_broken_one_costs_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert fit("median").strategy == "median"
    said = capsys.readouterr().err.strip()
    assert said.startswith("covey: entry point broken = no_such_package:Broken of") and "\n" not in said
    with pytest.raises(PlanError, match="broken = no_such_package:Broken .*ModuleNotFoundError"):
        fit("broken")
    assert not catalog.chosen("median", 3).from_outside, "other processes can look it up as well"


# -- travelling --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["ssp(bound=3, weight=0.1) + topk(density=0.01)", "dpsgd over ring with mesh(stage=2)"]
)
def test_a_spec_travels_as_a_value(text: str) -> None:
    spec = parse(text)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=Spec) == spec


def test_what_only_this_process_knows_is_handed_over(tmp_path: Path) -> None:
    """To a process that has never seen the file; messages keep their fields, types, defaults and methods."""
    registry.load(PLUGIN)
    spec = catalog.chosen("median", 3)
    assert spec.from_outside
    (tmp_path / "handed").write_bytes(handover.pack(strategy=spec))
    there = (
        "import sys; from pathlib import Path; from covey import catalog, message; from covey.engines import handover\n"
        "spec = handover.of_memory(handover.opened(Path(sys.argv[1]).read_bytes())).strategy\n"
        "strategy = catalog.resolve(spec, 3); kind = message.KINDS['median.gradient']\n"
        "print(strategy.text, len(strategy.layout(3, None)), kind.__struct_fields__, message._fields[kind][0])"
    )
    said = subprocess.run(
        [sys.executable, "-c", there, str(tmp_path / "handed")], capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == "median 4 ('step', 'samples', 'grad', 'buffers', 'sender') ('grad', 'buffers')"
