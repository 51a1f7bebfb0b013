"""A comparison is fair, survives what fails, and goes on where it stopped."""

from __future__ import annotations

import json
import os
from inspect import signature
from math import inf
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from typer.testing import CliRunner

from covey.cli import app
from covey.cli.compare import command
from covey.compare import Comparison, compare, rows
from covey.compare.cases import Case, Entrant, entrants, parse_rates, specs
from covey.compare.figures import best, columns
from covey.compare.finished_runs import FinishedRuns
from covey.compare.running import SCORES
from covey.errors import PlanError
from covey.observe.referee import TargetReached
from covey.simulate import Cluster, from_flags
from tests.worlds import mlp

DIGITS = "examples/digits.py"


def run(strategies: str, workers: int = 2, **given: Any) -> Comparison:
    usual = {"engine": "simulated", "until": "accuracy>=0.9", "repeat": 1}
    return compare(DIGITS, strategies, workers, **{**usual, **given})


def times(whole: Comparison) -> dict[str, float | None]:
    found = {row.spec: row.figures.get("time to target") for row in rows(whole)}
    return {spec: figure.value if figure else None for spec, figure in found.items()}


def test_grids_and_families() -> None:
    every, central, decentral = (specs(family, 2) for family in ("all", "central", "decentral"))
    assert specs("bsp,ssp(bound=1|3)", 2) == ["bsp", "ssp(bound=1)", "ssp(bound=3)"]
    assert {"bsp", "downpour"} <= set(central) and "easgd" not in central
    assert {"easgd", "dpsgd"} <= set(decentral) and "bsp" not in decentral
    assert {*central, *decentral} <= set(every) and "tensorflow" in every


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("bsp,nosuch", r"^nosuch: no strategy 'nosuch'; the nearest are '\w+', '\w+' or '\w+'\.$"),
        ("ssp(bnd=3)", r"^ssp\(bnd=3\): strategy 'ssp' has no setting 'bnd'; did you mean 'bound'\?"),
        ("bsp,dpsgd over nothing", "^dpsgd over nothing: no topology 'nothing'"),
        ("easgd(pull=5)", r"^easgd\(pull=5\): .* must lie in"),
        ("bsp + topq", "^bsp [+] topq: no codec 'topq'"),
    ],
)
def test_a_spec_that_cannot_be_resolved_is_refused_before_anything_starts(text: str, told: str) -> None:
    with pytest.raises(PlanError, match=told) as refused:
        compare("no/such/file.py", text, 2, engine="simulated")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("bsp", "bsp"),
        ("local_sgd", "local_sgd(period=8)"),
        ("easgd", "easgd(pull=0.45, period=4)"),
        ("dpsgd", "dpsgd over ring"),
        ("bsp + topk", "bsp + topk(density=0.01)"),
        ("bsp over servers", "bsp over servers(count=1)"),
        ("bsp with mesh(stage=2)", "bsp with mesh(replica=1, stage=2)"),
    ],
)
def test_one_strategy_in_two_ways_of_writing_is_refused_by_both(one: str, other: str) -> None:
    with pytest.raises(PlanError) as refused:
        specs(f"{one},{other}", 2)
    told = str(refused.value)
    assert "\n" not in told and (f"names {one} twice" in told if one == other else f"{one} and {other}" in told)


def test_a_spec_need_fit_only_one_of_several_numbers_of_workers() -> None:
    assert specs("easgd(pull=0.4)", 2, 100) == specs("easgd(pull=0.4)", 100, 2) == ["easgd(pull=0.4)"]
    with pytest.raises(PlanError, match="must lie in"):
        specs("easgd(pull=0.4)", 100, 1000)


def test_a_family_and_one_of_its_strategies_are_refused() -> None:
    with pytest.raises(PlanError, match="names bsp twice"):
        specs("central,bsp", 2)


def test_two_names_of_one_strategy_are_two_entrants() -> None:
    """So a person compares a strategy with itself."""
    assert specs("allreduce,horovod", 2) == ["allreduce", "horovod"]
    assert specs("bsp,bsp over servers(count=2),bsp + topk(density=0.02),bsp + topk", 2)[3:] == ["bsp + topk"]


def test_every_strategy_enters_once_for_each_rate() -> None:
    assert entrants("bsp,ssp", 2, (0.5, 1.0)) == [
        Entrant("bsp", 0.5), Entrant("bsp", 1.0), Entrant("ssp", 0.5), Entrant("ssp", 1.0),
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "1|", "0|1", "fast", "inf"])
def test_rates_that_are_none(text: str) -> None:
    with pytest.raises(PlanError, match="factors on the task's learning rate"):
        parse_rates(text)


