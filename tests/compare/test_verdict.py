"""A comparison says what its runs allow, and no more."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner

from covey.cli import app
from covey.cli.tables.comparison import print_comparison
from covey.compare import Comparison, compare, rows
from covey.compare.figures import _final
from covey.compare.outcomes import ComparedRun
from covey.compare.page import page
from covey.compare.race import Rounds
from covey.compare.verdict import conclude, how_long
from covey.errors import PlanError
from covey.observe.contention import Contention
from covey.observe.referee import TargetReached
from covey.observe.result import Result, TimeShares
from covey.run import fit
from covey.simulate import parse_duration
from tests.worlds import mlp

DIGITS = "examples/digits.py"
QUIET = Contention(cores=2, cpu=1.8, others=0.05, delay=0.36, pressure=0.5)
BUSY = Contention(cores=2, cpu=0.7, others=1.3, delay=0.7, pressure=0.9)
CLOSE = [1.0, 1.1, 0.9, 1.05, 0.95, 1.0, 1.02, 0.98, 1.1, 0.9]
MISSED = -9.0  # seconds of a run that ended without reaching the target, with a minus


@cache
def plain() -> Result:
    return fit(mlp(), "bsp", 2, engine="simulated", steps=2)


def ran(
    times: Mapping[str, Sequence[float]], load: Contention | None = QUIET, rounds: Rounds | None = None, **more: Any
) -> Comparison:
    """A comparison whose runs took these times, with a verdict."""
    whole = Comparison(task="task.py", workers=2, engine="local", **{"until": "accuracy>=0.9", **more})
    result = plain()
    for repeat in range(max(map(len, times.values()))):
        for spec, mine in times.items():
            if repeat < len(mine):
                reached = TargetReached("accuracy", 0.9, mine[repeat], 1000) if mine[repeat] > 0 else None
                one = msgspec.structs.replace(
                    result, engine="local", strategy=spec, seconds=abs(mine[repeat]), reached=reached, contention=load
                )  # fmt: skip
                whole.outcomes.append(ComparedRun(spec=spec, repeat=repeat, result=one))
    conclude(whole, rounds or Rounds())
    return whole


def slower(factor: float, times: Sequence[float] = CLOSE) -> list[float]:
    return [factor * time * (1 + 0.02 * (number % 3)) for number, time in enumerate(times)]


def test_a_winner_is_named_with_its_lead_over_the_next() -> None:
    whole = ran({"bsp": slower(3), "local_sgd": CLOSE, "allreduce": slower(1.5)})
    assert whole.verdict == "local_sgd is first: 1.5 to 1.6x faster than allreduce (10 seeds)"
    assert whole.winner == "local_sgd" and whole.tied == []
    told = json.loads(whole.to_json())
    assert (told["verdict"], told["winner"], told["tied"]) == (whole.verdict, "local_sgd", [])
    bsp, first, _ = told["strategies"]
    assert first["ratio"] == {"value": 1.0, "low": 1.0, "high": 1.0, "seeds": 10}
    assert 2.9 < bsp["ratio"]["low"] < 3.06 < bsp["ratio"]["high"] < 3.2 and bsp["runs"] == bsp["reached"] == 10


def test_the_lead_is_over_one_that_is_surely_behind() -> None:
    """One that lay behind the second and ran no more has too few runs to be compared with the first."""
    second = [1.05, 3, 1.1, 2.6, 1.3, *[2.0, 1.9, 2.1, 2.0, 1.9] * 2]
    third = [1.2 * time * (1 + 0.01 * (number % 3)) for number, time in enumerate(second[:5])]
    whole = ran({"local_sgd": [1.0] * 15, "allreduce": second, "asynchronous": third})
    assert whole.winner == "local_sgd"
    assert whole.strategies[2].ratio is not None and whole.strategies[2].ratio.low < 1
    assert "faster than allreduce (15 seeds)" in whole.verdict


def test_the_waiting_of_a_strategy_is_that_of_its_workers() -> None:
    shares = {"worker 0": 0.2, "worker 1": 0.4, "server 0": 0.9}
    roles = {name: TimeShares(compute=0.0, exchange=0.0, waiting=share, memory=0) for name, share in shares.items()}
    whole = Comparison(task="task.py", workers=2, engine="local", until=None)
    for repeat in range(2):
        result = msgspec.structs.replace(plain(), roles=roles)
        whole.outcomes.append(ComparedRun(spec="bsp", repeat=repeat, result=result))
    [row] = rows(whole)
    assert row.figures["waiting"].value == pytest.approx(0.3)


@pytest.mark.parametrize("seconds", [0.5, 10.0, 11.0, 89.0, 90.0, 91.0, 121.0, 150.0, 3601.0])
def test_an_advised_time_is_long_enough_and_hardly_longer(seconds: float) -> None:
    assert seconds <= parse_duration(how_long(seconds)) <= seconds + 60


def test_a_winner_that_missed_the_target_now_and_then_is_named_with_that() -> None:
    whole = ran({"bsp": slower(30, CLOSE * 2)[:15], "local_sgd": [*CLOSE, *CLOSE[:4], MISSED]})
    assert whole.winner == "local_sgd"
    assert whole.verdict.endswith("faster than bsp (15 seeds; it missed the target with 1 of them)"), whole.verdict


def test_a_tie_says_how_far_apart_they_may_be() -> None:
    whole = ran({"allreduce": CLOSE, "easgd": slower(1.0), "bsp": slower(3)})
    assert whole.verdict == "allreduce and easgd tie, ahead of bsp: at most 1.04x apart (10 seeds)"
    assert whole.winner is None and whole.tied == ["allreduce", "easgd"]


def test_one_run_is_never_a_verdict() -> None:
    whole = ran({"a": [1.0], "b": [100.0]}, rounds=Rounds(least=1, most=1))
    assert whole.verdict == "No verdict: one run of each is not enough" and whole.winner is None
    early = ran({"a": [1.0, 1.0, 1.0], "b": [9.0, 9.0, 9.0]})
    assert early.verdict == "No verdict: 3 runs of each are not enough" and early.tied == []


def test_times_that_vary_wildly_are_no_tie() -> None:
    whole = ran({"a": [1, 9, 2, 7, 1, 8], "b": [8, 1, 6, 2, 9, 1]})
    assert whole.verdict.startswith("No verdict: b and a may be up to") and whole.tied == []


def test_a_busy_machine_names_nobody() -> None:
    whole = ran({"a": CLOSE, "b": slower(5)}, BUSY)
    assert whole.verdict == "No verdict: this machine was busy (other programs used 1.3 of 2 cores in 20 of 20 runs)"
    assert whole.winner is None and all(one.ratio is None for one in whole.strategies)


def test_disturbed_runs_do_not_count() -> None:
    """Three seeds of b ran beside other programs: with them b would be behind."""
    whole = ran({"a": CLOSE, "b": slower(1.0)})
    for run in whole.outcomes:
        if run.spec == "b" and run.repeat < 3 and run.result:
            run.result.contention = BUSY
            run.result.reached = TargetReached("accuracy", 0.9, 50.0, 1000)
    conclude(whole, Rounds())
    assert whole.tied == ["a", "b"] and "(7 seeds)" in whole.verdict and whole.strategies[1].disturbed == 3


def test_whoever_misses_the_target_is_behind_and_not_left_out() -> None:
    whole = ran({"a": CLOSE, "b": [MISSED] * 10})
    assert whole.verdict.startswith("a is first: at least ") and "faster than b (10 seeds)" in whole.verdict
    assert whole.strategies[1].reached == 0 and whole.strategies[1].seconds is None
    assert whole.strategies[1].ratio is not None and whole.strategies[1].ratio.high is None


def test_a_target_that_nobody_reaches() -> None:
    whole = ran({"a": [MISSED] * 6, "b": [MISSED] * 6})
    for number, run in enumerate(whole.outcomes):
        assert run.result is not None
        run.result.history = [{"seconds": 1.0, "samples": 9, "bytes": 0, "accuracy": 0.05 * number, "loss": 1.0}]
    conclude(whole, Rounds())
    assert whole.verdict == "No strategy reached accuracy>=0.9: best was b at 0.55"
    assert whole.winner is None and all(one.ratio is None for one in whole.strategies)
    assert "1x" not in shown(whole, 80)
    lower = ran({"a": [MISSED] * 2, "b": [MISSED] * 2}, until="loss<=0.1")
    for run, loss in zip(lower.outcomes, (0.9, 0.7, 0.8, 1.0), strict=True):
        assert run.result is not None
        run.result.history = [{"seconds": 1.0, "samples": 9, "bytes": 0, "accuracy": 0.5, "loss": loss}]
    conclude(lower, Rounds())
    assert lower.verdict == "No strategy reached loss<=0.1: best was b at 0.7"


def test_a_target_that_is_met_by_single_scores_only() -> None:
    whole = ran({"a": [MISSED] * 5, "b": [MISSED] * 5})
    for run in whole.outcomes:
        assert run.result is not None
        run.result.history = [{"seconds": 1.0, "samples": 9, "bytes": 0, "accuracy": 0.95, "loss": 1.0}]
    conclude(whole, Rounds())
    assert whole.verdict == "No strategy reached accuracy>=0.9 with two scores in a row: best was a at 0.95"


def test_a_target_that_the_initial_weights_meet() -> None:
    whole = ran({"a": [1e-12] * 5, "b": [1e-12] * 5}, until="accuracy>=0.05")
    for run in whole.outcomes:
        assert run.result is not None
        run.result.reached = TargetReached("accuracy", 0.05, 0.0, 0)
    conclude(whole, Rounds())
    assert whole.verdict == (
        "No verdict: every strategy meets accuracy>=0.05 before the first step; give a harder target"
    )
    assert whole.winner is None and whole.tied == [] and all(one.ratio is None for one in whole.strategies)


def test_seeds_whose_initial_weights_meet_the_target_do_not_count() -> None:
    """They would make any two strategies look alike."""
    whole = ran({"a": CLOSE, "b": slower(1.5)})
    for run in whole.outcomes:
        if run.result and run.repeat < 3:
            run.result.reached = TargetReached("accuracy", 0.9, 0.0, 0)
    conclude(whole, Rounds())
    assert whole.winner == "a" and "(7 seeds)" in whole.verdict
    assert "The initial weights of 3 of 10 seeds meet accuracy>=0.9; these do not count." in shown(whole, 100)


def test_strategies_that_failed_leave_no_race() -> None:
    whole = ran({"a": CLOSE})
    whole.outcomes.append(ComparedRun(spec="b", failure="no strategy 'b'"))
    conclude(whole, Rounds())
    assert whole.verdict == "No verdict: only a has runs that count (b failed)"


def test_a_strategy_that_fails_with_some_seeds_says_in_how_many() -> None:
    """On the page too, where it would look as if it had never failed."""
    whole = ran({"a": CLOSE[:4], "b": slower(2)[:4]})
    for run in whole.outcomes[4:6]:
        run.result, run.failure = None, "worker 0 has diverged"
    conclude(whole, Rounds())
    each = "failed in 1 of 4 runs"
    assert whole.verdict == f"No verdict: no strategy has runs that count (a {each} and b {each})"
    assert f"b {each}: worker 0 has diverged" in shown(whole, 100)
    assert f"b {each}: worker 0 has diverged" in page(whole).remarks


def test_an_interrupted_comparison_says_so() -> None:
    whole = ran({"a": CLOSE[:3], "b": slower(9)[:2]}, interrupted=True)
    assert whole.verdict == "No verdict: it was interrupted after 3 seeds"


def test_where_contention_cannot_be_read_that_is_said() -> None:
    whole = ran({"a": CLOSE, "b": slower(2)}, None)
    assert whole.winner == "a"
    assert "was not checked" in shown(whole, 100)
    assert "not checked" not in shown(ran({"a": CLOSE, "b": slower(2)}), 100)


# -- on the output ----------------------------------------------------------------------------------------------------


def shown(whole: Comparison, width: int) -> str:
    console = Console(file=StringIO(), width=width)
    print_comparison(console, whole)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_names_times_and_ratios_are_whole_at_60_columns() -> None:
    long = "local_sgd(period=8) + powersgd(rank=16)"
    text = shown(ran({"allreduce": CLOSE, long: slower(2), "asynchronous": slower(3)}), 60)
    assert all(len(line) <= 60 for line in text.splitlines() if "is first" not in line)
    assert "allreduce" in text and "asynchronous" in text and "local_sgd(period=8) + p" in text
    assert "1.00 s" in text.replace("1 s", "1.00 s") and "3.0 to 3.1x" in text
    assert text.rstrip().endswith(f"allreduce is first: 2.0 to 2.1x faster than {long} (10 seeds)")


def test_a_dot_for_each_run_and_a_cross_for_those_that_missed() -> None:
    text = shown(ran({"a": [1.0, 2.0, 4.0, 8.0, 16.0], "b": [1.0, 1.0, 2.0, 16.0, MISSED]}), 80)
    lines = {line.split()[0]: line for line in text.splitlines()[1:3]}
    assert lines["a"].count("·") == 5 and " x" not in lines["a"]
    assert lines["b"].count("•") == 1 and lines["b"].count("·") == 2 and lines["b"].rstrip().endswith(" x")


def test_dots_are_of_the_rate_that_counts() -> None:
    whole = ran({"a": [1.0, 2.0, 4.0, 8.0, 16.0], "b": [3.0, 3.0, 3.0, 3.0, 3.0]})
    for run in [run for run in whole.outcomes if run.spec == "a"]:
        assert run.result is not None
        worse = msgspec.structs.replace(run.result, reached=None, seconds=99.0)
        whole.outcomes.append(ComparedRun(spec="a", rate=2.0, repeat=run.repeat, result=worse))
    conclude(whole, Rounds())
    line = next(line for line in shown(whole, 80).splitlines() if line.startswith("a "))
    assert line.count("·") == 5 and " x" not in line


# -- in virtual time --------------------------------------------------------------------------------------------------


def race(strategies: str, **given: Any) -> Comparison:
    options = {"engine": "simulated", "until": "loss<=0.9", "steps": 40, **given}
    return compare(mlp(), strategies, 2, **options)


def seeds(whole: Comparison, spec: str) -> list[int]:
    return [run.result.seed for run in whole.outcomes if run.spec == spec and run.result]


def test_seeds_pair_and_the_order_rotates() -> None:
    whole = race("bsp,allreduce", repeat=3)
    assert seeds(whole, "bsp") == seeds(whole, "allreduce") == [0, 1, 2]
    assert [run.spec for run in whole.outcomes] == ["bsp", "allreduce", "allreduce", "bsp", "bsp", "allreduce"]
    assert whole.to_json() == race("bsp,allreduce", repeat=3).to_json(), "virtual time: the same file again"
    assert all(run.result and run.result.contention is None for run in whole.outcomes)


def test_without_a_number_there_are_five_rounds_or_more() -> None:
    whole = race("bsp,asynchronous")
    assert 5 <= len(seeds(whole, "bsp")) <= 15
    assert whole.winner or whole.tied or "apart" in whole.verdict


def test_time_that_is_too_short_gives_one_round_and_says_so() -> None:
    whole = race("bsp,asynchronous", within="1ms")
    assert [run.repeat for run in whole.outcomes] == [0, 0]
    assert whole.verdict.startswith("No verdict: one run of each is not enough; give more time, such as within=")


@pytest.mark.parametrize(("within", "rounds"), [("19s", 1), ("39s", 1), ("41s", 2), ("59s", 2), ("61s", 3)])
def test_no_round_begins_that_would_not_be_over_in_time(
    within: str, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run takes 10 seconds here, so each round of two takes 20."""
    from covey.compare import running

    now, real = [100.0], running.fit

    def fit(*args: Any, **given: Any) -> Result:
        now[0] += 10.0
        return real(*args, **given)

    monkeypatch.setattr(running, "fit", fit)
    monkeypatch.setattr(running, "time", SimpleNamespace(monotonic=lambda: now[0]))
    assert len(seeds(race("bsp,asynchronous", within=within), "bsp")) == rounds


