"""Every option is read by the engine, or refused by it; and `fit` and `launch` have them all by name."""

from __future__ import annotations

import re
from dataclasses import fields
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import pytest

from covey.engines.entries import ENGINES, names
from covey.errors import PlanError
from covey.observe.callbacks import Callback
from covey.observe.instruments import Instrument
from covey.observe.progress import Progress
from covey.run import fit, fitting, launch
from covey.run import options as options_module
from covey.run.clusters import terms_of
from covey.run.fitting import fit_with
from covey.run.option_parts import HOSTS, OptionPart
from covey.run.options import GO_ON, PARTS, Options, check, options
from covey.run.own_loop import launching
from covey.run.request import request
from covey.simulate import Cluster
from tests.worlds import mlp

OWN = {
    "epochs", "until", "scores", "score_every", "confirm", "best", "patience", "rate", "link_rate", "cluster",
    "timing_only", "traced", "instruments", "faults", "spot_trace", "replicas", "keeper", "standby", "preparers",
}  # fmt: skip
"""What a script's own loop decides."""


class Silent:
    def update(self, progress: Progress) -> None:
        pass

    def say(self, line: str) -> None:
        pass


OTHER: dict[str, Any] = {
    "servers": 2,
    "replicas": 2,
    "engine": "lab",
    "epochs": 3,
    "steps": 3,
    "until": "loss<=0.1",
    "scores": 2,
    "score_every": "20 steps",
    "confirm": 2,
    "best": "accuracy",
    "patience": 3,
    "seed": 1,
    "rate": 0.5,
    "save": "model.safetensors",
    "register": "digits",
    "store": "kept_models",
    "link_rate": "50mbit",
    "traced": True,
    "profiled": True,
    "command": "covey run",
    "watcher": Silent(),
    "threads": 2,
    "checkpoint": "kept",
    "every": "5s",
    "resume": "kept",
    "stall": "5s",
    "hosts": "hosts.txt",
    "place": "servers:node0",
    "interface": "eth0",
    "insecure": True,
    "cipher": "aes-256-gcm",
    "cluster": Cluster(),
    "timing_only": True,
    "instruments": [Instrument()],
    "on_failure": "continue",
    "max_failures": 2,
    "keeper": "etcd:127.0.0.1:2379/name",
    "standby": True,
    "runs": "records",
    "faults": "kill worker 1@5s",
    "spot_trace": "examples/spot.csv",
    "callbacks": [Callback()],
    "preparers": 2,
    "log": ["csv:scores.csv"],
}
NEEDED = {
    "every": {"checkpoint": "kept"}, "max_failures": {"on_failure": "continue"}, "confirm": {"until": "loss<=0.1"},
    "patience": {"best": "accuracy"}, "store": {"register": "digits"}, "keeper": {"checkpoint": "kept"},
    "standby": {"checkpoint": "kept"},
}  # fmt: skip
KINDS = {engine: "cluster" if engine in ENGINES else engine for engine in names()}


FIELDS = {one.name: one for kind in PARTS.values() for one in fields(kind)}  # type: ignore[arg-type]
READ = {one.name: kind.read_by for kind in PARTS.values() for one in fields(kind)}  # type: ignore[arg-type]


def keywords(function: Any) -> dict[str, Parameter]:
    return {name: p for name, p in signature(function).parameters.items() if p.kind is Parameter.KEYWORD_ONLY}


def test_the_table_and_fit_have_every_option() -> None:
    assert [one.name for one in fields(Options)] == ["engine", *PARTS]
    assert sum(len(fields(kind)) for kind in PARTS.values()) == len(FIELDS), "an option belongs to one part"  # type: ignore[arg-type]
    assert {"engine", *FIELDS} == set(Options().flat()) == set(OTHER) == set(keywords(fit))
    assert set(keywords(launch)) == set(OTHER) - OWN
    for function in (fit, launch):
        for name, parameter in keywords(function).items():
            one = FIELDS.get(name) or next(one for one in fields(Options) if one.name == name)
            assert (parameter.default, parameter.annotation) == (one.default, one.type), name