def test_all_begin_with_the_same_weights_and_samples() -> None:
    """One worker alone trains alike in bsp and allreduce: any difference would come from the comparison."""
    one, other = run("bsp,allreduce", workers=1, until=None, steps=20).outcomes
    assert one.result is not None and other.result is not None
    assert all(torch.equal(value, other.result.weights[name]) for name, value in one.result.weights.items())


def test_scores_come_as_often_as_asked_and_change_nothing() -> None:
    seldom, often = (run("bsp", until=None, epochs=2, scores=scores).outcomes[0].result for scores in (1, 4))
    assert seldom is not None and often is not None
    marks = [sorted({row["samples"] for row in result.history}) for result in (seldom, often)]
    assert [len(found) for found in marks] == [3, 9], "and the initial weights"
    assert seldom.history[-1]["seconds"] == often.history[-1]["seconds"]
    assert all(torch.equal(value, often.weights[name]) for name, value in seldom.weights.items())


def test_a_straggler_costs_the_synchronous_one_more() -> None:
    found = times(run("bsp,asynchronous", workers=4, cluster=Cluster(slowdowns={3: 6.0})))
    assert found["bsp"] is not None and found["asynchronous"] is not None
    assert found["asynchronous"] < found["bsp"]


def test_a_strategy_that_fails_is_a_row() -> None:
    whole = run("bsp,hogwild", epochs=1)
    failed = {row.spec: row.failure for row in rows(whole)}
    assert not failed["bsp"] and "momentum" in failed["hogwild"]


def test_the_best_rate_counts() -> None:
    whole = run("bsp", rates=(0.01, 1.0), epochs=4)
    (row,) = rows(whole)
    assert len(whole.outcomes) == 2 and row.rate == 1.0
    slow = next(outcome.result for outcome in whole.outcomes if outcome.rate == 0.01)
    assert slow is not None and slow.reached is None


def test_repetitions_give_a_median_and_a_range() -> None:
    (row,) = rows(run("gosgd", workers=4, repeat=3))
    figure = row.figures["samples to target"]
    assert len(row.results) == 3 and figure.low < figure.high and figure.low <= figure.value <= figure.high
    assert [result.seed for result in row.results] == [0, 1, 2], "else they would be one run, three times"
    assert row.middle() in row.results


def test_a_run_that_misses_the_target_counts_as_longer_than_any_other() -> None:
    """A median of those that came there would make it look fast."""
    whole = run("bsp", repeat=3)
    results = [outcome.result for outcome in whole.outcomes if outcome.result]
    for result, seconds in zip(results, (1.0, 2.0, 3.0), strict=True):
        result.reached = TargetReached("accuracy", 0.9, seconds, 1000)
    results[0].reached = None
    (row,) = rows(whole)
    assert row.figures["time to target"].value == 3.0 and row.figures["time to target"].high == inf
    results[1].reached = None
    (row,) = rows(whole)
    assert "time to target" not in row.figures and "samples to target" not in row.figures and "sent" in row.figures


def test_the_best_of_a_column_is_marked() -> None:
    whole = run("bsp,easgd", workers=4)
    found = rows(whole)
    sent = next(column for column in columns(found) if column.name == "sent")
    assert best(found, sent, whole) == min(row.figures["sent"].value for row in found)
    assert best(found[:1], sent, whole) is None, "one alone is not the best"


@pytest.mark.parametrize(
    ("better", "chosen"), [({}, None), ({"perplexity": "lower"}, min), ({"perplexity": "higher"}, max)]
)
def test_the_best_score_is_marked_where_it_is_known_which_that_is(better: dict[str, Any], chosen: Any) -> None:
    task = mlp(evaluate=lambda model: {"perplexity": float(model[0].weight.sum())}, better=better)
    whole = compare(task, "bsp,easgd", 2, engine="simulated", steps=4)
    found = rows(whole)
    final = next(column for column in columns(found) if column.name == "final")
    values = [row.figures["final"].value for row in found]
    assert len(set(values)) == 2
    assert best(found, final, whole) == (chosen(values) if chosen else None)


def test_a_direction_that_only_the_task_knows_is_written_down() -> None:
    task = mlp(evaluate=lambda model: {"perplexity": 5.0}, better={"perplexity": "lower"})
    whole = compare(task, "bsp", 2, engine="simulated", until="perplexity:20", steps=4)
    assert whole.until == "perplexity<=20.0"
    assert whole.outcomes[0].result is not None and whole.outcomes[0].result.stopped == "target"
    with pytest.raises(PlanError, match="'bits<=2' or 'bits>=2'"):
        compare(task, "bsp", 2, engine="simulated", until="bits:2", steps=4)