def test_a_target_out_of_reach_is_tried_once() -> None:
    whole = race("bsp,asynchronous", until="loss<=-1")
    assert [run.repeat for run in whole.outcomes] == [0, 0]
    assert whole.verdict.startswith("No strategy reached loss<=-1: best was ")


def test_a_target_that_is_met_at_once_is_tried_once() -> None:
    whole = compare(DIGITS, "bsp,allreduce", 2, engine="simulated", until="accuracy>=0.01")
    assert [run.repeat for run in whole.outcomes] == [0, 0]
    assert whole.verdict.startswith("No verdict: every strategy meets accuracy>=0.01 before the first step")


@pytest.mark.parametrize("until", ["accuracy:1.5", "accuracy>=-0.1", "accuracy<=95"])
def test_a_target_outside_the_range_of_its_metric_is_refused(until: str) -> None:
    with pytest.raises(PlanError, match=f"the target {until}: accuracy lies between 0 and 1, so write for example"):
        compare(DIGITS, "bsp,allreduce", 2, engine="simulated", until=until)
    with pytest.raises(PlanError, match="accuracy lies between 0 and 1"):
        fit(DIGITS, "bsp", 2, engine="simulated", until=until)
    percent = mlp(evaluate=lambda model: {"accuracy": 96.0})  # a function of one's own may count otherwise
    assert fit(percent, "bsp", 2, engine="simulated", until="accuracy>=95", steps=1).reached


