"""What strategies with one truth do with any codec: gradients pushed or summed, parameters pulled as changes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch

from covey import catalog
from covey.central.server.compensation import Compensation
from covey.central.server.shard import Params
from covey.central.sliced.slice_owners import FreshSlice
from covey.errors import PlanError
from covey.exchange.collectives.compressed import Wire
from covey.exchange.collectives.sums import ring
from covey.exchange.differences import difference_coder
from covey.exchange.two_levels import MachineMeans
from covey.message import Address
from covey.model.flat import Form
from covey.model.replica import Replica
from covey.observe.instruments import Instrument
from covey.program import Node
from covey.servers.pulls import Pulls
from covey.strategy import workers
from covey.vector import Vector
from tests.exchange.plain_codecs import Few, plain_codecs
from tests.worlds import World, alone, mlp, perform, run, server, sgd, slowed, vector, worker


@pytest.fixture(autouse=True)
def codecs() -> Iterator[None]:
    with plain_codecs():
        yield


def weights(world: World) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in world.scored.values()])


def bytes_of(world: World) -> int:
    return sum(sent.size for sent in world.log.sends)


PUSHES = [
    "bsp", "ssp(bound=1)", "asynchronous", "dssp", "quorum(size=2)", "quorum(count=gradients)", "softsync",
    "dc_asgd", "petuum(bound=1)", "essp(bound=1)", "a_bsp", "specsync", "downpour(push=2, fetch=3, server=task)",
    "sliced", "p3(slice=10)", "tictac", "bytescheduler(partition=80, credit=100)", "staggered",
]  # fmt: skip


ALIKE = {"dssp", "quorum(size=2)", "softsync", "specsync", "tictac", "staggered", "ssp(bound=1)"}
"""Whose way of sending is another's; tried in full."""


@pytest.mark.parametrize("strategy", [pytest.param(s, marks=pytest.mark.full if s in ALIKE else ()) for s in PUSHES])
def test_an_exact_codec_changes_nothing_either_way(strategy: str) -> None:
    task = mlp(sgd(momentum=0.5), samples=97)
    plain = run(task, strategy, 3, steps=6)
    coded = run(task, f"{strategy} + exact + pull", 3, steps=6)
    assert torch.allclose(weights(plain), weights(coded), rtol=0, atol=1e-12)
    assert bytes_of(coded) == bytes_of(plain)


QUICK = {"bsp", "petuum(bound=1)", "sliced", "p3(slice=10)", "downpour(push=2, fetch=3, server=task)"}


@pytest.mark.parametrize("strategy", [pytest.param(s, marks=() if s in QUICK else pytest.mark.full) for s in PUSHES])
def test_a_tenth_of_the_numbers_is_few_bytes(strategy: str) -> None:
    """A sixth, as each travels with its place, 4 bytes to its 8; the first parameters come whole."""
    plain, push, both = (run(mlp(), strategy + codec, 3, steps=12) for codec in ("", " + few", " + few + pull"))
    assert bytes_of(both) < 0.33 * bytes_of(plain)
    assert bytes_of(both) < bytes_of(push) < 0.8 * bytes_of(plain)
    assert (weights(both) - weights(plain)).abs().max() < 0.2


TAILLESS, TAILS = ("", " + exact"), (" + exact + pull", " + few + pull")


@pytest.mark.parametrize("layout", ["servers(count=2)", "colocated", "hashed(count=2)", "proxies"])
def test_wherever_servers_live(layout: str) -> None:
    plain, coded, few = (run(mlp(), f"bsp{tail} over {layout}", 3, steps=8) for tail in ("", *TAILS))
    assert torch.allclose(weights(plain), weights(coded), rtol=0, atol=1e-12)
    assert bytes_of(few) < 0.4 * bytes_of(plain)