def test_money_and_energy_where_the_cluster_has_prices() -> None:
    cluster = Cluster(price={0: 3600.0, 1: 3600.0}, watts={0: 3.6e6, 1: 0.0})
    (row,) = rows(run("bsp", cluster=cluster))
    assert row.figures["money"].value == pytest.approx(2 * row.figures["time to target"].value)
    assert row.figures["kWh"].value == pytest.approx(row.figures["time to target"].value)


def test_who_missed_the_target_is_not_the_cheapest() -> None:
    cluster = Cluster(price={0: 1.0, 1: 1.0}, watts={0: 1.0, 1: 1.0})
    whole = run("bsp,allreduce,ssp", cluster=cluster)
    short = whole.outcomes[0].result
    assert short is not None
    short.reached, short.seconds = None, 1e-6
    found = rows(whole)
    for name in ("money", "kWh"):
        column = next(column for column in columns(found) if column.name == name)
        assert best(found, column, whole) == min(row.figures[name].value for row in found[1:])


def test_a_comparison_goes_on_where_it_stopped(tmp_path: Path) -> None:
    ran: list[str] = []

    def shown(case: Case, number: int) -> Any:
        from contextlib import nullcontext

        ran.append(case.spec)
        return nullcontext()

    first = run("bsp,hogwild", folder=tmp_path, shown=shown)
    again = run("bsp,hogwild,easgd", folder=tmp_path, shown=shown)
    assert ran == ["bsp", "hogwild", "hogwild", "easgd"], "what was finished is not done again, what failed is"
    assert times(first)["bsp"] == times(again)["bsp"]
    with pytest.raises(PlanError, match=r"another comparison \(workers 2, now 3\): ask for the same, or choose"):
        run("bsp", workers=3, folder=tmp_path)
    with pytest.raises(PlanError, match=r"\(until accuracy>=0.9, now accuracy>=0.95\)"):
        run("bsp", until="accuracy>=0.95", folder=tmp_path)
    usual = {"scores": 8, "confirm": 2}
    for name, value in {"epochs": 2, "steps": 7, "servers": 2, "link_rate": "1mbit", "scores": 3, "confirm": 1}.items():
        with pytest.raises(PlanError, match=rf"\({name} {usual.get(name, 'not given')}, now {value}\)"):
            run("bsp", folder=tmp_path, **{name: value})


def test_specs_that_differ_only_in_odd_characters_are_kept_apart(tmp_path: Path) -> None:
    (tmp_path / "A.csv").write_text("0.5,0.5\n0.5,0.5\n")
    (tmp_path / "B.csv").write_text("0.9,0.1\n0.1,0.9\n")
    both = ",".join(f'dpsgd over matrix(file="{tmp_path / name}.csv")' for name in "AB")
    given = {"folder": tmp_path / "kept", "until": None, "steps": 3}
    for found in (run(both, **given), run(both, **given)):
        specs = [outcome.result.strategy if outcome.result else "" for outcome in found.outcomes]
        assert "A.csv" in specs[0] and "B.csv" in specs[1]


def test_it_can_be_read_back() -> None:
    import msgspec

    whole = run("bsp", epochs=1)
    assert msgspec.json.decode(whole.to_json(), type=Comparison).outcomes[0].spec == "bsp"


# -- the folder of --continue ------------------------------------------------------------------------------------------


def continued(folder: Path, task: str = "examples/digits.py") -> Comparison:
    return compare(task, "bsp", 2, folder=folder, engine="simulated", steps=2)


def test_a_torn_record_of_a_comparison_is_refused_by_name(tmp_path: Path) -> None:
    for torn in ("", "[1]", "{", "\x00", "[" * 100_000):
        (tmp_path / "comparison.json").write_text(torn)
        with pytest.raises(PlanError, match=r"comparison.json does not say .*: remove that file if"):
            continued(tmp_path)
    (tmp_path / "comparison.json").unlink()
    for put in (os.mkfifo, os.mkdir, lambda place: os.symlink("/dev/zero", place)):
        put(tmp_path / "comparison.json")
        with pytest.raises(PlanError, match=r"comparison.json does not say .*: remove that file if"):
            continued(tmp_path)
        (tmp_path / "comparison.json").rename(tmp_path / f"was-{len(os.listdir(tmp_path))}")
    assert continued(tmp_path).outcomes[0].result


