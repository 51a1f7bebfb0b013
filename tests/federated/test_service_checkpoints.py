"""What a service keeps between its rounds, and what of a folder it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
import torch

from covey.checkpoint import RoleState, RunRecord
from covey.data.shards import Shards
from covey.engines.service.role_loop import LoopRole
from covey.engines.transport.refusals import Refusals
from covey.errors import CheckpointError
from covey.federated.messages import COORDINATOR, ClientReport
from covey.message import Address
from covey.model import build
from covey.model.replica import Replica
from covey.observe.facts import RunOrigin
from covey.observe.membership import RoundLog, RoundRecord
from covey.observe.tally import Tally, Teller
from covey.run.federated.round_referee import RoundReferee
from covey.run.federated.service_checkpoints import ServiceCheckpoints
from covey.run.federated.serving import going_on
from covey.vector import Vector
from tests.federated.conftest import regression

HERE = RunRecord(strategy="fedavg", workers=1, servers=0, seed=0, samples=0, batch_size=8, limits=[9])


def replica() -> Replica:
    return build.replica(regression(), COORDINATOR, False, Shards(8, 1, 8, 0), 9)


def checkpoints(
    folder: Path, here: RunRecord = HERE, say: Callable[[str], None] = print, task: str = "a hash",
    refusals: Refusals | None = None,
) -> ServiceCheckpoints:  # fmt: skip
    return ServiceCheckpoints(folder, here, say, task, refusals or Refusals())


def kept(folder: Path, here: RunRecord = HERE) -> tuple[ServiceCheckpoints, Replica]:
    """A service that is kept after one round, while a client's report lies unread."""
    service, model, log, judge = checkpoints(folder, here), replica(), RoundLog(4), RoundReferee(1, None)
    log.add(RoundRecord(number=0, state="committed", seconds=2.0, took=2.0, reports=2), [1, 3])
    judge.judge(2.0, 30, 100, {}, 0.5)
    role = LoopRole(COORDINATOR, Random(1), steps=9)
    for _ in range(2):
        role.training()
    report = ClientReport(0, 5, 0.1, Vector([torch.full((5,), 0.987654321).double()]), Vector(()))
    role.mailbox.put(msgspec.structs.replace(report, sender=Address("client", 1)))
    role.memories.remember("server state", (Vector([torch.ones(3)]),))
    model.flat.mul_(3.0)
    service.keep(role, 2.5, model, log, judge, Teller([Tally(who=COORDINATOR, samples=30, updates=1)]))
    return service, model


def found(folder: Path, here: RunRecord = HERE) -> tuple[RoleState, list[Tally], Replica, RoundLog, RoundReferee]:
    model, log, judge = replica(), RoundLog(4), RoundReferee(1, None)
    state = checkpoints(folder, here).found(model, log, judge)
    assert state
    return *state, model, log, judge


def test_a_service_goes_on_with_the_lineage_that_it_has_kept(tmp_path: Path) -> None:
    runs = [RunOrigin(key=key) for key in "ab"]
    first, second = (msgspec.structs.replace(HERE, origins=[run]) for run in runs)
    kept(tmp_path, first)
    service = checkpoints(tmp_path, second)
    assert service.origins == runs[1:]
    service.found(replica(), RoundLog(4), RoundReferee(1, None))
    assert service.origins == runs


def test_a_service_goes_on_with_what_it_has_kept(tmp_path: Path) -> None:
    fresh = checkpoints(tmp_path / "none")
    assert fresh.found(replica(), RoundLog(4), RoundReferee(1, None)) is None
    _, before = kept(tmp_path)
    state, tallies, model, log, judge = found(tmp_path)
    assert state.done == 1 and state.seconds == 2.5 and tallies[0].samples == 30
    assert torch.equal(model.flat.parts[0], before.flat.parts[0]) and not torch.equal(
        model.flat.parts[0], replica().flat.parts[0]
    )
    assert log.told().took_part == 2 and log.rounds[0].state == "committed" and judge.history[0]["samples"] == 30
    begun = (Vector([torch.zeros(3)]),)
    (vector,) = LoopRole(COORDINATOR, Random(1), kept=state).remember("server state", begun).value
    assert torch.equal(vector.parts[0], torch.ones(3))


def test_a_report_that_lies_unread_is_not_kept(tmp_path: Path) -> None:
    kept(tmp_path)
    assert found(tmp_path)[0].mailbox == []
    mark = bytes(torch.full((1,), 0.987654321).double().numpy().data)
    assert not any(mark in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())