@pytest.mark.parametrize("name", OTHER)
def test_fit_and_launch_put_every_option_in_its_place(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Options] = []
    monkeypatch.setattr(fitting, "fit_with", lambda task, strategy, workers, given: found.append(given))
    monkeypatch.setattr(launching, "launch_with", lambda script, args, strategy, workers, given: found.append(given))
    value = OTHER[name]
    fit(mlp(), "bsp", 2, **{name: value})
    if name not in OWN:
        launch("script.py", [], "bsp", 2, **{name: value})
    for given in found:
        assert given == options({name: value}) and given.given() == [name] and given.flat()[name] == value


@pytest.mark.parametrize("engine", KINDS)
@pytest.mark.parametrize("name", [name for name in OTHER if name != "engine"])
def test_an_option_is_read_or_refused(name: str, engine: str) -> None:
    wanted = {name: OTHER[name], **NEEDED.get(name, {})}
    if "on_failure" in wanted and KINDS[engine] == "cluster":
        wanted |= {"on_failure": "restart", "checkpoint": "kept"}
    given = options(wanted)
    kind = ENGINES.get(engine)
    if kind and (refused := wanted.keys() & kind.refuses.keys()):
        (option,) = refused
        said = f"{option}=… is not for {engine}, {kind.refuses[option]}"
        with pytest.raises(PlanError, match=re.escape(said)):
            check(given, engine, kind)
    elif kind and name in ("faults", "spot_trace") and not kind.goes_on:
        with pytest.raises(PlanError, match=f"{name}=… is for the engines {GO_ON}, not for {engine}"):
            check(given, engine, kind)
    elif KINDS[engine] in READ[name]:
        check(given, engine, kind)
    else:
        said = f"{name}=… is for .*, not for {engine}|checkpoint=… is for"
        with pytest.raises(PlanError, match=said):
            fit(mlp(), "bsp", 2, engine=engine, **{name: OTHER[name]})


@pytest.mark.parametrize("name", ["timing_only", "cluster", "instruments"])
def test_virtual_time_is_not_for_processes(name: str) -> None:
    with pytest.raises(PlanError, match=r"is for virtual time \(the engine simulated, .*\), not for local"):
        fit(mlp(), "bsp", 2, **{name: OTHER[name]})


def test_as_nobody_says_anything_is_not_given() -> None:
    assert options({"instruments": [], "seed": 0, "every": "60s", "until": None}).given() == []
    assert options({"steps": 4, "instruments": [Instrument()]}).given() == ["steps", "instruments"]


def test_how_often_to_keep_needs_a_place() -> None:
    with pytest.raises(PlanError, match="say where with checkpoint="):
        fit(mlp(), "bsp", 2, every="5s")


TIMED = {"timing_only": True}
CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"on_failure": "restart"}, "needs checkpoint="),
    ({"max_failures": 3}, "counts failures that a run survives"),
    ({"every": "5s", "resume": "kept"}, "say where with checkpoint="),
    ({"epochs": 1, "steps": 1}, "not both"),
    ({"scores": 0, "until": "loss<=0.1"}, "asks for none"),
    ({"scores": 0, "best": "accuracy"}, "asks for none"),
    ({"scores": 2, "score_every": "3s"}, "not both"),
    *(({name: wrong}, "whole number") for name in ("epochs", "steps", "scores") for wrong in (2.5, "2", True)),
    *(({"score_every": wrong}, "write for example '100 steps'") for wrong in ("0s", "10", "0 steps", "10 epochs")),
    ({"score_every": 10}, "score_every must be a string, not int 10"),
    ({"patience": 2}, "name the metric"),
    ({"patience": 0, "best": "accuracy"}, "at least 1 is needed"),
    ({"patience": 1.5, "best": "accuracy"}, "patience must be a whole number, not float 1.5"),
    ({**TIMED, "until": "loss<=0.1"}, "trains nothing"),
    ({**TIMED, "save": "model"}, "trains nothing"),
    ({**TIMED, "best": "accuracy"}, "trains nothing"),
    ({"confirm": 2}, "is for scores that meet until"),
    ({**TIMED, "checkpoint": "kept"}, "nothing that could be kept"),
    ({**TIMED, "resume": "kept"}, "nothing that could be kept"),
    *(({name: 0}, "at least 1 is needed") for name in ("epochs", "steps", "threads")),
    ({"max_failures": 0, "on_failure": "continue"}, "at least 1 is needed"),
    ({"scores": -1}, "at least 1 is needed"),
    ({"rate": 0.0}, "must be more than 0"),
]


