"""Every public parameter is given every kind of wrong value: it is refused by name, or taken on purpose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import covey
from covey.errors import CoveyError, PlanError
from covey.faults import REPORT
from covey.run import fit, launch
from covey.run.own_loop import launching
from covey.run.own_loop.member import Member
from covey.task import arguments

X, Y = torch.linspace(-1, 1, 64, dtype=torch.float64).view(16, 4), torch.arange(16) % 2
GIVEN: dict[str, Any] = {
    "object": object(), "text": "x", "no text": "", "count": 3, "fraction": 2.5, "zero": 0, "negative": -1,
    "nan": float("nan"), "truth": True, "numbers": [3], "texts": ["x"], "dict": {"a": 1}, "none": None, "bytes": b"x",
    "without arguments": lambda: None, "with four": lambda a, b, c, d: None, "class": int, "tensor": torch.ones(3),
    "module": nn.Linear(2, 1), "infinite": float("inf"), "far too many": 10**30,
}  # fmt: skip
NUMBERS = {"count", "fraction", "zero", "negative", "nan", "infinite", "far too many"}
ANSWER = NUMBERS | {"object", "truth", "numbers", "texts", "dict", "none"}
"""What is true or false in Python, and can be meant so."""

ABOVE_0 = {"count", "fraction", "infinite", "far too many"}
TAKEN: dict[str, dict[str, set[str]]] = {
    "Task": {
        "step": {"none"}, "batch_size": {"count"}, "accumulate": {"count"}, "evaluate": {"none"}, "ema": {"none"},
        "rate": {"none", "class"}, "scheduler": {"none"}, "clip_norm": ABOVE_0 | {"none"}, "loaders": {"count", "zero"},
        "collate_fn": {"none"}, "sampler": {"numbers", "none"}, "drop_last": {"truth"}, "device": {"none"},
        "compile": set(), "warm": {"truth"}, "private": {"none"}, "transform": {"none"}, "preparers": {"zero"},
    },
    "covey.fit": {
        "workers": {"count"}, "servers": {"count", "none"}, "epochs": {"count", "none"}, "steps": {"count", "none"},
        "replicas": {"count"},
        "until": {"no text", "none"}, "scores": {"count", "zero", "far too many"}, "score_every": {"none"},
        "best": {"none"}, "patience": {"none"}, "seed": {"count", "zero"}, "rate": ABOVE_0 - {"infinite"},
        "threads": {"none"}, "save": {"text", "no text", "none"}, "checkpoint": {"no text", "none"},
        "register": {"text", "none"}, "store": {"no text", "none"},
        "resume": {"none"}, "max_failures": {"none"}, "faults": {"none"}, "hosts": {"no text", "none"},
        "spot_trace": {"no text", "none"},
        "place": {"no text"}, "interface": {"no text"}, "link_rate": {"no text", "none"}, "cluster": {"none"},
        "timing_only": {"truth"}, "traced": {"truth"}, "command": {"text", "no text"}, "watcher": {"none"},
        "preparers": {"zero", "none"}, "runs": {"no text", "none"}, "cipher": {"no text"},
    },
    "covey.run.launch": {
        "script": {"text"}, "arguments": {"texts"}, "workers": {"count"}, "servers": {"count", "none"},
        "steps": {"count", "none"}, "seed": {"count", "zero"}, "threads": {"count", "none"},
        "save": {"text", "no text", "none"}, "checkpoint": {"text", "no text", "none"},
        "resume": {"text", "no text", "none"}, "max_failures": {"none"}, "hosts": {"no text", "none"},
        "place": {"no text"}, "interface": {"no text"}, "command": {"text", "no text"}, "watcher": {"none"},
        "log": {"texts"}, "runs": {"text", "no text", "none"}, "profiled": {"truth"},
        "register": {"text", "none"}, "store": {"no text", "none"}, "cipher": {"no text"},
    },
    "covey.join": {
        "strategy": {"no text", "none"}, "servers": {"count", "none"}, "seed": {"count", "zero"},
        "checkpoint": {"no text", "none"}, "resume": {"no text", "none"}, "interface": {"text", "no text"},
        "insecure": {"truth"}, "cipher": {"no text"},
    },
    "member.shard": {"data": {"numbers", "texts"}, "batch_size": {"count"}},
    "member.loader": {},
    "member.epochs": {"count": {"count", "zero", "far too many"}},
    "member.step": {
        "loss": NUMBERS | {"none"}, "samples": {"count", "zero", "none", "far too many"}, "optimizer": {"none"},
        "scaler": {"none"},
    },
    "member.accumulate": {"more": ANSWER},
    "member.clip": {"max_norm": ABOVE_0},
    "member.agree": {"value": ANSWER, "how": set()},
    "member.gather": {"tensor": {"tensor"}},
    "member.keep": {"things": {"module"}},
}  # fmt: skip
"""What a parameter takes of these; everything else is refused."""

ENDLESS = {"workers", "servers", "epochs", "steps", "threads"}
"""Of these 10**30 can be asked for, and would take too long."""

CALLED = {"things": "keep", "resume": "checkpoint"}
"""By what else a message names a parameter."""


def task(**given: Any) -> covey.Task:
    usual: dict[str, Any] = {
        "model": lambda: nn.Linear(4, 2).double(), "data": (X, Y), "loss": nn.functional.cross_entropy, "batch_size": 4,
        "optimizer": lambda params: torch.optim.SGD(params, lr=0.1), "evaluate": covey.accuracy((X, Y)),
    }  # fmt: skip
    if given.get("step") is not None:
        del usual["loss"]
    if "schedule_by" in given:
        usual["scheduler"] = torch.optim.lr_scheduler.ConstantLR
    return covey.Task(**{**usual, **given})


def trained(**given: Any) -> None:
    fit(task(**given), "bsp", 1, engine="simulated", steps=2, runs=False)


def fitted(**given: Any) -> None:
    steps = None if "epochs" in given else 2
    usual = {"task": task(), "workers": 2, "engine": "simulated", "steps": steps, "runs": False}
    fit(**{**usual, **given})


def launched(**given: Any) -> None:
    usual: dict[str, Any] = {"script": "x", "arguments": [], "strategy": "bsp", "workers": 2, "runs": False}
    launch(**{**usual, **given})


def joined(**given: Any) -> AbstractContextManager[Member]:
    model = nn.Linear(4, 2).double()
    usual = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
    return covey.join(**{**usual, **given})


USUAL: dict[str, dict[str, Any]] = {
    "shard": {"data": (X,)}, "loader": {"loader": DataLoader(X)}, "epochs": {"count": 2}, "clip": {"max_norm": 1.0},
    "agree": {"value": True},
}  # fmt: skip


def called(name: str) -> Callable[..., None]:
    """A method of a member, as a loop calls it."""

    def call(**given: Any) -> None:
        with joined() as member:
            member.models[0](X).sum().backward()
            if name == "keep":
                return member.keep(given["things"])
            found = getattr(member, name)(**{**USUAL.get(name, {}), **given})
            if name == "accumulate":
                with found:
                    pass
            if name in ("shard", "loader", "epochs"):
                list(zip(range(3), found, strict=False))
            if name == "clip":
                member.step()

    return call


METHODS = [name for name, found in vars(Member).items() if callable(found) and not name.startswith("_")]
PLACES: dict[str, tuple[Any, Callable[..., Any]]] = {
    "Task": (covey.Task, trained), "covey.fit": (fit, fitted), "covey.run.launch": (launch, launched),
    "covey.join": (covey.join, joined),
    **{f"member.{name}": (getattr(Member, name), called(name)) for name in METHODS},
}  # fmt: skip


def parameters() -> Iterator[tuple[str, str]]:
    for place, (thing, _) in PLACES.items():
        yield from ((place, name) for name in signature(thing).parameters if name != "self")


@pytest.fixture
def nothing_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launched script would be run in processes; all else is quick."""
    monkeypatch.chdir(tmp_path)
    Path("x").write_text("")
    monkeypatch.setattr(launching, "_heard", lambda loop, train: None)


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("place", "name"), list(parameters()))
def test_a_value_is_taken_or_refused_by_the_name_of_its_parameter(place: str, name: str) -> None:
    taken = set()
    for kind, value in GIVEN.items():
        if kind == "far too many" and name in ENDLESS:
            continue
        try:
            PLACES[place][1](**{name: value})
        except CoveyError as refused:
            said = str(refused)
            assert any(word in said for word in (name, CALLED.get(name, name))), f"{kind}: {said}"
            assert REPORT not in said, f"{kind}: {said}"
        else:
            taken.add(kind)
    assert taken == TAKEN[place].get(name, set())