def test_a_torn_outcome_is_done_again(tmp_path: Path) -> None:
    first = continued(tmp_path)
    (place,) = tmp_path.glob("bsp-*.json")
    place.write_text("")
    assert continued(tmp_path).outcomes[0].result.samples == first.outcomes[0].result.samples  # type: ignore[union-attr]
    assert place.read_text()
    place.unlink()
    os.mkfifo(place)
    assert continued(tmp_path).outcomes[0].result
    assert place.is_file()


def test_a_task_file_that_has_changed_is_another_comparison(tmp_path: Path) -> None:
    task, source = tmp_path / "task.py", Path("examples/digits.py").read_text()
    task.write_text(source)
    continued(tmp_path / "runs", str(task))
    task.write_text(source + "\n# another learning rate\n")
    with pytest.raises(PlanError, match=r"of .*task.py as that file was before it changed"):
        continued(tmp_path / "runs", str(task))
    task.write_text(source)
    continued(tmp_path / "runs", str(task))


def test_a_folder_serves_one_comparison_at_a_time(tmp_path: Path) -> None:
    whole = Comparison(task="a task of this process", workers=2, engine="simulated", until=None)
    with FinishedRuns(tmp_path, whole, 0, {}), pytest.raises(PlanError, match="another comparison keeps its runs"):
        continued(tmp_path)


def test_the_cluster_says_how_many_workers_compete(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="the cluster has 3 workers, the run asks for 2"):
        compare("no/such/file.py", "bsp,allreduce", 2, engine="simulated", cluster=Cluster(workers=3))
    (tmp_path / "three.toml").write_text("[[group]]\nworkers = 3\n")
    asked = ["compare", DIGITS, "--strategies", "bsp", "--simulate", "--cluster", str(tmp_path / "three.toml")]
    with mock.patch("covey.compare.compare", side_effect=PlanError("seen")) as begun:
        CliRunner().invoke(app, asked)
    assert begun.call_args.args[2] == 3


def test_another_cluster_is_told_by_what_differs(tmp_path: Path) -> None:
    run("bsp", folder=tmp_path, epochs=1, cluster=from_flags(bandwidth="100mbit", slow=["1:4x"]))
    run("bsp", folder=tmp_path, epochs=1, cluster=from_flags(bandwidth="100mbit", slow=["1:4x"]))
    with pytest.raises(PlanError) as refused:
        run("bsp", folder=tmp_path, epochs=1, cluster=from_flags(bandwidth="200mbit", compute="5ms"))
    assert str(refused.value) == (
        f"{tmp_path} holds another comparison (cluster.compute not given, now 0.005; cluster.link.bandwidth "
        "12500000.0, now 25000000.0; cluster.slowdowns.1 4.0, now not given): ask for the same, or choose another "
        "folder"
    )


def test_what_a_hostile_folder_says_is_told_in_one_short_line(tmp_path: Path) -> None:
    continued(tmp_path)
    place = tmp_path / "comparison.json"
    asked = json.loads(place.read_text())
    for more in ({"until": ["x\n" * 900]}, {"a\nb" * 900: 1}, {str(n): n for n in range(900)}, {"seed": {"a": "\n"}}):
        place.write_text(json.dumps(asked | more))
        with pytest.raises(PlanError) as refused:
            continued(tmp_path)
        assert "\n" not in str(refused.value) and len(str(refused.value)) < 400 + len(str(tmp_path))


def test_a_disk_that_is_full_costs_the_file_and_not_the_comparison(tmp_path: Path) -> None:
    told: list[str] = []
    with mock.patch.object(FinishedRuns, "write", side_effect=OSError(28, "No space left on device")):
        whole = run("bsp", folder=tmp_path, epochs=1, told=told.append)
    assert whole.outcomes[0].result
    assert told == [f"bsp is not kept in {tmp_path}: No space left on device; the comparison goes on"]


def test_a_folder_of_another_version_is_refused(tmp_path: Path) -> None:
    """Its runs were scored once in a pass: beside new ones they would seem slower."""
    continued(tmp_path)
    place = tmp_path / "comparison.json"
    place.write_text(place.read_text().replace('"format"', '"former"'))
    with pytest.raises(PlanError, match="runs of another version of covey, .* choose another folder"):
        continued(tmp_path)


# -- scores ------------------------------------------------------------------------------------------------------------