def test_a_strategy_that_fails_is_not_raced_on() -> None:
    whole = compare(DIGITS, "bsp,hogwild,asynchronous", 2, engine="simulated", until="accuracy>=0.3")
    assert sum(run.spec == "hogwild" for run in whole.outcomes) == 1 and len(seeds(whole, "bsp")) >= 5


def test_a_refusal_is_said_once_however_many_rounds_were_asked_for() -> None:
    told: list[str] = []
    given = {"engine": "simulated", "until": "accuracy>=0.5", "repeat": 3, "told": told.append}
    whole = compare(DIGITS, "bsp,hogwild", 2, **given)
    assert [run.repeat for run in whole.outcomes if run.spec == "hogwild"] == [0] and seeds(whole, "bsp") == [0, 1, 2]
    assert not any("hogwild" in line for line in told) and shown(whole, 200).count("hogwild failed:") == 1


def test_a_run_that_fails_for_one_seed_is_tried_with_the_others() -> None:
    def evaluate(model: Any) -> dict[str, float]:
        if float(model[0].weight.detach().sum()) < 0:
            raise ValueError("a bad seed")
        return {"score": 0.0}

    given = {"engine": "simulated", "until": "score>=0.5", "steps": 3, "repeat": 6}
    whole = compare(mlp(evaluate=evaluate), "bsp", 2, **given)
    assert len(whole.outcomes) == 6 and 0 < len(seeds(whole, "bsp")) < 6


