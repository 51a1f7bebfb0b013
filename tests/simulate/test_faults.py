"""Plans of faults: as they are written, drawn and reduced."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from covey.errors import PlanError
from covey.simulate.cluster_file import load
from covey.simulate.faults import DRAWN, FORMS, Fault, FaultPlan, RehearsedRun, draw, parse_faults, read_faults, reduced

ROLES = ["worker 0", "worker 1", "server 0"]
RUN = RehearsedRun(
    seconds=2.0, effects={"worker 0": 90, "worker 1": 80, "server 0": 70}, trainers=ROLES[:2],
    links=[("worker 0", "server 0"), ("server 0", "worker 1")],
)  # fmt: skip


@pytest.mark.parametrize("text", [*FORMS.values(), "kill worker 1@5s for 200ms"])
def test_a_fault_is_written_as_it_is_read(text: str) -> None:
    assert str(parse_faults(text)) == text
    parse_faults(text).check(["worker 0", "worker 1", "server 0"], ["worker 0", "worker 1"])


def test_roles_effects_and_times() -> None:
    plan = parse_faults("# two of them\nkill 1#37; stop server 0@1.5s for 200ms\n")
    assert plan.faults == (
        Fault(kind="kill", who=("worker 1",), effect=37),
        Fault(kind="stop", who=("server 0",), at=1.5, lasts=0.2),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no fault in it; write for example 'kill worker 1@5s'"),
        ("kil worker 1@5s", "the faults are kill, stop"),
        ("kill worker 1", "write it like 'kill worker 1@5s'"),
        ("kill worker 1@5", "20ms, 60s"),
        ("kill worker 1#0", "counted from 1"),
        ("join worker 1@5s for 3s", "write it like 'join worker 1@8s'"),
        ("stop worker 1@5s", "write it like 'stop worker 1@5s for 200ms'"),
        ("slow worker 1@5s for 1s by 1x", "how many times slower"),
        ("disk full#3 for 2s", "disk full@5s for 2s"),
        ("disk full worker 0@3s for 2s", "disk full@5s for 2s"),
        ("delay worker 1@5s by 3ms", "delay worker 1 -> server 0@5s by 50ms"),
        ("drop worker 1 -> worker 1@1s", "names worker 1 twice"),
        ("9..3", "write 3..9"),
    ],
)
def test_what_cannot_be_read_says_how_it_is_written(text: str, told: str) -> None:
    with pytest.raises(PlanError, match=told.replace("(", r"\(")):
        read_faults(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("kill worker 7@1s", "no such role; this run has worker 0, worker 1, server 0"),
        ("slow server 0@1s for 1s by 2x", "only workers compute"),
        ("partition worker 0 and worker 1 and server 0@1s for 1s", "name only some"),
        ("partition server 0 and worker 1 and worker 0@1s for 1s", "name only some"),
    ],
)
def test_what_makes_no_sense_in_a_run_is_refused(text: str, told: str) -> None:
    with pytest.raises(PlanError, match=told):
        parse_faults(text).check(ROLES, ROLES[:2])


def test_seeds_files_and_texts(tmp_path: Path) -> None:
    assert read_faults("17") == range(17, 18) and read_faults("0..99") == range(100)
    file = tmp_path / "plan.txt"
    file.write_text("kill worker 1@5s\n# later\nstop 0#3 for 1s\n")
    assert read_faults(str(file)) == parse_faults("kill worker 1@5s; stop worker 0#3 for 1s")
    link = tmp_path / "link.txt"
    link.symlink_to(file)
    assert read_faults(str(link)) == read_faults(str(file)), "a person who names a link means what it leads to"


def test_a_seed_draws_the_same_plan_again_and_all_of_them_fit_their_run() -> None:
    plans = [draw(seed, RUN) for seed in range(300)]
    assert plans == [draw(seed, RUN) for seed in range(300)] and len(set(map(str, plans))) > 290
    for plan in plans:
        plan.check(ROLES, ROLES[:2])
        assert parse_faults(str(plan)) == plan
    assert {fault.kind for plan in plans for fault in plan.faults} == set(DRAWN)


def test_a_plan_is_reduced_to_the_faults_that_matter() -> None:
    plan = parse_faults("kill 0@1s; stop 1@1s for 1s; drop worker 0 -> server 0@1s; kill 1@2s")
    asked: list[FaultPlan] = []

    def fails(fewer: FaultPlan) -> bool:
        asked.append(fewer)
        return {"drop", "stop"} <= {fault.kind for fault in fewer.faults}

    assert str(reduced(plan, fails)) == "stop worker 1@1s for 1s; drop worker 0 -> server 0@1s"
    assert len(asked) <= 12 and reduced(plan, fails, most=0) == plan


def test_a_long_plan_is_no_name_of_a_file() -> None:
    assert len(read_faults("; ".join(f"kill worker {rank}@5s" for rank in range(40))).faults) == 40  # type: ignore[union-attr]


def test_what_is_no_plain_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(2 << 30)
    for name, why in {"pipe": "not a plain file", "large": f"the limit is {16 << 20}", ".": "a folder, not"}.items():
        with pytest.raises(PlanError, match=f"the file cannot be read: .*{why}"):
            read_faults(str(tmp_path / name))
        with pytest.raises(PlanError, match=f"cannot read the cluster file .*{why}"):
            load(tmp_path / name)
