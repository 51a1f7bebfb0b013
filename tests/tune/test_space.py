"""The grammar of a space: what it means, and errors that point at their place."""

from __future__ import annotations

from inspect import Parameter, signature
from pathlib import Path
from random import Random

import pytest
from typer.testing import CliRunner

from covey.cli import app
from covey.spec.call import Scalar, SpecError
from covey.tune.space import Alternative, NumberRange
from covey.tune.space_check import check_space
from covey.tune.space_reader import parse_space

WHOLE = "rate=log(1e-4,1), strategy=bsp|easgd(period=4|16), codec=none|powersgd(rank=4|16)"


class Chosen:
    """Chooses what it is told, else the last, and the highest number."""

    def __init__(self, **told: Scalar) -> None:
        self.told, self.asked = told, []

    def choice(self, path: str, among: tuple[Scalar, ...]) -> Scalar:
        self.asked.append(path)
        return self.told.get(path.replace(".", "_"), among[-1])

    def number(self, path: str, among: NumberRange) -> Scalar:
        self.asked.append(path)
        return among.clipped(among.high)


def test_strategies_and_codecs_are_part_of_the_space() -> None:
    space = parse_space(WHOLE)
    assert space.settings["rate"] == NumberRange(1e-4, 1.0, logarithmic=True)
    assert space.settings["strategy"][0] == Alternative("bsp")
    point = space.draw(Chosen())
    assert point == {
        "rate": 1.0, "strategy": "easgd", "strategy.easgd.period": 16, "codec": "powersgd", "codec.powersgd.rank": 16,
    }  # fmt: skip
    setup = space.setup(point, "bsp")
    assert setup.strategy == "easgd(period=16) + powersgd(rank=16)" and setup.arguments == {"rate": 1.0}
    assert setup.task("train.py") == "train.py:task(rate=1.0)"


def test_settings_of_an_alternative_are_chosen_only_where_it_is() -> None:
    chooser = Chosen(strategy="bsp", codec="none")
    space = parse_space(WHOLE)
    point = space.draw(chooser)
    assert chooser.asked == ["rate", "strategy", "codec"] and space.setup(point, "x").strategy == "bsp"


def test_a_space_may_have_many_choices() -> None:
    """Each was once compared with all before it, which took an hour for 1 MB."""
    assert parse_space("a=" + "|".join(map(str, range(20_000)))).size == 20_000


def test_how_many_points_there_are() -> None:
    assert parse_space("a=1|2|3, strategy=bsp|easgd(period=4|16)").size == 9
    assert parse_space("a=int(1, 4), b=x").size == 4 and parse_space(WHOLE).size == float("inf")


def test_values_are_numbers_words_and_quoted_strings() -> None:
    space = parse_space("a=1|2.5|relu|'two words', b=int(1, 8), c=logint(1, 100), d=uniform(-1, 1)")
    assert [one.value for one in space.settings["a"]] == [1, 2.5, "relu", "two words"]
    assert [str(space.settings[name]) for name in "bcd"] == ["int(1, 8)", "logint(1, 100)", "uniform(-1, 1)"]
    setup = space.setup({"a": "two words", "b": 3, "c": 7, "d": 0.5}, "bsp")
    assert setup.task("f.py:mine") == 'f.py:mine(a="two words", b=3, c=7, d=0.5)'


def test_a_copy_of_a_trial_differs_in_its_numbers_only() -> None:
    """Only in those on which neither shapes nor the checkpoints of a strategy depend."""
    space = parse_space(
        "rate=log(0.001, 1), decay=uniform(0, 0.5), width=int(16, 64), strategy=bsp|easgd(pull=uniform(0.1, 0.4))"
    )
    point = {"rate": 0.1, "decay": 0.5, "width": 32, "strategy": "easgd", "strategy.easgd.pull": 0.2}
    found = [space.perturbed(point, Random(seed)) for seed in range(20)]
    assert {round(one["rate"], 6) for one in found} == {0.08, 0.125}
    assert {one["decay"] for one in found} == {0.4, 0.5}, "what leaves its range is brought back"
    assert all(one["width"] == 32 and one["strategy.easgd.pull"] == 0.2 for one in found)