def test_vap_sends_changes_on_as_they_came() -> None:
    plain, coded = (run(mlp(samples=97), f"vap{codec}", 3, steps=9) for codec in ("", " + exact"))
    assert torch.allclose(weights(plain), weights(coded), rtol=0, atol=1e-12)
    few = run(mlp(samples=97), "vap + few", 3, steps=9)
    assert bytes_of(few) < 0.2 * bytes_of(plain)
    for rank in range(3):
        assert torch.allclose(few.flat(worker(rank)), few.flat(Address("server", 0))), (
            "everybody applies what travelled"
        )


# -- sums --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["exact", "exact(adds=true)"])
def test_allreduce_is_one_large_batch_and_unequal_ones_count_by_their_samples(codec: str) -> None:
    """Of 97 samples the last batches of an epoch have 1 sample and none: together all are a batch of the whole."""
    task = mlp(samples=97)
    world, plain = (run(task, f"allreduce{tail}", 4, epochs=3) for tail in (f" + {codec}", ""))
    assert torch.allclose(weights(world), weights(plain), rtol=0, atol=1e-12)
    whole = alone(mlp(samples=96), 3, 32)
    full = run(mlp(samples=96), f"allreduce + {codec}", 4, steps=3)
    assert all(torch.allclose(full.scored[name], value, atol=1e-12) for name, value in whole.items())
    assert bool(world.log.kinds(Wire)) == (codec == "exact")


def test_replicas_stay_the_same_to_the_bit() -> None:
    world = run(mlp(samples=97), "allreduce + few", 4, steps=12)
    assert all(torch.equal(world.flat(worker(0)), world.flat(worker(rank))) for rank in range(1, 4))
    wires = world.log.kinds(Wire)
    assert len(wires) == 12 * 4 * 3 and {sent.size for sent in wires} == {8 * (4 + 8)}


def test_between_machines_go_the_largest_of_their_sums() -> None:
    """HiTopKComm (Shi et al. 2021): not of each worker's gradient, whose largest may cancel inside a machine."""
    slopes = torch.zeros(4, 8, dtype=torch.float64)
    slopes[0, 1], slopes[1, 1] = 9.0, -9.0  # the largest of both workers of a machine, and nothing together
    slopes[:2, 2], slopes[2, 5], slopes[3, 6] = 2.0, 4.0, 3.0
    found: dict[int, torch.Tensor] = {}

    async def program(node: Node, replica: Replica) -> None:
        means = MachineMeans(node, Few(density=0.25).codec(), 2)  # one of the four numbers of each slice
        mean = await means.mean(Vector([slopes[node.rank].clone()]), workers(4), ring)
        found[node.rank] = mean.parts[0]

    log = perform(*[program] * 4)
    assert all(mean.tolist() == [0, 0, 1, 0, 0, 1, 0, 0] for mean in found.values())
    assert sum(sent.size for sent in log.kinds(Wire)) == 4 * (4 + 8), "between machines: one number of each worker"


@pytest.mark.parametrize("samples", [97, 99])
def test_allreduce_on_two_levels(samples: int) -> None:
    """Also in a last step of one worker, or of three, which make no machines of two."""
    task = mlp(samples=samples)
    plain, coded = (run(task, f"allreduce(pattern=hierarchical){tail}", 4, epochs=1) for tail in TAILLESS)
    assert torch.allclose(weights(plain), weights(coded), rtol=0, atol=1e-12)


def test_statistics_are_the_mean_of_all_in_full() -> None:
    def normed() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3)).double()

    plain, coded = (run(mlp(model=normed), f"allreduce{tail}", 3, steps=4) for tail in ("", " + exact"))
    assert torch.allclose(plain.scored["1.running_mean"], coded.scored["1.running_mean"], atol=1e-12)
    few = run(mlp(model=normed), "allreduce + few(density=0.02)", 3, steps=4)
    assert not torch.equal(few.scored["1.running_var"], torch.ones(8, dtype=torch.float64)), "they travelled"


# -- pulls -------------------------------------------------------------------------------------------------------------


