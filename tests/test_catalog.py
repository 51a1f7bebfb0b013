"""The table of names: every entry can be made, says where it stands, and refuses what cannot work."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path

import pytest

from covey import catalog
from covey.catalog import STRATEGIES, resolve
from covey.errors import PlanError
from covey.spec import SpecError, parse
from covey.strategy import GROW, KEEP
from covey.systems import CATEGORIES, ROWS, SYSTEMS
from tests.promises.digits import counted, formula
from tests.promises.specs import workable

EIGHT = ["bsp", "ssp", "asynchronous", "allreduce", "local_sgd", "easgd", "gosgd", "dpsgd"]

every = pytest.mark.parametrize("name", catalog.names())


def test_the_eight_of_the_spine_are_there() -> None:
    assert set(EIGHT) <= set(catalog.names())


@every
def test_a_name_makes_a_strategy_of_that_name(name: str) -> None:
    strategy = resolve(name, 4)
    assert strategy.name == name
    assert STRATEGIES[name].about and STRATEGIES[name].paper
    assert all(asdict(strategy.description).values())
    assert resolve(strategy.text, 4).text == strategy.text, "what a result says can be asked for again"


@every
@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_roles(name: str, workers: int) -> None:
    workers = workable(name, workers)
    roles = resolve(name, workers).layout(workers, None)
    trains = [role.address for role in roles if role.trains]
    assert [(address.role, address.rank) for address in trains] == [("worker", rank) for rank in range(workers)]
    assert any(role.scored for role in roles)
    assert len({role.address for role in roles}) == len(roles)


def test_how_the_learning_rate_scales() -> None:
    """Where a step is of n batches, or n models are averaged often, it may grow; where n updates add up, it shrinks."""
    others = {name: scaling for name in catalog.names() if (scaling := resolve(name, 4).description.scaling) != KEEP}
    places = {name: asdict(resolve(name, 4).taxonomy) for name in catalog.names()}
    large_batch = {"optimization": "central", "scheduling": "synchronous"}
    one_batch = {name for name, place in places.items() if place | large_batch == place}
    often = {"local_sgd", "dpsgd", "adpsgd", "sgp", "malt", "butterfly"}
    grow = {name for name, scaling in others.items() if scaling == GROW}
    assert grow == one_batch - {"sandblaster", "strads"} | often
    assert {name: others[name] for name in others if name not in grow} == {
        "downpour": "gamma may be 10 times a good fixed rate, for any n", "sandblaster": "it is not used",
        "strads": "it is not used",
        "hogwild": "divide it by n", "hogwild++": "divide it by the workers of a cluster",
    }  # fmt: skip
    assert resolve("malt(fold=sum)", 4).description.scaling == "divide it by 1 + the peers"


@pytest.mark.parametrize(
    ("spec", "rate"),
    [
        ("asynchronous", "each push counts 0.25 (1/workers unless given)"),
        ("ssp(weight=0.5)", "each push counts 0.5 (1/workers unless given)"),
        ("ssp(damping=dynamic)", "each gradient counts 1 over 1 + its staleness"),
        ("softsync", "each gradient counts 1 over its staleness"),
        ("softsync(damping=none)", "unchanged: the mean over the gradients of an update"),
        ("eamsgd", "times 1 - momentum: it keeps its meaning"),
    ],
)
def test_what_is_said_of_the_learning_rate_is_what_happens(spec: str, rate: str) -> None:
    assert resolve(spec, 4).description.rate == rate


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("bsp", ("central", "server", "synchronous")),
        ("ssp", ("central", "server", "bounded")),
        ("asynchronous", ("central", "server", "asynchronous")),
        ("allreduce", ("central", "peers", "synchronous")),
        ("local_sgd", ("decentral", "peers", "synchronous")),
        ("easgd", ("decentral", "server", "asynchronous")),
        ("gosgd", ("decentral", "peers", "soft")),
        ("dpsgd", ("decentral", "peers", "synchronous")),
    ],
)
def test_coordinates_are_those_of_the_survey(name: str, row: tuple[str, str, str]) -> None:
    taxonomy = resolve(name, 4).taxonomy
    assert (taxonomy.optimization, taxonomy.architecture, taxonomy.scheduling) == row
    assert taxonomy.parallelism == "data"


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("ssp", "ssp(bound=3, weight=0.25)"),
        ("ssp(bound=0)", "ssp(bound=0, weight=0.25)"),
        ("easgd(period=16)", "easgd(period=16, pull=0.225)"),
        ("dpsgd", "dpsgd over ring"),
        ("dpsgd over complete", "dpsgd over complete"),
        ("gosgd(probability=0.5)", "gosgd(probability=0.5) over complete"),
        ("bsp", "bsp"),
    ],
)
def test_defaults_are_written_out(spec: str, text: str) -> None:
    assert resolve(spec, 4).text == text
    assert resolve(parse(spec), 4).text == text


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("bps", "bsp"),
        ("ssp(bond=3)", "bound"),
        ("ssp(bound=fast)", "bound"),
        ("bsp over ring", "no layout of servers 'ring'"),
        ("allreduce over ring", "'over' goes with .*dpsgd"),
        ("dpsgd over rink", "ring"),
        ("dpsgd over torus(size=3)", "size"),
        ("bsp + magic(density=0.1)", "no codec 'magic'"),
        ("bsp with mesh(stages=2)", "mesh"),
        ("local_sgd(period=0)", "1 step or more"),
        ("", "strategy"),
    ],
)
def test_what_cannot_work_is_refused_with_a_hint(spec: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        resolve(spec, 4)


def test_servers_are_for_those_who_have_them() -> None:
    assert len(resolve("bsp", 2).layout(2, 3)) == 5
    with pytest.raises(PlanError, match="allreduce has no servers"):
        resolve("allreduce", 2).layout(2, 1)
    with pytest.raises(PlanError, match="at least 1"):
        resolve("bsp", 2).layout(2, 0)
    with pytest.raises(PlanError, match="at least 1"):
        resolve("bsp", 1).layout(0, 1)


LEAVES_BEHIND = ("quorum", "value_bound", "tree_easgd")  # others go on without a slow worker


@every
def test_who_waits_must_stop_together(name: str) -> None:
    strategy = resolve(name, 4)
    waits = strategy.taxonomy.scheduling in ("synchronous", "bounded") and name not in LEAVES_BEHIND
    assert strategy.lockstep == waits


# -- what is declared -------------------------------------------------------------------------------------------------


@every
def test_an_entry_declares_all_that_pages_and_tests_need(name: str) -> None:
    entry = STRATEGIES[name]
    assert entry.use.endswith(".") and (not entry.details or entry.details.endswith("."))
    assert entry.timelines and all(parse(spec).strategy.name == name for spec in entry.timelines)
    assert bool(entry.codecs) != bool(entry.plain), "codecs, or why it takes none"
    file, _, function = entry.test.partition("::")
    assert f"def {function}(" in (Path(__file__).parent / file).read_text(), f"tests/{entry.test} is not there"


def test_no_two_strategies_have_the_same_distinguishing_test() -> None:
    tests = [entry.test for entry in STRATEGIES.values()]
    assert len(set(tests)) == len(tests)


MANY_STEPS = 4000  # a multiple of all periods


@every
def test_the_models_that_are_sent_are_those_of_the_formula(name: str) -> None:
    """`2 (n-1)/n / period` is evaluated, and compared with the sum over all links; "at most" where layers decide."""
    says, run = formula(name), counted(name, 4, MANY_STEPS)
    expression = says.models.removeprefix("at most ")
    if re.search(r"[a-z]{2,} [a-z]", expression):
        decided = says.counted or says.sized or name == "one_weird_trick"
        assert decided, "words are for what only chance or speed decides"
        return
    expression = re.sub(r"(\w|\)) \(", r"\1 * (", expression)
    models = eval(expression, {"__builtins__": {}}, {"period": 1, **run.settings, "n": 4})  # noqa: S307
    sent = sum(says.links(run).values()) / (run.steps * run.workers * run.model)
    if says.models.startswith("at most"):
        assert sent <= models + 1e-9
    else:
        assert sent == pytest.approx(models, rel=1e-3)


# -- the systems of the surveys ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_system_is_made_of_what_is_there(name: str) -> None:
    system, made = SYSTEMS[name], resolve(name, 4)
    part = resolve(system.spec, 4)
    assert made.name == name
    assert [role.address for role in made.layout(4, None)] == [role.address for role in part.layout(4, None)]
    assert resolve(made.text, 4).text == made.text, "what a result says can be asked for again"


def test_what_is_written_goes_before_what_a_system_is_made_of() -> None:
    assert resolve("tensorflow(size=2)", 4).settings["size"] == 2
    assert resolve("tensorflow(size=2)", 4).settings["count"] == "gradients"
    assert resolve("mxnet over servers(count=2)", 4).servers.count == 2
    assert resolve("nebula", 4).settings["period"] == 32
    shorter = resolve("nebula(period=8)", 4).settings
    assert (shorter["period"], shorter["local"]) == (8, 2)
    with pytest.raises(SpecError, match="no setting 'bound'"):
        resolve("mxnet(bound=2)", 4)


@pytest.mark.parametrize("over", ["servers(count=2)", "hashed(count=2)"])
def test_a_spec_that_says_how_many_servers_there_are_is_not_overruled(over: str) -> None:
    made = resolve(f"bsp over {over}", 4)
    assert len(made.layout(4, None)) == len(made.layout(4, 2)) == 6
    with pytest.raises(PlanError, match="servers=3: .* already says that there are 2"):
        made.layout(4, 3)


LANGER = {
    "bigdl", "caffeonspark", "dpsgd", "distbelief", "easgd", "firecaffe", "gosgd", "mpca", "mxnet", "parameter_server",
    "petuum", "project_adam", "pytorch", "sparknet", "tensorflow", "tree_easgd",
}  # fmt: skip
MAYER = {
    "hogwild", "downpour", "ssp", "dogwild", "essp", "malt", "hogwild++", "geeps", "dynssp", "a_bsp", "crossbow",
    "chainermn", "cntk", "dl4j", "horovod", "singa", "caffe2",
}  # fmt: skip
"""Langer et al. 2020, Table 1; Mayer & Jacobsen 2020, Tables 1 and 3."""


def test_every_name_of_the_surveys_is_known() -> None:
    assert {*STRATEGIES, *SYSTEMS} >= LANGER | MAYER
    for name, told in (("bonawitz", "covey federate"), ("fedavg", "covey federate")):
        with pytest.raises(SpecError, match=told):
            resolve(name, 4)


def test_printed_rows_belong_to_names_that_run() -> None:
    assert set(ROWS) <= set(STRATEGIES)
    assert set(CATEGORIES) <= {*STRATEGIES, *SYSTEMS}


def test_every_name_of_the_surveys_shows_what_its_survey_prints() -> None:
    """All of Langer's table have a row, all of Mayer's first table a category."""
    named = {*ROWS, *SYSTEMS, *CATEGORIES}
    assert {*ROWS, *SYSTEMS} >= LANGER and named >= MAYER


@pytest.mark.parametrize(
    ("spec", "meant"),
    [("bps", "'bsp'"), ("allreduse", "'allreduce'"), ("dpsgd over rign", "'ring'"), ("bsp + topc", "'topk'")],
)
def test_a_misspelt_name_is_told_the_three_nearest(spec: str, meant: str) -> None:
    with pytest.raises(PlanError) as refused:
        resolve(spec, 4)
    said = str(refused.value).splitlines()[-1]
    assert meant in said and 2 <= said.count("'") // 2 <= 4, said
    assert len(said) < 160, "not all sixty"
