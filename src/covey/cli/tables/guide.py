"""covey strategies --guide: five questions, and three strategies to try."""

from __future__ import annotations

import json as text_of
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covey.cli import json_file, options
from covey.errors import PlanError

if TYPE_CHECKING:
    from rich.console import Console

    from covey.catalog.guide import Answers, Suggestion


@dataclass(frozen=True, kw_only=True)
class GuideFlags(options.FlagGroup):
    """Which one should I use?"""

    guide: Annotated[
        bool, options.flag("--guide", "", "Ask five questions, and name three strategies to try.", options.RUN)
    ] = False
    answers: Annotated[
        str | None, options.flag("--answers", "NAME=…,…", "Answer them here: 'link=100mbit, equal=no'.", options.RUN)
    ] = None


def answers_of(text: str | None) -> Answers:
    """What was given with `--answers`, or what the person at the terminal says."""
    from covey.catalog.guide import QUESTIONS, Answers, answered

    if text is not None:
        return answered(text)
    usual = asdict(Answers())
    if not _at_a_terminal():
        told = ", ".join(f"{name}={value}" for name, value in usual.items())
        raise PlanError(f"--guide asks five questions, and nobody is here to answer: say --answers '{told}'")
    return Answers(**{name: _asked(name, usual[name]) for name in QUESTIONS})


def told(answers: Answers) -> dict[str, Any]:
    """The guide's answer, as it goes to JSON."""
    from covey.catalog.guide import on_several_machines, suggestions, then

    return {
        "answers": asdict(answers),
        "suggestions": [asdict(one) for one in suggestions(answers)],
        "on_several_machines": on_several_machines(answers),
        "then": then(answers),
    }


def print_guide(asked: GuideFlags, beside: str | None, output: options.OutputFlags) -> None:
    """Three suggestions with their reasons and commands."""
    if beside is not None:
        raise PlanError(f"--guide looks for a strategy: covey strategies --guide, without {beside}")
    from covey.catalog.guide import on_several_machines, suggestions, then

    answers = answers_of(asked.answers)
    json_file.write(output.json, text_of.dumps(told(answers), indent=1, ensure_ascii=False) + "\n")
    if output.voice == "quiet":
        return
    console = json_file.console(output.json)
    for number, one in enumerate(suggestions(answers), 1):
        _print_suggestion(console, number, one)
    if elsewhere := on_several_machines(answers):
        console.print("\non several machines, with Ray", style="dim")
        console.print(f"  {elsewhere}", soft_wrap=True, markup=False)
    slow = " (with your own --slow)" if "--slow" in then(answers) else ""
    console.print(f"\nto measure instead of guessing{slow}", style="dim")
    console.print(f"  {then(answers)}", soft_wrap=True, markup=False)


def _print_suggestion(console: Console, number: int, one: Suggestion) -> None:
    console.print(f"\n{number}. {one.spec}", style="bold green", markup=False)
    console.print(f"   {one.why}", markup=False)
    console.print(f"   {one.command}", soft_wrap=True, markup=False)  # in one piece, to be copied


def _at_a_terminal() -> bool:
    return sys.stdin.isatty()


def _asked(name: str, usual: str) -> str:
    """An answer that can be used; a wrong one is asked for again."""
    from covey.catalog.guide import QUESTIONS, checked

    choices = "" if name == "link" else " (yes or no)"
    while True:
        given = str(typer.prompt(f"{QUESTIONS[name]}{choices}", default=usual, err=True)).strip().lower()
        try:
            return checked(name, given or usual)
        except PlanError as wrong:
            typer.echo(str(wrong), err=True)
