"""The planner against brute force, its formula against numbers by hand, and what it refuses."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.errors import PlanError
from covey.parallelism import Cut, CutTerms, LayerCost, Profile, Schedule, best_cut, equal_cut, predict
from covey.parallelism.plan.cut import least_memory
from covey.parallelism.plan.terms import memories
from covey.simulate import parse_size

small = st.integers(0, 16)


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    layers = draw(st.integers(1, 6))
    return Profile(
        tuple(
            LayerCost(
                forward=draw(small), backward=draw(small), weights=draw(small) * 12, fixed=draw(small),
                kept=draw(small), sends=draw(small) * 4, returns=draw(small) * 4,
                cuttable=draw(st.sampled_from([True, True, True, False])),
            )
            for _ in range(layers)
        ),
        inputs=draw(small), state=draw(st.sampled_from([0, 1, 2])),
    )  # fmt: skip


@st.composite
def requests(draw: st.DrawFn, layers: int) -> CutTerms:
    name = draw(st.sampled_from(["plain", "gpipe", "1f1b", "pipedream", "vertical", "2bw"]))
    stages = draw(st.one_of(st.none(), st.integers(1, min(4, layers))))
    extra = 0 if name in ("plain", "vertical") else draw(st.integers(0, 2))
    if stages is None:
        machines = draw(st.integers(1, 1 if name in ("plain", "vertical") else 4))
    else:
        machines = stages + extra
    schedule = Schedule(
        name=name.replace("vertical", "pipedream"), vertical=name == "vertical", recompute=draw(st.booleans()),
        microbatches=max(draw(st.sampled_from([1, 4, 8])), machines if name == "2bw" else 1),
    )  # fmt: skip
    memory = draw(st.one_of(st.just(math.inf), st.integers(50, 2000)))
    bandwidth = draw(st.sampled_from([1.0, 2.0, 16.0, math.inf]))
    return CutTerms(stages=stages, machines=machines, schedule=schedule, memory=memory, bandwidth=bandwidth)


def all_cuts(profile: Profile, terms: CutTerms) -> Iterator[Cut]:
    places = [k for k in range(len(profile) - 1) if profile.layers[k].cuttable]
    counts = [terms.stages] if terms.stages else range(1, len(profile) + 1)
    totals = [terms.machines] if terms.stages else range(1, (terms.machines or 1) + 1)
    for stages in counts:
        for after in combinations(places, stages - 1):
            for total in totals:
                for ends in combinations(range(1, total or 1), stages - 1):
                    borders = [0, *ends, total or 1]
                    yield Cut(after, tuple(b - a for a, b in pairwise(borders)))


def price(profile: Profile, terms: CutTerms, cut: Cut) -> tuple[float, float, int]:
    """Bottleneck, machines, traffic; written out anew, from the rows of the timetable and the formula of the paper."""
    if max(memories(profile, cut, terms.schedule)) > terms.memory:
        return math.inf, 0, 0
    slowest, traffic = 0.0, 0
    for (first, last), m in zip(cut.parts(len(profile)), cut.machines, strict=True):
        layers = profile.layers[first : last + 1]
        compute = sum(layer.forward + layer.backward for layer in layers)
        summing = 2 * (m - 1) / m * sum(layer.weights for layer in layers) / terms.bandwidth
        each = m if terms.schedule.name in ("plain", "pipedream") else terms.schedule.microbatches
        slowest = max(slowest, compute / m, summing / each)
        if last < len(profile) - 1:
            crossing = layers[-1].sends + layers[-1].returns
            slowest, traffic = max(slowest, crossing / terms.bandwidth), traffic + crossing
    if terms.schedule.name == "plain":
        return 0.0, 0, traffic
    return slowest, sum(cut.machines) if terms.stages is None else 0, traffic


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_the_planner_finds_what_brute_force_finds(data: st.DataObject) -> None:
    profile = data.draw(profiles())
    terms = data.draw(requests(len(profile)))
    cuts = list(all_cuts(profile, terms))
    best = min((price(profile, terms, cut) for cut in cuts), default=(math.inf, 0, 0))
    if best[0] == math.inf:
        with pytest.raises(PlanError, match="no cut into|too few"):
            best_cut(profile, terms)
        if cuts and terms.stages is not None:
            needs = min(max(memories(profile, cut, terms.schedule)) for cut in cuts)
            assert least_memory(profile, terms) == needs > terms.memory, "the message says by how much"
    else:
        found = best_cut(profile, terms)
        assert found in [Cut(c.after, c.machines, found.slowest) for c in cuts]
        mine = price(profile, terms, found)
        assert mine[:2] == pytest.approx(best[:2], rel=1e-12)
        if mine[0] == best[0]:  # 1/3 + 1/3 + 1/3: at equal pace the least traffic
            assert mine[2] == best[2]


def chain(*costs: float, sends: int = 0, weights: int = 0, kept: int = 0) -> Profile:
    layer = {"sends": sends, "returns": sends, "weights": weights, "kept": kept}
    return Profile(tuple(LayerCost(name=f"l{k}", forward=c, backward=0, **layer) for k, c in enumerate(costs)))


def test_the_slowest_stage_decides() -> None:
    profile = chain(1, 1, 1, 9, 1, 1)
    found = best_cut(profile, CutTerms(stages=3))
    assert found == Cut((2, 3), (1, 1, 1), 9)
    assert equal_cut(profile, 3).after == (1, 3)
    assert equal_cut(chain(1, 1, 1, 1, 1), 2).after == (1,)
    assert equal_cut(chain(1, 1, 1), 3, machines=5) == Cut((0, 1), (2, 2, 1)), "one layer for each part"
    with pytest.raises(PlanError, match="can be cut in 2 places, too few for 4 parts"):
        equal_cut(chain(1, 1, 1), 4)


def test_machines_go_to_the_slowest_stage_while_summing_gradients_is_cheap() -> None:
    fast = CutTerms(stages=2, machines=4, schedule=Schedule(name="pipedream"))
    assert best_cut(chain(9, 3, weights=4), fast) == Cut((0,), (3, 1), 3)
    # with 1 byte a second 3 machines need 2 * 2/3 * 60 = 80 s to sum, for 3 batches: more than the 9 s of one
    slow = CutTerms(stages=2, machines=4, schedule=Schedule(name="pipedream"), bandwidth=1)
    dear = Profile((LayerCost(forward=9, weights=60), LayerCost(forward=3)))
    assert best_cut(dear, slow) == Cut((0,), (1, 3), 9)
    assert best_cut(chain(9, 3, weights=4), CutTerms(stages=None, machines=4)).machines == (4,)  # all data parallel


def test_machines_that_take_batches_in_turn_sum_once_for_all_of_them() -> None:
    """3 machines sum for 2 * 2/3 * 4 s, once for 3 batches: less than the 3 s that each of these is computed."""
    terms = CutTerms(stages=2, machines=4, schedule=Schedule(name="pipedream"), bandwidth=1)
    assert best_cut(Profile((LayerCost(forward=9, weights=4), LayerCost(forward=3))), terms) == Cut((0,), (3, 1), 3)
    alone = CutTerms(stages=1, machines=3, schedule=Schedule(name="pipedream"), bandwidth=2)
    assert best_cut(chain(9, weights=60), alone).slowest == pytest.approx(40 / 3)


def test_a_dear_link_is_not_cut() -> None:
    layers = [LayerCost(forward=4, sends=s, returns=s) for s in (100, 1, 100, 0)]
    assert best_cut(Profile(tuple(layers)), CutTerms(stages=2, bandwidth=10)).after == (1,)


def test_plain_is_cut_where_traffic_is_least() -> None:
    layers = [LayerCost(forward=f, sends=s) for f, s in ((8, 5), (1, 2), (1, 1), (1, 0))]
    terms = CutTerms(stages=2, schedule=Schedule(name="plain"))
    assert best_cut(Profile(tuple(layers)), terms).after == (2,)
    assert best_cut(Profile(tuple(layers)), CutTerms(stages=2)).after == (0,)


def test_memory_moves_the_cut_and_depends_on_the_timetable() -> None:
    profile = chain(1, 1, 1, 1, kept=10)
    two = Schedule(microbatches=8)
    assert best_cut(profile, CutTerms(stages=2, schedule=two)).after == (1,)
    # 1f1b: 2 in flight on stage 0, 1 on stage 1: 40 and 20 bytes
    assert best_cut(profile, CutTerms(stages=2, schedule=two, memory=30)).after == (0,)
    with pytest.raises(PlanError, match="needs at least 30 B, 5 B more. What would do: recompute.*30 B of memory"):
        best_cut(profile, CutTerms(stages=2, schedule=two, memory=25))
    gpipe = CutTerms(stages=2, schedule=Schedule(name="gpipe", microbatches=8), memory=60)
    with pytest.raises(PlanError, match="under gpipe: .* at least 160 B, 100 B more. .*the timetable 1f1b"):
        best_cut(profile, gpipe)
    with pytest.raises(PlanError, match="more. What would do: 3 stages"):
        best_cut(chain(1, 1, 1, weights=10), CutTerms(stages=2, memory=20))


@pytest.mark.parametrize("kept", [14_012, 1_000_400, 12_320_000])
def test_the_memory_that_is_advised_is_enough(kept: int) -> None:
    profile = chain(1, 1, kept=kept)
    with pytest.raises(PlanError) as refused:
        best_cut(profile, CutTerms(stages=2, memory=10))
    advised = str(refused.value).removesuffix(" of memory").rpartition(": ")[2].rpartition(", ")[2]
    assert best_cut(profile, CutTerms(stages=2, memory=parse_size(advised))).after == (0,), advised


def test_interleaved_is_cut_into_chunks_and_held_against_the_limit() -> None:
    profile = chain(1, 1, 1, 1, 1, 1, 1, 1, kept=10)
    plan = Schedule(name="interleaved", microbatches=4, chunks=2)
    terms = CutTerms(stages=2, schedule=plan)
    assert best_cut(profile, terms) == Cut((1, 3, 5), (1, 1, 1, 1), 2)
    assert max(memories(profile, best_cut(profile, terms), plan)) == 100  # 5 chunks of 20 bytes in flight
    with pytest.raises(PlanError, match="at least 100 B, 10 B more"):
        best_cut(profile, CutTerms(stages=2, schedule=plan, memory=90))
    one, two = (
        predict(profile, best_cut(profile, t), t)
        for t in (CutTerms(stages=2, schedule=Schedule(microbatches=4)), terms)
    )
    assert two.step < one.step and two.bubble == 1 / 9 and one.bubble == 1 / 5


def test_what_cannot_be_cut_says_so() -> None:
    with pytest.raises(PlanError, match="into 2 parts at most, not 3"):
        best_cut(chain(1, 1), CutTerms(stages=3))
    stuck = Profile((LayerCost(cuttable=False), LayerCost(), LayerCost(cuttable=False), LayerCost()))
    with pytest.raises(PlanError, match="in 1 places, too few for 3 parts"):
        best_cut(stuck, CutTerms(stages=3))
    with pytest.raises(PlanError, match="2 stages need 2 machines"):
        best_cut(chain(1, 1), CutTerms(stages=2, machines=1))
    with pytest.raises(PlanError, match="number of stages, or of machines"):
        best_cut(chain(1, 1), CutTerms(stages=None))


def test_predictions() -> None:
    profile = chain(2, 2, sends=10, weights=100, kept=7)
    sure = CutTerms(stages=2, schedule=Schedule(microbatches=4))
    found = predict(profile, best_cut(profile, sure), sure)
    assert (found.step, found.bubble) == (10, 1 / 5)  # (m + p - 1) * 2
    assert [stage.memory for stage in found.stages] == [214, 217]  # 2 * 7 in flight; 7 and the 10 that it takes
    assert found.traffic == 4 * 20 and found.memory == 217
    again = predict(profile, found.cut, CutTerms(stages=2, schedule=Schedule(microbatches=4, recompute=True)))
    assert again.step > found.step and [stage.memory for stage in again.stages] == [207, 217]
    endless = CutTerms(stages=2, schedule=Schedule(name="pipedream"))
    steady = predict(profile, found.cut, endless)
    assert (steady.step, steady.bubble) == (2, 0) and [stage.versions for stage in steady.stages] == [2, 1]
    assert steady.traffic == 20, "a batch that is not divided crosses the cut once"
    shared = CutTerms(stages=2, machines=3, schedule=Schedule(name="pipedream"))
    assert predict(chain(4, 2), best_cut(chain(4, 2), shared), shared).step == 2
    slow = CutTerms(stages=2, schedule=Schedule(microbatches=4), bandwidth=1)
    assert predict(profile, found.cut, slow).step > 40  # 4 messages of 10 s ahead