def test_without_a_target_each_runs_once() -> None:
    whole = race("bsp,asynchronous", until=None)
    assert len(whole.outcomes) == 2
    assert whole.verdict == "No verdict: there is no target that one could reach first (until=…)"


def test_a_metric_that_is_no_number_in_some_seeds_is_a_miss() -> None:
    def evaluate(model: Any) -> dict[str, float]:
        return {"score": float("nan") if float(model[0].weight.detach().sum()) < 0 else 1.0}

    given = {"engine": "simulated", "until": "score>=0.5", "steps": 3, "repeat": 6}
    whole = compare(mlp(evaluate=evaluate), "bsp,asynchronous", 2, **given)
    assert [one.runs for one in whole.strategies] == [6, 6], "none is left out"
    assert all(0 < one.reached < 6 for one in whole.strategies), "initial weights of some seeds are no number"
    assert whole.winner is None and json.loads(whole.to_json())["winner"] is None


def test_ctrl_c_leaves_what_was_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    from covey.compare import running

    calls, real = [], running.fit

    def fit(*args: Any, **given: Any) -> Result:
        calls.append(args)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(*args, **given)

    monkeypatch.setattr(running, "fit", fit)
    whole = race("bsp,asynchronous")
    assert whole.interrupted and len(whole.outcomes) == 3 and "interrupted after 2 seeds" in whole.verdict