def test_the_table_has_every_place() -> None:
    assert PLACES.keys() - TAKEN.keys() == {"member.first_step"}, "which takes nothing"


WORDS: dict[str, tuple[Callable[[], Any], str]] = {
    "a norm in quotes": (lambda: task(clip_norm="1"), "Task: clip_norm must be a number, not str '1'"),
    "callbacks": (lambda: task(callbacks=3), "Task: callbacks must be a list, not int 3"),
    "a scheduler of nothing": (
        lambda: task(scheduler=lambda: None),
        "Task: scheduler is called as scheduler(optimizer), and the one given is scheduler(): give "
        "scheduler=lambda optimizer: …",
    ),
    "a model of something": (
        lambda: task(model=nn.Linear),
        "Task: model is called as model(), and the one given is model(in_features: int, out_features: int, bias: bool "
        "= True, device=None, dtype=None) -> None: give model=lambda: …",
    ),
    "a seed in quotes": (lambda: fitted(seed="2"), "covey.fit: seed must be a whole number, not str '2'"),
    "no callback": (
        lambda: fitted(callbacks=[covey.Callback(), 3]),
        "covey.fit: callbacks must be a list (each a covey.Callback), not a list of 2 with int 3",
    ),
    "on failure": (
        lambda: fitted(on_failure="again"),
        "covey.fit: on_failure must be 'stop' or 'restart' or 'continue', not str 'again'",
    ),
    "how long": (
        lambda: fitted(stall="soon"),
        "stall=\"soon\": cannot read the duration 'soon'; write for example 20ms, 60s, 5m or 1h",
    ),
    "swapped": (
        lambda: covey.join(torch.optim.SGD([nn.Parameter(X)]), nn.Linear(2, 1)),  # type: ignore[arg-type]
        "covey.join: model must be a torch.nn.Module or a list (each a torch.nn.Module), not SGD",
    ),
    "none of them": (
        lambda: joined(optimizer=[]),
        "covey.join: model and optimizer must be at least one each, and a list that was given is empty",
    ),
    "keep": (
        lambda: joined(keep=[3]),
        "covey.join: keep must be a list (each an object with state_dict and load_state_dict), not a list of 1 with "
        "int 3",
    ),
    "a batch size in quotes": (
        lambda: called("shard")(batch_size="8"), "member.shard: batch_size must be a whole number, not str '8'"
    ),
    "agreed on a word": (
        lambda: called("agree")(value="x", how="mean"),
        "member.agree(…, how='mean'): value must be one number, not str 'x'",
    ),
    "agreed on what was not called": (
        lambda: called("agree")(value=X.isnan),
        "member.agree(…, how='any'): value must be True or False, not builtin_function_or_method",
    ),
    "a loss of a batch": (
        lambda: called("step")(loss=X), "member.step: loss must be one number, not a tensor of shape (16, 4)"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WORDS)
def test_what_is_said(name: str) -> None:
    with pytest.raises(PlanError) as refused:
        WORDS[name][0]()
    assert str(refused.value) == WORDS[name][1]


def test_numbers_of_numpy_are_numbers() -> None:
    given = task(batch_size=np.int64(4), clip_norm=np.float32(1.0), loaders=np.int32(0))
    assert type(given.batch_size) is type(given.loaders) is int
    fit(given, "bsp", np.int64(2), engine="simulated", steps=np.int32(2), rate=np.float64(0.5), runs=False)  # type: ignore[arg-type]
    with joined() as member:
        with member.accumulate(np.int64(3) % 2 == 0):  # type: ignore[arg-type]
            pass
        assert member.agree(np.float32(0.5), how="mean") == member.agree(torch.tensor(0.5), how="mean") == 0.5
        assert member.agree(np.bool_(True)) is member.agree(torch.tensor(True)) is True


@pytest.mark.parametrize("use", [
    lambda member: list(member.shard((X,))), lambda member: list(member.loader(DataLoader(X))),
    lambda member: member.step(1.0, samples=1), lambda member: member.agree(True),
])  # fmt: skip
def test_a_loop_without_with_is_refused(use: Callable[[Any], Any]) -> None:
    with pytest.raises(PlanError, match=r"call it inside `with covey\.join\(…\) as member:`"):
        use(joined())


def test_a_scheduler_may_ask_for_the_steps_of_the_run() -> None:
    for make in (lambda optimizer, steps: None, lambda optimizer, *, steps: None, lambda optimizer, last=-1: None):
        task(scheduler=make)
    with pytest.raises(PlanError, match="scheduler is called as scheduler"):
        task(scheduler=lambda *, steps: None)


def test_a_function_written_in_c_is_not_asked_for_its_arguments() -> None:
    arguments.check_call("Task", "rate", max, ("progress",))
    arguments.check_call("Task", "loss", nn.CrossEntropyLoss(), ("output", "y"))
