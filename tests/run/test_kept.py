"""From which checkpoints a run may go on, and where it may write its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from covey.checkpoint import CheckpointDirectory, RunRecord
from covey.errors import CheckpointError, PeerLost
from covey.observe.membership import MembershipLog
from covey.run.kept import same_cut, uncut
from covey.run.option_parts import CheckpointOptions
from covey.run.processes import checkpoints_of, kept_run
from covey.run.restarting import FailureCount


def record(**changed: Any) -> RunRecord:
    usual = {"strategy": "bsp", "workers": 2, "servers": 1, "seed": 1, "samples": 64, "batch_size": 4, "limits": [3, 3]}
    return RunRecord(**{**usual, **changed})


def kept(folder: Path) -> Path:
    """A folder with the checkpoint of a run."""
    with CheckpointDirectory(folder) as checkpoints, checkpoints.writing() as place:
        checkpoints.commit(place, record())
    return folder


@pytest.mark.parametrize(
    "changed",
    [
        {"seed": 2}, {"samples": 65}, {"batch_size": 5},
    ],
    ids=lambda changed: next(iter(changed)),
)  # fmt: skip
def test_a_run_goes_on_from_one_of_its_own_kind(tmp_path: Path, changed: dict[str, Any]) -> None:
    given = CheckpointOptions(resume=kept(tmp_path))
    place, run = kept_run(given, record())
    assert place is not None and run is not None and run.seed == 1
    name = next(iter(changed))
    with pytest.raises(CheckpointError, match=f"is of a run with {name} .*, this one has {changed[name]!r}"):
        kept_run(given, record(**changed))


def test_seconds_of_two_clocks_are_not_added(tmp_path: Path) -> None:
    with CheckpointDirectory(tmp_path) as checkpoints, checkpoints.writing() as place:
        checkpoints.commit(place, record(clock="real"))
    given = CheckpointOptions(resume=tmp_path)
    with pytest.raises(CheckpointError, match="in real time, and this one counts virtual seconds: go on with"):
        kept_run(given, record(clock="virtual"))
    for clock in ("real", ""):
        assert kept_run(given, record(clock=clock))[0] is not None
    assert kept_run(CheckpointOptions(resume=kept(tmp_path / "older")), record(clock="virtual"))[0] is not None


def test_a_restart_without_a_readable_checkpoint_ends_with_the_loss(tmp_path: Path) -> None:
    for place in CheckpointDirectory(kept(tmp_path)).all():
        (place / "run.json").write_text("{")
    given = CheckpointOptions(checkpoint=tmp_path, on_failure="restart")
    failures = FailureCount(given, CheckpointDirectory(tmp_path), 2, MembershipLog())
    with pytest.raises(PeerLost, match=r"(?s)worker 1 died.*the run cannot start again: .*run.json") as ended:
        failures.newest((None, None), PeerLost("worker 1 died", "worker 1"))
    assert ended.value.who == "worker 1"


def test_a_plan_may_change_but_not_that_of_a_cut_model_or_a_loop(tmp_path: Path) -> None:
    given = CheckpointOptions(resume=kept(tmp_path / "whole"))
    for changed in ({"strategy": "ssp(bound=1)"}, {"workers": 3, "limits": [3, 3, 3]}, {"servers": 2}):
        assert kept_run(given, record(**changed))[0] is not None  # type: ignore[arg-type]
    mesh = record(strategy="allreduce with mesh(replica=1, stage=2)", servers=0)
    with pytest.raises(CheckpointError, match="is of a run with strategy 'bsp', this one has 'allreduce'"):
        kept_run(given, mesh)
    with CheckpointDirectory(tmp_path / "shards") as checkpoints, checkpoints.writing() as place:
        checkpoints.commit(place, record(strategy="allreduce with mesh(replica=1, shard=2)", servers=0))
    with pytest.raises(CheckpointError, match="is of a run with replica x shard x expert = 2, this one has 1"):
        kept_run(CheckpointOptions(resume=tmp_path / "shards"), mesh)
    with CheckpointDirectory(tmp_path / "loop") as checkpoints, checkpoints.writing() as place:
        checkpoints.commit(place, record(loop=True))
    with pytest.raises(CheckpointError, match="is of a run with workers 2, this one has 3"):
        kept_run(CheckpointOptions(resume=tmp_path / "loop"), record(loop=True, workers=3, limits=[3, 3, 3]))


def test_the_checkpoints_of_another_run_are_not_replaced(tmp_path: Path) -> None:
    mine, theirs, fresh = kept(tmp_path / "mine"), kept(tmp_path / "theirs"), tmp_path / "fresh"
    for resume in (None, mine):
        with pytest.raises(CheckpointError, match="holds the checkpoints of an earlier run"):
            checkpoints_of(CheckpointOptions(checkpoint=theirs, resume=resume))
        assert checkpoints_of(CheckpointOptions(checkpoint=fresh, resume=resume)) is not None
    assert checkpoints_of(CheckpointOptions(checkpoint=mine, resume=tmp_path / "theirs" / ".." / "mine")) is not None
    assert checkpoints_of(CheckpointOptions(resume=mine)) is None


def test_what_parts_are_said_to_cost_makes_no_other_cut() -> None:
    mesh = "bsp with mesh(replica=1, stage=2, cut={}, load={})"
    assert same_cut(mesh.format(3, "60:40"), mesh.format(3, "50:50"))
    assert not same_cut(mesh.format(3, "60:40"), mesh.format(2, "60:40")) and not same_cut(mesh.format(3, 1), "bsp")


def test_a_run_without_its_cut_has_a_limit_for_each_share_of_the_data() -> None:
    """Members of a tensor group compute on the same batches, so each has the limit of its group."""
    cut = record(strategy="allreduce with mesh(replica=2, tensor=2)", workers=4, servers=0, limits=[3, 3, 5, 5])
    assert (uncut(cut).workers, uncut(cut).limits) == (2, [3, 5])
    limits = [2, 2, 2, None, None, None]
    staged = record(strategy="bsp with mesh(replica=2, stage=3)", workers=6, servers=3, limits=limits)
    assert (uncut(staged).workers, uncut(staged).servers, uncut(staged).limits) == (2, 1, [2, None])
