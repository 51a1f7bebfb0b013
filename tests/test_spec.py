"""SPEC strings: what they say, that they survive a round trip, and how a wrong one is explained."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from covey.errors import PlanError
from covey.spec import Call, Grid, Scalar, Spec, SpecError, bind, expand, parse, parse_call, parse_list, unknown

keys = st.from_regex(r"[a-z][a-z0-9_]{0,6}", fullmatch=True)
names = st.from_regex(r"[a-z][a-z0-9_]{0,6}(\+\+)?", fullmatch=True).filter(lambda name: name not in ("over", "with"))
scalars: st.SearchStrategy[Scalar] = st.one_of(
    st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=8)
)
grids = st.lists(scalars, min_size=2, max_size=3).map(lambda values: Grid(tuple(values)))
calls = st.builds(Call, names, st.dictionaries(keys, scalars | grids, max_size=3))
specs = st.builds(Spec, calls, st.lists(calls, max_size=2).map(tuple), st.none() | calls, st.none() | calls)


@given(specs)
def test_a_spec_survives_the_round_trip(spec: Spec) -> None:
    assert parse(str(spec), grids=True) == spec


@given(st.lists(specs, min_size=1, max_size=3))
def test_a_list_survives_the_round_trip(several: list[Spec]) -> None:
    assert parse_list(", ".join(map(str, several)), grids=True) == several


@given(calls)
def test_a_call_survives_the_round_trip(call: Call) -> None:
    assert parse_call(str(call), grids=True) == call


@given(st.text() | st.text(alphabet="ab1_+|=,(). '\"\\-over with", max_size=30), st.booleans())
@example("a(x=" + "9" * 5000 + ")", False)
@example("a(x=1e999)", False)
def test_any_text_parses_or_is_explained(text: str, grid: bool) -> None:
    for read in (parse, parse_list, parse_call):
        try:
            read(text, grids=grid)
        except SpecError as error:
            assert 0 <= error.at <= len(error.text)  # noqa: PT017 (not raising is fine too)


def test_the_parts_of_a_spec() -> None:
    spec = parse("petuum(bound=2, mode=fast) + topk(density=0.01)+onebit over tree(fanout=3) with mesh(tensor=2)")
    assert spec.strategy == Call("petuum", {"bound": 2, "mode": "fast"})
    assert spec.codecs == (Call("topk", {"density": 0.01}), Call("onebit"))
    assert spec.topology == Call("tree", {"fanout": 3})
    assert spec.mesh == Call("mesh", {"tensor": 2})


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("3", 3),
        ("-3", -3),
        ("0.5", 0.5),
        (".5", 0.5),
        ("1e-3", 0.001),
        ("100mbit", "100mbit"),
        ("10MB/s", "10MB/s"),
        ("true", "true"),
        ("nan", "nan"),
        ("cuda:0", "cuda:0"),
        ('"a, (b)"', "a, (b)"),
        ("'it\\'s'", "it's"),
        ('"3"', "3"),
    ],
)
def test_values(written: str, meant: object) -> None:
    value = parse(f"a(x={written})").strategy.settings["x"]
    assert value == meant
    assert type(value) is type(meant)


def test_plus_plus_belongs_to_the_name() -> None:
    assert parse("hogwild+++topk") == parse("hogwild++ + topk") == Spec(Call("hogwild++"), (Call("topk"),))


def test_spelling_does_not_count() -> None:
    assert parse(" ssp( bound = 3 ) ") == parse("ssp(bound=3)")
    assert hash(parse("a( x=1)")) == hash(parse("a(x=1)"))
    assert parse("bsp()") == parse("bsp")


def test_lists_split_outside_parentheses_and_quotes() -> None:
    assert [str(spec) for spec in parse_list("bsp, a(x=1, y=')'), b(z='q,r')")] == [
        "bsp",
        'a(x=1, y=")")',
        'b(z="q,r")',
    ]


def test_positions_point_into_the_text_of_the_spec() -> None:
    spec = parse_list("bsp,  ssp(bound=3) + topk(k=1)")[1]
    assert spec.text[spec.codecs[0].at :].startswith("topk")
    assert spec.text[spec.codecs[0].places["k"] :].startswith("k=1")


@pytest.mark.parametrize(
    ("text", "at", "why"),
    [
        ("", 0, "expected a strategy"),
        ("ssp(bond=3", 10, "expected ',' or ')'"),
        ("ssp(a=1 b=2)", 8, "expected ',' or ')'"),
        ("ssp(a=1, a=2)", 9, "'a' is set twice"),
        ("ssp(a=1,)", 8, "expected a setting"),
        ("ssp(3)", 4, "expected a setting"),
        ("ssp(a)", 5, "expected '='"),
        ("ssp(a=)", 6, "expected a value"),
        ("ssp(a='x)", 6, "never closed"),
        ("ssp)", 3, "expected '+', 'over', 'with' or the end"),
        ("bsp easgd", 4, "expected '+', 'over', 'with' or the end"),
        ("Bsp", 0, "expected a strategy"),
        ("over", 0, "expected a strategy"),
        ("bsp + ", 6, "expected a codec"),
        ("bsp over", 8, "expected a topology"),
        ("bsp with (a=1)", 9, "expected a mesh"),
        ("bsp with a over b", 11, "the end"),
        ("ssp(a=1|2)", 7, "for compare"),
    ],
)
def test_a_wrong_spec_is_explained_where_it_is_wrong(text: str, at: int, why: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(text)
    assert (caught.value.text, caught.value.at) == (text, at)
    assert why in str(caught.value)


def test_the_caret_stands_under_the_wrong_character() -> None:
    with pytest.raises(SpecError) as caught:
        parse("ssp(bond=3")
    assert str(caught.value) == "ssp(bond=3\n          ^ expected ',' or ')'"


def test_a_list_with_a_hole_shows_the_whole_list() -> None:
    with pytest.raises(SpecError) as caught:
        parse_list("bsp,,ssp")
    assert (caught.value.text, caught.value.at) == ("bsp,,ssp", 4)


def test_grids_expand_to_every_combination() -> None:
    spec = parse("a(x=1|2, y=3) + c(z=p|q) over ring", grids=True)
    assert spec.strategy.settings["x"] == Grid((1, 2))
    assert [str(point) for point in expand(spec)] == [
        "a(x=1, y=3) + c(z=p) over ring",
        "a(x=1, y=3) + c(z=q) over ring",
        "a(x=2, y=3) + c(z=p) over ring",
        "a(x=2, y=3) + c(z=q) over ring",
    ]


def test_a_spec_without_grids_expands_to_itself() -> None:
    assert expand(parse("a(x=1) + b")) == [parse("a(x=1) + b")]


def test_unknown_names_suggest_the_nearest() -> None:
    error = unknown("bps + topk", 0, "strategy", "bps", ["ssp", "bsp"])
    assert str(error) == "bps + topk\n^ no strategy 'bps'; did you mean 'bsp'? There are: bsp, ssp"
    assert "did you mean" not in str(unknown("zzz", 0, "codec", "zzz", ["topk"]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    bound: int
    pull: float | None = None
    nesterov: bool = False
    mode: Literal["mean", "sum"] = "mean"
    path: str = "here"
    hidden: int = field(default=0, init=False)


def bound(text: str) -> Settings:
    return bind(parse_call(text), Settings, "strategy", text)


def test_bind_builds_the_settings() -> None:
    assert bound("ssp(bound=3)") == Settings(bound=3)
    full = bound("ssp(bound=3, pull=1, nesterov=true, mode=sum, path='a b')")
    assert full == Settings(bound=3, pull=1.0, nesterov=True, mode="sum", path="a b")
    assert isinstance(full.pull, float)


@dataclass(frozen=True, kw_only=True, slots=True)
class OptionalSettings:
    seed: int | None = None
    share: float | None = None
    reset: bool | None = None


def test_an_optional_setting_may_be_zero_or_false() -> None:
    text = "thing(seed=0, share=0, reset=false)"
    found = bind(parse_call(text), OptionalSettings, "strategy", text)
    assert (found.seed, found.share, found.reset) == (0, 0.0, False)


@pytest.mark.parametrize(
    ("text", "at", "why"),
    [
        (
            "ssp(bond=3)",
            4,
            "strategy 'ssp' has no setting 'bond'; did you mean 'bound'? It has: bound (a whole number), ",
        ),
        ("ssp(bound=3, zzz=1)", 13, "pull (a number, optional), nesterov=false, mode=mean, path=here"),
        ("ssp(hidden=3)", 4, "no setting 'hidden'"),
        ("ssp(bound=3.5)", 4, "bound must be a whole number, not 3.5"),
        ("ssp(bound='3')", 4, "bound must be a whole number"),
        ("ssp(bound=3, pull=fast)", 13, "pull must be a number, not fast"),
        ("ssp(bound=3, pull=none)", 13, "pull must be a number"),
        ("ssp(bound=3, nesterov=1)", 13, "nesterov must be true or false"),
        ("ssp(bound=3, mode=max)", 13, "mode must be mean or sum, not max"),
        ("ssp(bound=3, path=4)", 13, "path must be a word or a quoted string"),
        ("  ssp(pull=0.5)", 2, "strategy 'ssp' needs bound=... (a whole number)"),
    ],
)
def test_bind_explains_what_does_not_fit(text: str, at: int, why: str) -> None:
    with pytest.raises(PlanError) as caught:
        bound(text)
    assert isinstance(caught.value, SpecError)
    assert caught.value.at == at
    assert why in str(caught.value)
