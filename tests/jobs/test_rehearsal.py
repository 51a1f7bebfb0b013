"""Policies in virtual time: the same code that a head runs, on jobs that replay recorded curves."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from random import Random

import msgspec
import pytest
from typer.testing import CliRunner

import covey
from covey.cli import app
from covey.errors import PlanError
from covey.jobs.job_sets import JobCurve, JobSet, SetJob, checked, drawn, predicted_speeds, read_set, recorded_curves
from covey.jobs.rehearsal import Rehearsal, RehearsalTimes, rehearse
from covey.jobs.simulated_job import ReplayedCurve, SimulatedJob
from covey.observe.records import recorded_runs
from covey.policy.sharing import POLICIES
from covey.policy.sharing.allocation import Allocation
from covey.policy.sharing.job_view import JobsView, JobView

WRITTEN = Path(__file__).parent.parent.parent / "benchmarks/jobs_200.json"
"""200 jobs, written before any policy had been run."""

EASY = JobCurve(
    name="easy", samples=[100.0 * k for k in range(1, 11)], losses=[1 / k for k in range(1, 11)],
    speeds={"1": 10.0, "2": 20.0, "4": 40.0},
)  # fmt: skip
QUICK = RehearsalTimes(slice=10.0, start=0.0, error=0.0)


def jobs(*asked: SetJob, slots: int = 2, curve: JobCurve = EASY) -> JobSet:
    return JobSet(slots=slots, curves=[curve], jobs=list(asked))


def one(name: str, arrives: float = 0.0, most: int = 1, size: float = 1.0) -> SetJob:
    return SetJob(name=name, arrives=arrives, curve="easy", most=most, size=size)


def test_times_that_can_be_worked_out_by_hand() -> None:
    alone = Rehearsal(jobs(one("a", most=2)), POLICIES["fifo"], QUICK).run("fifo")
    assert alone.ends == {"a": pytest.approx(50.0)} and alone.busy == pytest.approx(1.0)
    queued = Rehearsal(jobs(one("a"), one("b", 10.0), slots=1), POLICIES["fifo"], QUICK).run("fifo")
    assert queued.ends == {"a": pytest.approx(100.0), "b": pytest.approx(190.0)} and queued.starts == 2
    late = Rehearsal(jobs(one("a")), POLICIES["fifo"], msgspec.structs.replace(QUICK, start=4.0)).run("fifo")
    assert late.ends == {"a": pytest.approx(104.0)} and late.busy == pytest.approx(0.5), "one of two slots"


def test_a_job_of_a_rehearsal_is_seen_as_one_of_a_queue_is() -> None:
    """What it keeps from one decision to the next is what would be found anew."""
    curve = read_set(WRITTEN).curves[0]
    asked = SetJob(name="a", arrives=3.0, curve=curve.name, size=2.5, most=4)
    known = SimulatedJob(asked, ReplayedCurve(curve), {1: 90.0, 2: 170.0, 4: 300.0}, now=3.0)
    for share in (0.0, 0.02, 0.1, 0.35, 0.9):
        workers = 3 if share > 0.3 else 1
        if workers != known.workers:
            known.change(workers, "", 1.0, known.since, start=0.0)
        known.advance(known.since + share * known.needed / curve.speed(1))
        plain = JobView(**{field.name: getattr(known, field.name) for field in fields(JobView)})
        assert known.left == pytest.approx(plain.left), share
        assert known.largest_fall == pytest.approx(plain.largest_fall)
        assert [known.speed(n) for n in range(1, 6)] == pytest.approx([plain.speed(n) for n in range(1, 6)])
        ours, theirs = known.loss_curve, plain.loss_curve
        assert (ours is None) == (theirs is None)
        if ours and theirs:
            assert [ours(n) for n in (10.0, 1e4)] == pytest.approx([theirs(n) for n in (10.0, 1e4)])
    assert known.loss_curve and known.speeds != ((1, 90.0), (2, 170.0), (4, 300.0)), "it has learned"


def test_taking_turns_costs_starts() -> None:
    both = jobs(one("a"), one("b"), slots=1)
    slow = Rehearsal(both, POLICIES["fair"], msgspec.structs.replace(QUICK, start=2.0)).run("fair")
    assert slow.starts == 20 and slow.makespan == pytest.approx(200 + 2 * 20), "a slice begins when a job trains"


@pytest.mark.parametrize(("compute", "packed"), [(0.4, True), (1.0, False)])
def test_gandiva_packs_jobs_that_mostly_wait(compute: float, packed: bool) -> None:
    curve = msgspec.structs.replace(EASY, compute=compute)
    both = Rehearsal(jobs(one("a"), one("b"), slots=1, curve=curve), POLICIES["gandiva"], QUICK).run("gandiva")
    assert (both.makespan < 120) == packed and both.makespan <= 201


def test_flexps_follows_the_stages_of_a_job() -> None:
    staged = SetJob(name="a", arrives=0.0, curve="easy", most=2, stages="1@40%, 2", known=True)
    assert Rehearsal(jobs(staged), POLICIES["flexps"], QUICK).run("flexps").ends == {"a": pytest.approx(70.0)}
    assert Rehearsal(jobs(staged), POLICIES["fifo"], QUICK).run("fifo").ends == {"a": pytest.approx(50.0)}


@pytest.mark.parametrize("name", POLICIES)
def test_the_same_set_gives_the_same_times_and_every_job_ends(name: str) -> None:
    some = drawn([EASY], 30, 4, 0.9, seed=3)
    first, second = (Rehearsal(some, POLICIES[name], RehearsalTimes()).run(name) for _ in range(2))
    assert first == second and first.ends.keys() == {job.name for job in some.jobs}


def test_drawn_jobs_keep_the_slots_as_busy_as_was_asked() -> None:
    some = drawn([EASY], 2000, 8, 0.5, seed=1)
    assert drawn([EASY], 2000, 8, 0.5, seed=1) == some != drawn([EASY], 2000, 8, 0.5, seed=2)
    work = sum(job.size * EASY.samples[-1] / EASY.speed(1) for job in some.jobs)
    assert work / (some.jobs[-1].arrives * 8) == pytest.approx(0.5, rel=0.1)
    assert work / 2000 == pytest.approx(600, rel=0.1)


def test_the_written_jobs() -> None:
    """Optimus takes 0.78 of the mean completion of fair shares, and 0.77 if it knew all (docs/benchmarks.md)."""
    found = {one.policy: one for one in rehearse(read_set(WRITTEN), ["fair", "optimus"])}
    assert found["optimus"].mean_completion <= 0.8 * found["fair"].mean_completion


@pytest.mark.full
def test_ten_thousand_jobs_under_every_policy() -> None:
    many = drawn(read_set(WRITTEN).curves, 10_000, 64, 0.9, seed=5)
    found = rehearse(many)
    assert {one.policy for one in found} == set(POLICIES) and all(len(one.ends) == 10_000 for one in found)


def test_speeds_of_other_numbers_of_workers_are_predicted() -> None:
    assert predicted_speeds({2: 100.0}, compute=1.0)[8] == pytest.approx(400.0)
    waiting = predicted_speeds({2: 100.0}, compute=0.0)
    assert waiting[8] == pytest.approx(100.0) and waiting[2] == 100.0
    assert predicted_speeds({1: 60.0, 2: 100.0}, compute=1.0)[1] == 60.0


def test_recorded_runs_become_curves(tmp_path: Path) -> None:
    for workers in (1, 2):
        covey.fit("examples/digits.py", "bsp", workers, engine="simulated", epochs=5, runs=tmp_path)
    (curve,) = recorded_curves(tmp_path)
    assert curve.name == "examples/digits.py bsp" and len(curve.samples) == 5 and curve.losses[0] > curve.losses[-1]
    assert curve.speed(2) > curve.speed(1)
    told = CliRunner().invoke(
        app,
        ["jobs", "rehearse", "--runs", str(tmp_path), "--count", "20", "--slots", "2", "--policies", "fifo,optimus"],
    )
    assert told.exit_code == 0 and "best for these 20 jobs on 2 slots: " in told.stdout, told.output


def test_the_speed_of_a_real_run_counts_the_time_in_which_it_was_scored(tmp_path: Path) -> None:
    covey.fit("examples/digits.py", "bsp", 1, engine="simulated", epochs=3, runs=tmp_path)
    (record,) = recorded_runs(tmp_path)[0]
    lines = [{"event": "moment", "at": 1000.0 + at, "phase": "training", "samples": 100 * at} for at in (1, 2, 9)]
    (record.path / "journal.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    virtual = recorded_curves(tmp_path)[0].speed(1)
    result = json.loads((record.path / "result.json").read_text())
    (record.path / "result.json").write_text(json.dumps(result | {"engine": "local"}))
    assert recorded_curves(tmp_path)[0].speed(1) == pytest.approx(100.0) != virtual


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": "covey.jobset/9"}, "format 'covey.jobset/9'"),
        ({"jobs": [one("a"), one("a")]}, "each of its own"),
        ({"jobs": []}, "need names"),
        ({"jobs": [SetJob(name="a", arrives=0.0, curve="hard")]}, "like 'hard', and there is no such curve"),
        ({"jobs": [SetJob(name="a", arrives=0.0, curve="easy", least=3, most=3)]}, "a wants 3 to 3 workers of 2 slots"),
        ({"jobs": [SetJob(name="a", arrives=0.0, curve="easy", stages="2")]}, "a has 1 to 1 workers, and stages '2'"),
        ({"jobs": [SetJob(name="a", arrives=0.0, curve="easy", stages="many")]}, "'many' cannot be read"),
        ({"curves": [msgspec.structs.replace(EASY, samples=[3.0, 2.0])]}, "the curve 'easy' needs"),
        ({"curves": [msgspec.structs.replace(EASY, speeds={"many": 2.0})]}, "the curve 'easy' needs"),
        *(
            ({"curves": [msgspec.structs.replace(EASY, speeds={key: 2.0})]}, "numbers of workers, 1 to 10000")
            for key in ("0", "01", "", "10001", "9" * 400, "9" * 5000, "\u0661")
        ),
        ({"curves": [msgspec.structs.replace(EASY, speeds={f"{n}": 2.0 for n in range(1, 102)})]}, "at most 100"),
        ({"jobs": [one(f"{number}") for number in range(10_001)]}, "has 10001 jobs; at most 10000 are rehearsed"),
    ],
)
def test_sets_that_do_not_fit_together_are_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        checked(msgspec.structs.replace(jobs(one("a")), **change), "the set")


@pytest.mark.parametrize("name", POLICIES)
def test_a_job_ends_however_late_it_arrives(name: str) -> None:
    decided = 0

    def counted(view: JobsView) -> Allocation:
        nonlocal decided
        decided += 1
        assert decided < 1000, "it goes on for ever"
        return POLICIES[name](view)

    late = Rehearsal(jobs(one("a", 1e12, size=2 / 3), one("b", 1e12, most=2, size=2 / 3)), counted, QUICK).run(name)
    assert late.ends.keys() == {"a", "b"} and all(5 < seconds < 250 for seconds in late.ends.values())


@pytest.mark.parametrize(
    ("job", "curve", "slice", "said"),
    [
        (one("a", size=1e15), msgspec.structs.replace(EASY, speeds={"1": 1e-9}), 10.0, "1.5e.27 s, 1.5e.26 slices"),
        (one("a", size=1e12), EASY, 10.0, "choose a --slice above 10s, or smaller jobs"),
        (one("a", most=2), msgspec.structs.replace(EASY, speeds={"1": 1e15, "2": 1e-15}), 10.0, "choose a --slice"),
        (one("a", most=2), msgspec.structs.replace(EASY, speeds={"2": 1e-15}), 10.0, "choose a --slice"),
        (one("a"), EASY, 1e-9, "choose a --slice above 1e-09s"),
        (one("a", 1e12, size=1e-9), EASY, 1e-6, "a --slice of 1e-06s is too short beside 1e.12 s"),
    ],
)
def test_what_would_take_too_long_is_refused(job: SetJob, curve: JobCurve, slice: float, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        rehearse(jobs(job, curve=curve), ["fifo"], msgspec.structs.replace(QUICK, slice=slice))


@pytest.mark.parametrize(
    ("old", "new"), [('"slots":2', '"slots":10001'), ('"most":1', '"most":10001'), ('"1":10.0', '"1":5e-324')]
)
def test_numbers_of_a_file_are_bounded(tmp_path: Path, old: str, new: str) -> None:
    text = msgspec.json.encode(jobs(one("a"))).decode()
    assert old in text
    (tmp_path / "set.json").write_text(text.replace(old, new))
    with pytest.raises(PlanError, match=r"set.json contains no set of jobs: Expected `(int|float)` [<>]= 1"):
        read_set(tmp_path / "set.json")


def test_no_number_of_workers_is_slower_or_dearer_than_the_worst() -> None:
    chance = Random(1)
    for _ in range(50):
        speeds = {str(n): chance.lognormvariate(2, 2) for n in chance.sample(range(1, 13), chance.randint(1, 6))}
        curve, least = ReplayedCurve(msgspec.structs.replace(EASY, speeds=speeds)), chance.randint(1, 9)
        most = chance.randint(least, 12)
        times = [1 / curve.speed(n) for n in range(least, most + 1)]
        costs = [n / curve.speed(n) for n in range(least, most + 1)]
        assert curve.worst(least, most) == pytest.approx((max(times), max(costs)))


def test_a_quiet_rehearsal_prints_nothing() -> None:
    shown = CliRunner().invoke(app, ["jobs", "rehearse", str(WRITTEN), "--policies", "fifo", "--quiet"])
    assert (shown.exit_code, shown.output) == (0, "")


def test_bad_requests(tmp_path: Path) -> None:
    def told(*words: str) -> str:
        shown = CliRunner().invoke(app, ["jobs", "rehearse", *words])
        assert shown.exit_code == 2
        return shown.stderr

    assert "no run in" in told("--runs", str(tmp_path))
    assert "there is no file" in told(str(tmp_path / "none.json"))
    assert "no policy 'best'" in told("--policies", "best")
    assert "a count at most 10,000" in told("--count", "10001")
    assert "--slots 10001: a load is above 0" in told("--slots", "10001")
    assert "says which jobs there are: omit it, or --count, --seed" in told(str(WRITTEN), "--count", "9", "--seed", "0")
    assert "--write rehearses nothing: omit it, or --slice" in told("--write", str(tmp_path / "set"), "--slice", "9s")
    assert "--slice 0s: a job keeps its slots for some time" in told(str(WRITTEN), "--slice", "0s")