def test_disturbed_runs_are_done_again_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    from covey.compare import running

    real, ran = running.fit, []

    def fit(*args: Any, **given: Any) -> Result:
        ran.append(given["seed"])
        result: Result = real(*args, **given)
        result.contention = BUSY
        return result

    monkeypatch.setattr(running, "fit", fit)
    monkeypatch.setattr(running, "AGAIN", 3)
    whole = race("bsp,asynchronous", repeat=3)
    assert len(whole.outcomes) == 6 and len(ran) == 6 + 3
    assert whole.verdict.startswith("No verdict: this machine was busy")


def test_no_disturbed_run_is_done_again_when_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run takes 10 seconds here: two of one strategy fit into 25, not two of each."""
    from covey.compare import running

    now, real, ran, told = [100.0], running.fit, [], list[str]()

    def fit(*args: Any, **given: Any) -> Result:
        now[0] += 10.0 if given["steps"] > running.WARM else 0.0
        ran.append(args[1])
        result: Result = real(*args, **given)
        result.contention = BUSY
        return result

    monkeypatch.setattr(running, "fit", fit)
    monkeypatch.setattr(running, "time", SimpleNamespace(monotonic=lambda: now[0]))
    race("bsp,asynchronous", within="25s", told=told.append)
    assert ran == ["bsp", "bsp", "asynchronous"]
    assert "asynchronous: other programs used the cores, and there is no time to run it again" in told


def test_a_comparison_that_goes_on_does_disturbed_runs_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from covey.compare import running

    real, ran, load = running.fit, [], [BUSY]

    def fit(*args: Any, **given: Any) -> Result:
        ran.append(given["seed"])
        result: Result = real(*args, **given)
        result.contention = load[0]
        return result

    monkeypatch.setattr(running, "fit", fit)
    monkeypatch.setattr(running, "AGAIN", 0)
    for contention, many in ((BUSY, 6), (QUIET, 6), (BUSY, 0)):
        ran.clear()
        load[0] = contention
        whole = race("bsp,asynchronous", repeat=3, folder=tmp_path)
        assert len(ran) == many and len(whole.outcomes) == 6
    assert not any(run.disturbed for run in whole.outcomes), "what was quiet is not done again"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"strategies": "bsp,nosuch"}, "no strategy 'nosuch'; the nearest are"),
        ({"strategies": "bsp,bsp"}, "names bsp twice"),
        ({"strategies": "local_sgd,local_sgd(period=8)"}, "local_sgd and local_sgd"),
        ({"repeat": 0}, "repeat=0: at least 1"),
        ({"within": "0s"}, 'within="0s": a comparison takes time'),
        ({"within": "soon"}, "cannot read"),
        ({"repeat": 3, "within": "5m"}, 'repeat=3 fixes the number of runs, so within="5m" would have no effect'),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(given: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=told):
        race(**{"strategies": "bsp,asynchronous", **given})
    flags = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    said = CliRunner().invoke(app, ["compare", DIGITS, "--simulate", *flags])
    assert said.exit_code == 2 and len(said.stderr.strip().splitlines()) == 1, said.stderr


@pytest.mark.parametrize(("strategies", "code"), [("hogwild", 1), ("bsp,hogwild", 0), ("bsp", 0)])
def test_the_exit_code_tells_whether_anything_could_be_run(strategies: str, code: int) -> None:
    words = ["compare", DIGITS, "--strategies", strategies, "--simulate", "--steps", "2", "--no-record"]
    said = CliRunner().invoke(app, words)
    assert said.exit_code == code, said.output
    assert ("hogwild failed" in said.stdout) == ("hogwild" in strategies)


def test_the_final_value_is_the_last_that_was_scored() -> None:
    history = [{"samples": 0, "loss": 3.0, "error": 9.0}, {"samples": 8, "loss": 1.0, "error": 2.0}, {"samples": 9}]
    result: Any = SimpleNamespace(history=history)
    whole: Any = [SimpleNamespace(until=until) for until in ("loss<=0.5", None)]
    assert [_final(result, one) for one in whole] == [1.0, 2.0]