class Copies(Instrument):
    """The server's shadow of what workers have, and what they have, whenever a worker begins to compute."""

    def __init__(self) -> None:
        self.replicas: dict[Address, Replica] = {}
        self.seen: list[torch.Tensor] = []

    def computed(self, begin: float, end: float, who: Address) -> None:
        self.seen.append(self.replicas[who].flat.parts[0].clone())


def test_workers_have_the_servers_shadow_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """And all the same one, after every pull; with a tenth of the numbers that is not what the server has."""
    shadows, copies = list[torch.Tensor](), Copies()
    give = Pulls.give

    def watched(self: Pulls, rank: int, params: Vector, version: int) -> object:
        given = give(self, rank, params, version)
        shadows.append(self.of(rank, params).parts[0].clone())
        return given

    monkeypatch.setattr(Pulls, "give", watched)
    world = run(mlp(), "bsp + few + pull", 3, steps=8, watch=[copies], before=copies.replicas.update)
    assert len(copies.seen) == 24 and len(shadows) == 24
    assert all(torch.equal(seen, shadow) for seen, shadow in zip(copies.seen, shadows, strict=True))
    assert not torch.allclose(copies.seen[-1], world.flat(Address("server", 0)))


def test_a_delay_is_measured_from_what_its_worker_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not from what the server has: the two differ by what the codec left out."""
    given, copies = list[torch.Tensor](), Copies()
    gave = Compensation.gave

    def watched(self: Compensation, rank: int, params: Vector) -> None:
        gave(self, rank, params)
        given.append(self.given[rank].parts[0])

    monkeypatch.setattr(Compensation, "gave", watched)
    run(mlp(), "dc_asgd + few + pull", 1, steps=6, watch=[copies], before=copies.replicas.update)
    assert len(given) == 6 and all(torch.equal(*pair) for pair in zip(given, copies.seen, strict=True))


def test_workers_in_step_share_one_shadow_and_one_wire() -> None:
    def pulled(strategy: str) -> list[Params]:
        world = run(mlp(), f"{strategy} + few + pull", 3, steps=6, cluster=slowed(w2=3))
        return [sent.message for sent in world.log.kinds(Params) if isinstance(sent.message, Params)]

    in_step, apart = pulled("bsp"), pulled("asynchronous")
    assert [params.whole for params in in_step] == [1] * 3 + [0] * 15
    for first in range(3, 18, 3):
        assert len({params.params.parts[1].data_ptr() for params in in_step[first : first + 3]}) == 1
    assert [params.whole for params in apart[:3]] == [1] * 3 and not any(params.whole for params in apart[3:])
    assert len({params.params.parts[1].data_ptr() for params in apart[3:]}) == 15, "each has seen something else"


def test_shadows_survive_a_restart() -> None:
    """What the server remembers is all it needs: it goes on as if nothing had been."""
    goals = [vector(*(float(n * k) for n in range(10))) for k in range(1, 7)]

    def told(*incarnations: range) -> list[torch.Tensor]:
        kept: dict[Any, Any] = {}
        wires = list[torch.Tensor]()

        async def serve(incarnation: range, node: Node, replica: Replica) -> None:
            form = Form.plain(goals[0])
            pulls = Pulls(node, form, Few(density=0.2).codec(), together=False)
            pulls.shadows.kept.update(kept)
            for number in incarnation:
                wires.append(torch.cat([part.double() for part in pulls.give(1, goals[number], number).wire.parts]))
            kept.update(pulls.shadows.kept)
            assert difference_coder(node, form, Few().codec()).total is None

        for incarnation in incarnations:
            perform(partial(serve, incarnation))
        return wires

    without, restarted = told(range(6)), told(range(3), range(3, 6))
    assert len(without) == 6 and all(torch.equal(one, other) for one, other in zip(without, restarted, strict=True))


def test_owners_compute_on_what_the_others_have_of_their_slice() -> None:
    """Seide et al. 2014: an owner gives its slice out encoded, with its own residual, and all replicas are the same."""
    copies = Copies()
    world = run(mlp(), "sliced + few + pull", 3, steps=8, watch=[copies], before=copies.replicas.update)
    for first in range(0, 24, 3):
        begun = copies.seen[first : first + 3]
        assert all(torch.equal(begun[0], other) for other in begun[1:])
    assert not torch.allclose(copies.seen[-1], weights(world)), "the truth, which is scored, is another"
    fresh = [sent.message for sent in world.log.kinds(FreshSlice) if isinstance(sent.message, FreshSlice)]
    assert [one.whole for one in fresh[:6]] == [1] * 6 and not any(one.whole for one in fresh[6:])


@pytest.mark.parametrize("name", ["petuum", "essp"])
def test_a_copy_that_is_read_no_more_holds_what_the_server_made_of_its_changes(name: str) -> None:
    world = run(mlp(), f"{name}(bound=100) + few", 1, steps=6)
    assert torch.allclose(world.flat(worker(0)), world.flat(server(0)), rtol=0, atol=1e-12)


# -- what has no meaning -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("gradient_coding + few", "needs exact numbers; codecs go with bsp, ssp"),
        ("firecaffe + few", "nobody but the root could decode; use allreduce\\(pattern=binomial\\)"),
        ("poseidon + few", "to the bit; use allreduce"),
        ("sandblaster + few", "searches along a line"),
        ("bosen + few", "petuum is it without rows"),
        ("bigdl + few", "sliced is it with any codec"),
        ("hogwild(momentum=drop) + few", "memory that all share"),
        ("dogwild + few", "loses blocks on the way"),
        ("allreduce(pattern=halving) + few", "goes around a ring to all: omit pattern"),
        ("allreduce(bucket=4MB) + few", "so bucket=0"),
        ("allreduce(pattern=hierarchical, local=0) + few", "say how many neighbouring workers are a machine"),
        ("allreduce(pattern=auto) + fp16", "so name the pattern"),
        ("downpour(filter=significance) + few", "use one of them"),
        ("value_bound + few + pull", "omit pull"),
        ("allreduce + few + pull", "encoded anyway; pull goes with bsp, ssp"),
        ("firecaffe + pull", "pull goes with bsp"),
        ("bsp + pull", "say a codec too, such as '\\+ int8 \\+ pull'"),
        ("bsp + few + pull(now=1)", "pull has no settings"),
        ("bsp + few + pull + pull", "stands once"),
        ("bsp + dgc + pull", "use a codec without it"),
    ],
)
def test_what_has_no_meaning_is_refused_with_what_would_work(spec: str, why: str) -> None:
    with pytest.raises(PlanError, match=why):
        catalog.resolve(spec, 4)


def test_the_text_of_a_strategy_says_its_codec_and_its_pull() -> None:
    text = catalog.resolve("ssp(bound=2) + few(density=0.2) + pull over servers(count=2)", 4).text
    assert text == "ssp(bound=2, weight=0.25) + few(density=0.2) + pull over servers(count=2)"
    assert catalog.resolve(text, 4).text == text


def test_every_strategy_takes_codecs_or_says_why_not() -> None:
    for name, entry in catalog.STRATEGIES.items():
        assert bool(entry.codecs) != bool(entry.plain), name


def test_a_codec_that_looks_at_shapes_gets_whole_parameters() -> None:
    world = run(mlp(), "bsp + powersgd(rank=1) over servers(count=2)", 2, steps=2)
    pieces = {who: replica.trained for who, replica in world.replicas.items() if who.role == "server"}
    assert sorted(pieces.values()) == [((0, 48),), ((48, 83),)], "a weight, the rest"
    with pytest.raises(PlanError, match="looks at whole parameters, and there are only 4 for 5 owners"):
        run(mlp(), "bsp + powersgd(rank=1) over servers(count=5)", 2, steps=2)