@pytest.mark.parametrize(("name", "other"), [("strategy", "fedprox"), ("seed", 7)])
def test_a_folder_of_another_run_is_refused(tmp_path: Path, name: str, other: Any) -> None:
    kept(tmp_path)
    with pytest.raises(CheckpointError, match=f"of a run with the {name}"):
        found(tmp_path, msgspec.structs.replace(HERE, **{name: other}))


@pytest.mark.parametrize(
    "wrong",
    [
        {}, {"task": 3}, {"refused": {"late": -1}},
        {"rounds": 3}, {"counted": {"x": 1}}, {"tallies": [{"who": ["coordinator", 0], "samples": -1}]},
        {"tallies": [{"who": 5}]}, {"history": [{"loss": 1.0}]}, {"history": "none"},
        {"rounds": [{"number": 0, "state": "odd", "seconds": 1.0, "took": 1.0}]},
    ],
)  # fmt: skip
def test_rounds_that_no_service_has_written_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    service, _ = kept(tmp_path)
    place, run = service.directory.newest()
    changed = {**run.progress, **wrong} if wrong else {}
    with service.directory.writing() as partial:
        for file in place.iterdir():
            if file.name != "run.json":
                (partial / file.name).write_bytes(file.read_bytes())
        service.directory.commit(partial, msgspec.structs.replace(run, progress=changed))
    with pytest.raises(CheckpointError, match="does not say which rounds there were"):
        found(tmp_path)


def test_a_full_disk_is_said_once_and_the_run_goes_on(tmp_path: Path) -> None:
    said: list[str] = []
    service = checkpoints(tmp_path / "gone" / "kept", say=said.append)
    (tmp_path / "gone").write_text("a file where the folder should be")
    role = LoopRole(COORDINATOR, Random(1), steps=9)
    role.training()
    for _ in range(2):
        service.keep(role, 0.0, replica(), RoundLog(4), RoundReferee(1, None), Teller())
    assert len(said) == 1 and "no checkpoint could be written" in said[0]


def test_a_full_disk_ends_a_run_that_could_not_write_what_it_spends_of_a_budget(tmp_path: Path) -> None:
    said: list[str] = []
    service = ServiceCheckpoints(tmp_path / "gone" / "kept", HERE, said.append, "a hash", Refusals(), spends=True)
    (tmp_path / "gone").write_text("a file where the folder should be")
    role = LoopRole(COORDINATOR, Random(1), steps=2)
    role.training()
    given = replica(), RoundLog(4), RoundReferee(1, None), Teller()
    with pytest.raises(CheckpointError, match="spends of the privacy budget must be written before it: make room"):
        service.keep(role, 0.0, *given)
    while role.training():
        pass
    service.keep(role, 0.0, *given)
    assert len(said) == 1, "after the last round nothing is spent any more"


def test_another_task_file_is_refused(tmp_path: Path) -> None:
    kept(tmp_path)
    with pytest.raises(CheckpointError, match="another task file .* use the same file, or another folder"):
        checkpoints(tmp_path, task="another hash").found(replica(), RoundLog(4), RoundReferee(1, None))


def test_what_was_refused_and_whole_numbers_of_notes_are_kept(tmp_path: Path) -> None:
    before, after = Refusals(), Refusals()
    before.note("the service: it was late", 3)
    role = LoopRole(COORDINATOR, Random(1), steps=9)
    role.training()
    teller = Teller([Tally(who=COORDINATOR, notes={"late": 2, "part": 0.5})])
    checkpoints(tmp_path, refusals=before).keep(role, 0.0, replica(), RoundLog(4), RoundReferee(1, None), teller)
    found = checkpoints(tmp_path, refusals=after).found(replica(), RoundLog(4), RoundReferee(1, None))
    assert found and str(found[1][0].notes) == "{'late': 2, 'part': 0.5}"
    assert after.lines() == before.lines()


@pytest.mark.parametrize(
    ("done", "said"), [(0, "round 1 of 60"), (59, "going on with round 60 of 60"), (60, "60 rounds are over")]
)
def test_a_run_whose_rounds_are_over_says_so(done: int, said: str) -> None:
    assert said in going_on(done, 60)


def test_a_torn_checkpoint_is_named(tmp_path: Path) -> None:
    said: list[str] = []
    kept(tmp_path)
    service, _ = kept(tmp_path)
    place, _ = service.directory.newest()
    torn = next(file for file in place.iterdir() if file.name != "run.json")
    torn.write_bytes(torn.read_bytes()[:-1])
    assert checkpoints(tmp_path, say=said.append).found(replica(), RoundLog(4), RoundReferee(1, None))
    assert len(said) == 1 and str(torn) in said[0] and "goes on from the checkpoint before" in said[0]
