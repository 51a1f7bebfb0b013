"""What `covey.join` and `covey launch` refuse before anything trains, and the command that they name instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

import covey
from covey import catalog
from covey.engines.process.contacts import Contacts
from covey.engines.process.snapshot_parts import SCORER
from covey.errors import PlanError
from covey.message import Address
from covey.run import launch
from covey.run.own_loop import joined_role
from covey.run.own_loop.joined_role import JoinedRole
from covey.run.roles import RoleWork
from covey.spec import parse


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "train.py"
    file.write_text("raise AssertionError('nobody runs this')")
    return file


def joined(**given: Any) -> Any:
    model = nn.Linear(2, 1)
    return covey.join(model, torch.optim.SGD(model.parameters(), lr=0.1), **given)


def test_alone_a_strategy_must_exist_and_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert joined(strategy="easgd(period=4)").workers == 1
    with pytest.raises(PlanError, match="no strategy 'bspp'"):
        joined(strategy="bspp")
    for name in ("checkpoint", "resume"):
        with pytest.raises(PlanError, match=rf"covey launch .* --workers 1 --{name} kept"):
            joined(**{name: "kept"})


@pytest.mark.parametrize("variable", ["WORLD_SIZE", "HOROVOD_SIZE"])
def test_a_world_without_a_way_to_it_is_refused(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "2")
    with pytest.raises(PlanError, match=f"{variable}=2.*torchrun --nproc-per-node 2"):
        joined()
    monkeypatch.setenv(variable, "1")
    assert joined().workers == 1


def test_a_process_group_without_a_launcher_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 3)
    with pytest.raises(PlanError, match="group of 3 processes.*torchrun --nproc-per-node 3"):
        joined()


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> JoinedRole:
    """The place of a worker of `covey launch --strategy ssp`, which has nobody to speak to."""
    strategy = catalog.resolve("ssp(bound=3)", 2)
    work = RoleWork(
        task="train.py", strategy=parse("ssp(bound=3)"), text=strategy.text, workers=2, servers=None,
        limits=[None, None], seed=0, threads=1, contacts=Contacts(book={}, launcher=""),
    )  # fmt: skip
    joined = JoinedRole(work, strategy, Address("worker", 0))
    monkeypatch.setattr(joined_role, "JOINED", joined)
    return joined


def test_a_strategy_that_differs_from_the_launchers_is_refused(launched: JoinedRole) -> None:
    with pytest.raises(PlanError, match="in a run of ssp.*covey launch --strategy 'bsp'"):
        joined(strategy="bsp")
    with pytest.raises(PlanError, match=r"strategy='ssp\(bound=2"):
        joined(strategy="ssp(bound=2)")
    assert not launched.joined


def test_the_same_strategy_in_other_words_is_no_other(launched: JoinedRole) -> None:
    launched.joined = True  # what comes after the check of the strategy
    with pytest.raises(PlanError, match="a second time"):
        joined(strategy="ssp( bound = 3 )")


@pytest.mark.parametrize(("name", "value"), [("servers", 2), ("seed", 1), ("checkpoint", "kept"), ("stall", "5s")])
def test_what_the_launcher_decides_is_refused_in_the_script(launched: JoinedRole, name: str, value: Any) -> None:
    with pytest.raises(PlanError, match=rf"covey.join\({name}=….*give it --{name}"):
        joined(**{name: value})


def test_a_step_outside_of_the_run_is_refused(launched: JoinedRole) -> None:
    member = joined()
    with pytest.raises(PlanError, match="inside `with covey.join"):
        member.step(samples=1)


@pytest.mark.parametrize(
    ("sites", "numbers"),
    [
        ({}, [0, 1, 0, 0]),  # one machine, whose GPUs everybody sees
        ({"worker 0": 0, "worker 1": 1, "server 0": 1}, [0, 0, 0, 0]),  # a site leaves its roles one GPU
        ({"worker 0": 3, "worker 1": 3, "server 0": 1}, [0, 1, 0, 0]),
    ],
)
def test_workers_that_see_the_same_gpus_are_numbered(
    launched: JoinedRole, sites: dict[str, int], numbers: list[int]
) -> None:
    roles = [Address("worker", 0), Address("worker", 1), Address("server", 0), SCORER]
    work = msgspec.structs.replace(launched.work, contacts=Contacts(book={}, launcher="", sites=sites))
    assert [JoinedRole(work, launched.strategy, who).local_rank for who in roles] == numbers


def test_a_script_is_not_simulated(script: Path) -> None:
    with pytest.raises(PlanError, match="covey simulate"):
        launch(script, [], "bsp", 2, engine="simulated")
    with pytest.raises(PlanError, match="no engine 'slurm'"):
        launch(script, [], "bsp", 2, engine="slurm")


def test_a_script_has_no_mesh(script: Path) -> None:
    with pytest.raises(PlanError, match="works only for a Task: use covey run"):
        launch(script, [], "bsp with mesh(stage=2)", 2)


def test_ranks_do_not_launch_a_run_each(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(PlanError, match="rank 1 of 2 of torchrun.*engine=.torchrun"):
        launch(script, [], "bsp", 2)


@pytest.mark.parametrize("name", ["epochs", "until", "scores", "rate", "link_rate", "timing_only", "traced"])
def test_what_only_a_task_has_is_no_option(script: Path, name: str) -> None:
    asked: dict[str, Any] = {name: 1}
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
        launch(script, [], "bsp", 2, **asked)


def test_how_often_without_where_is_refused(script: Path) -> None:
    with pytest.raises(PlanError, match="say where with checkpoint="):
        launch(script, [], "bsp", 2, every="5s")