@pytest.mark.parametrize(("given", "why"), CONTRADICTIONS)
def test_options_that_contradict_each_other_are_refused(given: dict[str, Any], why: str) -> None:
    """Each pair of its own: that one of two refused names is refused says nothing of the other."""
    engine = "local" if "threads" in given else "simulated"
    with pytest.raises(PlanError, match=re.escape(why)):
        fit(mlp(), "bsp", 2, engine=engine, **given)


UNTIL = {"until": "loss<=0.1"}


@pytest.mark.parametrize(("given", "epochs"), [({}, 10), (UNTIL, 100), ({**UNTIL, "epochs": 3}, 3), ({"epochs": 3}, 3)])
def test_how_long_a_run_is_that_nobody_limits(given: dict[str, Any], epochs: int) -> None:
    """One with a target has more patience."""
    asked = request(mlp(samples=64), "bsp", 2, options(given))
    assert asked.plan.limits == (4 * epochs, 4 * epochs)
    assert request(mlp(samples=64), "bsp", 2, options({**UNTIL, "steps": 7})).plan.limits == (7, 7)


def test_a_misspelt_option_is_told_the_nearest() -> None:
    with pytest.raises(PlanError, match="there is no option 'treads'; did you mean 'threads'"):
        options({"treads": 3})


class Watched:
    """Options, or a part of them, that know which were read."""

    def __init__(self, given: Options | OptionPart, read: set[str]) -> None:
        self._given, self._read = given, read

    def __getattr__(self, name: str) -> Any:
        if name in PARTS:
            return Watched(getattr(self._given, name), self._read)
        self._read.add(name)
        return getattr(self._given, name)


@pytest.mark.parametrize("engine", ["simulated", "local"])
def test_what_an_engine_does_not_refuse_it_looks_at(engine: str, tmp_path: Path) -> None:
    read, kept = set[str](), {"register": "mlp", "store": tmp_path / "store"}
    given: Any = Watched(options({"engine": engine, "steps": 2, "save": tmp_path / "model", **kept}), read)
    fit_with(mlp(), "bsp", 2, given)
    assert {name for name, kinds in READ.items() if engine in kinds} - {"epochs"} <= read


def test_hosts_are_looked_at_where_there_are_several() -> None:
    read = set[str]()
    given: Any = Watched(options({"place": "servers:node0", "interface": "eth0"}), read)
    terms_of(given, 1)
    assert {name for name, kinds in READ.items() if kinds == HOSTS} - {"hosts"} <= read


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"cipher": "rot13"}, "there is aes-256-gcm"),
        ({"cipher": "aes-256-gcm", "insecure": True}, "omit one of them"),
        ({"cipher": "aes-256-gcm", "engine": "local"}, "is for engines with several hosts"),
        ({"cipher": "aes-256-gcm", "engine": "lab"}, r"needs cryptography: pip install 'covey\[cipher\]'"),
    ],
    ids=["unknown", "with insecure", "no hosts", "not installed"],
)
def test_a_cipher_that_cannot_be_is_refused(asked: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if asked.get("engine") == "lab":
        monkeypatch.setattr(options_module, "find_spec", lambda name: None)
    with pytest.raises(PlanError, match=why):
        fit("no_such.py", "bsp", 2, steps=1, **asked)
