from __future__ import annotations

import json
import shlex
from itertools import product

import pytest
from typer.testing import CliRunner

from covey.catalog.guide import QUESTIONS, Answers, on_several_machines, suggestions, then
from covey.cli import app
from covey.errors import PlanError
from covey.run.options import options
from covey.run.request import request

LINKS = ("machine", "10gbit", "1gbit", "100mbit", "10mbit")
BOTH = ("yes", "no")
ALL = [
    Answers(fits=fits, link=link, equal=equal, vanish=vanish, stay=stay)
    for fits, link, equal, vanish, stay in product(BOTH, LINKS, BOTH, BOTH, BOTH)
]


def words_of(answers: Answers) -> list[list[str]]:
    return [shlex.split(one.command) for one in suggestions(answers)]


def flag(words: list[str], name: str) -> str:
    return words[words.index(name) + 1] if name in words else ""


def test_every_answer_gets_three_different_strategies_that_can_run() -> None:
    tried = set()
    for answers in ALL:
        found = words_of(answers)
        assert len({flag(words, "--strategy") for words in found}) == 3, answers
        if answers.stay == "yes":
            assert all(words[:3] == ["covey", "federate", "simulate"] for words in found)
            continue
        for words in found:
            if " ".join(words) in tried:
                continue
            tried.add(" ".join(words))
            given = {
                "epochs": 1, "on_failure": flag(words, "--on-failure") or "stop",
                "checkpoint": flag(words, "--checkpoint") or None,
            }  # fmt: skip
            task = "examples/characters.py" if answers.fits == "no" else "examples/digits.py"
            request(task, flag(words, "--strategy"), flag(words, "--workers"), options(given))  # or it refuses
    assert len(tried) > 20


@pytest.mark.parametrize("answers", [one for one in ALL if one.stay == "no"], ids=str)
def test_what_was_answered_decides(answers: Answers) -> None:
    specs = [one.spec for one in suggestions(answers)]
    commands = [one.command for one in suggestions(answers)]
    assert all(("mesh" in spec) == (answers.fits == "no") for spec in specs)
    if answers.vanish == "yes":
        assert all("--on-failure" in command for command in commands)
    if answers.fits == "yes" and answers.equal == "no":
        waiting = ("allreduce", "bsp", "local_sgd", "bmuf")
        assert not any(spec.startswith(waiting) for spec in specs), "the fast ones would wait"
    if answers.link == "10mbit" and answers.fits == "yes":
        assert not {"allreduce", "bsp", "ssp(bound=3)"} & set(specs), "whole gradients in every step"


def test_on_machines_that_vanish_the_guide_says_what_several_of_them_need(runner: CliRunner) -> None:
    told = [(answers, on_several_machines(answers)) for answers in ALL]
    assert all(bool(said) == ("continue" in suggestions(answers)[0].command) for answers, said in told)
    shown = runner.invoke(app, ["strategies", "--answers", "link=100mbit, equal=no, vanish=yes"])
    command = "covey run train.py --engine ray --workers 2:4 --on-failure continue"
    assert f"{command} --strategy 'easgd(period=16)'" in shown.stdout
    assert "--bandwidth 100mbit --slow 3:2x --spot" in shown.stdout
    for answers in (Answers(vanish="yes"), Answers(vanish="yes", equal="no", link="100mbit")):
        words = shlex.split(on_several_machines(answers))
        given = options({"epochs": 1, "on_failure": "continue", "engine": "ray"})
        request("examples/digits.py", flag(words, "--strategy"), flag(words, "--workers"), given)  # or it refuses


def test_a_rate_is_taken_for_what_it_is() -> None:
    assert Answers(link="machine").speed == Answers(link="125MB/s").speed == "fast"
    assert Answers(link="0.5gbit").speed == "medium" and Answers(link="30mbit").speed == "slow"
    assert "--bandwidth 30mbit" in then(Answers(link="30mbit")) and "search" in then(Answers(fits="no"))


def test_in_a_terminal_the_questions_are_asked_until_the_answers_can_be_used(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("covey.cli.tables.guide._at_a_terminal", lambda: True)
    shown = runner.invoke(app, ["strategies", "--guide"], input="perhaps\nyes\n100mbit\nno\nno\nno\n")
    assert shown.exit_code == 0, shown.output
    assert all(question in shown.output for question in QUESTIONS.values())
    assert "should be yes or no" in shown.output
    assert all(one.command in shown.stdout for one in suggestions(Answers(link="100mbit", equal="no")))


def test_elsewhere_they_are_answered_on_the_command_line(runner: CliRunner) -> None:
    shown = runner.invoke(app, ["strategies", "--answers", "link=10mbit,vanish=y", "--json", "-"])
    told = json.loads(shown.stdout)
    assert told["answers"] == {"fits": "yes", "link": "10mbit", "equal": "yes", "vanish": "yes", "stay": "no"}
    assert [one["spec"] for one in told["suggestions"]] == [
        one.spec for one in suggestions(Answers(link="10mbit", vanish="yes"))
    ]
    nobody = runner.invoke(app, ["strategies", "--guide"])
    assert nobody.exit_code == 2 and "--answers 'fits=yes, link=machine" in nobody.output


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ("lnk=1gbit", "did you mean 'link'"), ("fits", "answers no question"), ("fits=maybe", "should be yes or no"),
        ("link=soon", "100mbit"), ("fits=yes, fits=no", "answered twice"),
    ],
)  # fmt: skip
def test_what_is_no_answer_is_refused(runner: CliRunner, answers: str, said: str) -> None:
    shown = runner.invoke(app, ["strategies", "--answers", answers])
    assert shown.exit_code == 2 and said in " ".join(shown.output.split())


def test_it_looks_for_a_strategy_and_takes_none(runner: CliRunner) -> None:
    for beside in (["bsp"], ["--picture", "x.svg"]):
        shown = runner.invoke(app, ["strategies", *beside, "--guide"])
        assert shown.exit_code == 2 and "without" in shown.output


def test_a_divided_model_needs_as_many_workers_as_it_has_parts() -> None:
    with pytest.raises(PlanError):
        request("examples/characters.py", suggestions(Answers(fits="no"))[0].spec, 3, options({"epochs": 1}))
