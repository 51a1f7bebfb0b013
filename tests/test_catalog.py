"""The table of names: every entry can be made, says where it stands, and refuses what cannot work."""

from __future__ import annotations

import pytest

from covey import catalog
from covey.catalog import STRATEGIES, resolve
from covey.errors import PlanError
from covey.spec import SpecError, parse
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
    assert strategy.scored and strategy.rate and strategy.samples
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
        ("bsp over ring", "'over' goes with .*dpsgd"),
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


LEAVES_BEHIND = ("quorum",)  # others go on without a slow worker


@every
def test_who_waits_must_stop_together(name: str) -> None:
    strategy = resolve(name, 4)
    waits = strategy.taxonomy.scheduling in ("synchronous", "bounded") and name not in LEAVES_BEHIND
    assert strategy.lockstep == waits