def test_bsp_and_allreduce_reach_the_target_within_one_score_of_each_other() -> None:
    """They do the same arithmetic in another order, and are scored after the same steps."""
    whole = run("bsp,allreduce", until="accuracy>=0.95", repeat=10)
    found = {(run.spec, run.repeat): run.result for run in whole.outcomes}
    for seed in range(10):
        bsp, allreduce = found["bsp", seed], found["allreduce", seed]
        assert bsp is not None and allreduce is not None and bsp.reached and allreduce.reached
        assert abs(len(bsp.history) - len(allreduce.history)) <= 1
        both = list(zip(bsp.history, allreduce.history, strict=False))
        assert [one["samples"] for one, _ in both] == [other["samples"] for _, other in both]
        assert len(both) - 1 > 2 * bsp.history[-1]["samples"] / 1437, "eight scores in a pass"  # type: ignore[operator]
        for result in (bsp, allreduce):
            before, first, second = result.history[-3:]
            assert before["accuracy"] < 0.95 <= min(first["accuracy"], second["accuracy"])  # type: ignore[operator,type-var]
            assert before["seconds"] < result.reached.seconds <= first["seconds"]  # type: ignore[operator,union-attr]


def test_the_command_scores_as_often_as_the_function() -> None:
    scores = signature(command).parameters["scores"]
    assert scores.default is None and f"(default: {SCORES})" in scores.annotation.__metadata__[0].help


def test_scores_by_steps_replace_those_by_passes() -> None:
    whole = run("bsp", until=None, steps=20, score_every="5 steps")
    assert whole.outcomes[0].result is not None
    assert [row["samples"] for row in whole.outcomes[0].result.history] == [0, 320, 640, 960, 1280]
    with pytest.raises(PlanError, match="give scores=… or score_every=…, not both"):
        run("bsp", until=None, steps=20, score_every="5 steps", scores=4)


def test_each_run_ends_when_it_gets_no_better_and_its_best_score_is_a_column() -> None:
    depths = [3, 1, 2, 2, 2, 3, 2, 4, 4, 4]  # each run is scored once more at its end
    task = mlp(evaluate=lambda model: {"height": float(-depths.pop(0))}, better={"height": "higher"})
    whole = compare(
        task, "bsp,asynchronous", 2, engine="simulated", steps=40, repeat=1, score_every="1 steps", best="height",
        patience=2,
    )  # fmt: skip
    results = [run.result for run in whole.outcomes]
    assert [result and result.stopped for result in results] == ["patience", "patience"]
    found = rows(whole)
    column = next(column for column in columns(found) if column.name == "best")
    assert [row.figures["best"].value for row in found] == [-1, -2] and best(found, column, whole) == -1


def test_the_rate_with_the_best_score_counts_not_that_with_the_best_end() -> None:
    seen = [9, 5, 6, 9, 1, 8]
    task = mlp(evaluate=lambda model: {"loss": float(seen.pop(0))})
    whole = compare(
        task, "bsp", 2, engine="simulated", steps=2, repeat=1, score_every="1 steps", best="loss", rates=(1.0, 2.0)
    )
    assert [(row.rate, row.figures["final"].value, row.figures["best"].value) for row in rows(whole)] == [(2.0, 8, 1)]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"patience": 3}, "name the metric, as best="),
        ({"best": "height"}, "is more of it better, or less"),
        ({"best": "acuracy"}, "is more of it better, .* did you mean 'accuracy'"),
        ({"best": "top_accuracy"}, "names no metric .* did you mean 'accuracy'"),
        ({"score_every": "often"}, "write for example '100 steps' or 30s"),
    ],
)
def test_what_no_run_could_obey_is_refused_once(given: dict[str, Any], why: str) -> None:
    with pytest.raises(PlanError, match=why):
        run("bsp,easgd", until=None, steps=2, **given)


@pytest.mark.parametrize("engine", ["simulated", "local"])
def test_a_misspelt_metric_is_refused_with_the_first_score(engine: str, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="accurracy>=0.9 names no metric .* did you mean 'accuracy'"):
        run("bsp,easgd", until="accurracy>=0.9", engine=engine, folder=tmp_path)
    if engine == "simulated":
        run("bsp", folder=tmp_path)  # nothing was kept of the other target


def test_a_misspelt_metric_is_one_line_on_the_command_line() -> None:
    asked = ["compare", DIGITS, "--simulate", "--strategies", "bsp,easgd", "--until", "acuracy>=0.9"]
    shown = CliRunner().invoke(app, asked)
    assert shown.exit_code == 2
    assert "names no metric" in shown.output and "failed" not in shown.output