@pytest.mark.parametrize(("text", "at", "why"), [
    ("", 0, "the space is empty"),
    ("   ", 3, "the space is empty"),
    ("rate", 4, "expected '='"),
    ("rate=", 5, "expected a value"),
    ("rate=log(1e-4)", 13, "expected ','"),
    ("rate=log(1, 0.1)", 12, "the range is empty: 0.1 is not above 1"),
    ("rate=log(1, 1)", 12, "the range is empty"),
    ("rate=log(0, 1)", 9, "begins above 0"),
    ("rate=uniform(-1e308, 1e308)", 13, "the range is too wide"),
    ("rate=log(1e-300, 1e300)", 9, "the range is too wide"),
    ("n=int(1, 2.5)", 9, "whole numbers"),
    ("n=int( 8.5, 32)", 7, "whole numbers"),
    ("rate=log(a, 1)", 9, "expected a number"),
    ("rate=log(1, 2)|3", 14, "stands alone"),
    ("rate=3|log(1, 2)", 7, "stands alone"),
    ("a=1, a=2", 5, "'a' is given twice"),
    ("a=1|1", 4, "1 is there twice"),
    ("strategy=easgd(period=4|16", 26, "expected ',', '|' or ')'"),
    ("strategy=easgd(4)", 15, "expected a setting"),
    ("a='x", 2, "never closed"),
    ("a=1 b=2", 4, "expected ',', '|' or the end"),
    ("a=1,", 4, "expected a setting"),
])  # fmt: skip
def test_errors_point_at_the_place(text: str, at: int, why: str) -> None:
    with pytest.raises(SpecError) as told:
        parse_space(text)
    assert why in told.value.why and told.value.at == at
    if text.strip():
        assert str(told.value).splitlines()[1].index("^") == at


def checked(text: str, *parameters: str) -> None:
    known = {name: Parameter(name, Parameter.KEYWORD_ONLY) for name in parameters}
    check_space(parse_space(text), known, "f.py", 2, "bsp")


@pytest.mark.parametrize(("text", "at", "why"), [
    ("rat=1|2", 0, "f.py has no parameter 'rat'; did you mean 'rate'?"),
    ("rate=1|2, strategy=bsp|eagsd", 23, "no strategy 'eagsd'"),
    ("strategy=easgd(perod=4)", 9, "has no setting 'perod'"),
    ("strategy=ssp(bound=x|1)", 9, "bound must be a whole number"),
    ("codec=int9", 0, "nothing of this can run: no codec 'int9'"),
    ("codec=none|int9", 11, "no codec 'int9'"),
    ("strategy=uniform(1, 2)", 0, "a strategy is a name"),
])  # fmt: skip
def test_spaces_that_cannot_run_are_refused(text: str, at: int, why: str) -> None:
    with pytest.raises(SpecError) as told:
        checked(text, "rate", "width")
    assert why in told.value.why and told.value.at == at


@pytest.mark.parametrize(("text", "at", "why"), [
    ("rate=0.1|foo", 9, "a number for 'rate', not 'foo'"),
    ("usual=0.1|foo", 10, "a number for 'usual'"),
    ("width=8|8.5", 8, "width: int, not 8.5"),
    ("width=log(1, 8)", 0, "write int"),
    ("rate=1|2, width=8|16, usual=1|0.5, kind=a|1, free=a|1", None, ""),
])  # fmt: skip
@pytest.mark.parametrize("evaluated", [False, True])
def test_values_of_the_wrong_kind_are_refused(text: str, at: int | None, why: str, evaluated: bool) -> None:
    """By annotations, which may be texts, or by the default."""

    def task(rate: float = 0.1, width: int = 8, usual=1, kind: str = "a", free: float | None = None) -> None: ...

    space, parameters = parse_space(text), signature(task, eval_str=evaluated).parameters
    if at is None:
        check_space(space, parameters, "f.py", 2, "bsp")
        return
    with pytest.raises(SpecError) as told:
        check_space(space, parameters, "f.py", 2, "bsp")
    assert why in told.value.why and told.value.at == at


def test_a_file_without_a_function_is_told_what_to_write() -> None:
    with pytest.raises(SpecError, match=r"write def task\(rate=…\)"):
        checked("rate=1|2")


def test_a_space_that_can_run_is_accepted() -> None:
    checked(WHOLE, "rate")
    checked("strategy='easgd(period=4) + int8'|bsp")


def test_a_person_reads_that_a_space_is_empty_before_anything_starts(tmp_path: Path) -> None:
    file = tmp_path / "task.py"
    file.write_text("raise SystemError('it was imported')")
    told = CliRunner().invoke(app, ["tune", str(file), "--space", " ", "--runs", str(tmp_path / "runs")])
    assert told.exit_code == 2 and "say what to search with --space" in told.stderr, told.output
    assert not (tmp_path / "runs").exists()


def test_parentheses_inside_each_other_are_bounded() -> None:
    assert parse_space("a=" + "b(c=" * 50 + "1" + ")" * 50).settings
    with pytest.raises(SpecError, match="more than 50 parentheses inside each other"):
        parse_space("a=" + "b(c=" * 1000 + "1" + ")" * 1000)


@pytest.mark.parametrize("before", [0, 150, 40_000])
def test_of_a_long_text_the_part_around_the_place_is_shown(before: int) -> None:
    text = "é=1, ".join(["a" * before + " ", "b" * 40_000])
    with pytest.raises(SpecError) as told:
        parse_space(text)
    shown, pointer = str(told.value).splitlines()
    assert len(shown) <= 204 and shown.endswith(" …") and shown.startswith("… ") == (before > 100)
    assert shown[pointer.index("^")] == text[told.value.at]
