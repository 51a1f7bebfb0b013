"""What every policy keeps, and what tells each of them from the others (who gets the slots of a cluster)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.errors import PlanError
from covey.policy.sharing import POLICIES, SharingPolicy, sharing_policy
from covey.policy.sharing.curve_fitting import optimus_curve, samples_to_converge, slaq_curve, speed_model
from covey.policy.sharing.dolphin import StepCost, cheapest, dolphin, fitted
from covey.policy.sharing.flexps import flexps, parse_stages
from covey.policy.sharing.gandiva import gandiva
from covey.policy.sharing.greedy import greedy
from covey.policy.sharing.job_view import JobStage, JobsView, JobView
from covey.policy.sharing.optimus import optimus
from covey.policy.sharing.queues import fair, fifo
from covey.policy.sharing.slaq import gain_of, slaq, slaq_maxmin

LINEAR = ((1, 100.0), (2, 200.0), (4, 400.0), (8, 800.0))
FALLING = tuple((100.0 * k, 1 / (0.5 * k + 1) + 0.1) for k in range(1, 9))
FLAT = tuple((100.0 * k, 0.5 + 1e-6 / k) for k in range(1, 9))


def job(name: str, **known: object) -> JobView:
    return JobView(name, **{"arrived": 0.0, "most": 8, "speeds": LINEAR, "total": 1000.0, **known})  # type: ignore[arg-type]


def cluster(*jobs: JobView, slots: int = 4, **known: object) -> JobsView:
    return JobsView(known.pop("now", 1000.0), slots, jobs, **known)  # type: ignore[arg-type]


@st.composite
def clusters(draw: st.DrawFn) -> JobsView:
    slots = draw(st.integers(1, 8))
    jobs, free = [], slots
    for number in range(draw(st.integers(1, 6))):
        least = draw(st.integers(1, slots))
        most = draw(st.integers(least, slots + 4))
        workers = draw(st.sampled_from([0, least])) if least <= free else 0
        free -= workers
        curve = draw(st.sampled_from([(), FALLING[:3], FALLING, FLAT]))
        speeds = draw(st.sampled_from([(), LINEAR[:1], LINEAR, ((1, 100.0), (2, 90.0), (4, 60.0))]))
        jobs.append(JobView(
            f"job{number}", draw(st.floats(0, 100)), least, most, workers, draw(st.floats(0, 1000)),
            draw(st.floats(0, 800)), draw(st.sampled_from([None, 1000.0])), draw(st.booleans()), curve, speeds,
            keepable=draw(st.booleans()), stages=draw(st.sampled_from([(), (JobStage(0.5, 1), JobStage(1.0, 3))])),
        ))  # fmt: skip
    return cluster(*jobs, slots=slots)


@pytest.mark.parametrize("name", POLICIES)
@given(view=clusters())
@settings(max_examples=25)
def test_no_policy_hands_out_more_than_there_is(name: str, view: JobsView) -> None:
    decided = sharing_policy(name)(view)
    assert decided.used <= view.slots
    for one in view.jobs:
        workers = decided.workers.get(one.name, 0)
        assert workers == 0 or one.least <= workers <= one.most
        assert workers > 0 or not one.held, "it cannot be suspended"
    assert decided == sharing_policy(name)(view)
    assert decided.used > 0 or all(one.least > view.slots for one in view.jobs)


def test_an_unknown_policy_is_answered_with_those_there_are() -> None:
    with pytest.raises(PlanError, match="no policy 'optimum'; did you mean 'optimus'"):
        sharing_policy("optimum")


def test_fifo_gives_the_first_all_that_it_can_use_and_nobody_overtakes() -> None:
    jobs = job("a", most=3), job("b", arrived=1.0, least=2, most=2), job("c", arrived=2.0, most=1)
    assert fifo(cluster(*jobs)).workers == {"a": 3}


def test_fair_gives_equal_shares_and_what_a_job_cannot_use_to_others() -> None:
    assert fair(cluster(job("a"), job("b"), job("c", most=1), slots=7)).workers == {"a": 3, "b": 3, "c": 1}


@pytest.mark.parametrize("policy", ["fair", "gandiva", "dolphin"])
def test_jobs_take_turns(policy: str) -> None:
    """All of 6 jobs run in any 3 slices of 2 slots (Gandiva: unless they are packed, which these lose by)."""
    names = [f"job{number}" for number in range(6)]
    lost = {frozenset(pair): 0.9 for pair in product(names, names) if pair[0] != pair[1]}
    jobs = {name: job(name, most=1, since=float(at) / 10) for at, name in enumerate(names)}
    ran: list[set[str]] = []
    for turn in range(9):
        now = 60.0 * (turn + 1)
        decided = POLICIES[policy](cluster(*jobs.values(), slots=2, now=now, packings=lost))
        ran.append(set(decided.workers))
        for name, one in jobs.items():
            workers = decided.workers.get(name, 0)
            jobs[name] = replace(one, workers=workers, since=one.since if bool(workers) == bool(one.workers) else now)
    assert all(set().union(*ran[turn : turn + 3]) == set(names) for turn in range(7))


def test_whoever_has_waited_longest_comes_next_not_whoever_came_first() -> None:
    ran, waits = job("ran", most=1, arrived=0.0, since=990.0), job("waits", most=1, arrived=50.0, since=950.0)
    assert fair(cluster(ran, waits, slots=1)).workers == {"waits": 1}


def test_the_next_decision_is_due_when_the_first_slice_is_over() -> None:
    jobs = (job("a", workers=1, since=950.0), job("b", workers=1, since=990.0), job("c", since=945.0))
    assert cluster(*jobs, now=1000.0, slice=60.0).next_decision == 1010.0, "who waits has no slice"
    assert cluster(jobs[2], now=1000.0, slice=60.0).next_decision == 1060.0


def test_gandiva_packs_where_it_pays_and_undoes_what_loses() -> None:
    jobs = job("a", most=1, workers=1), job("b", most=1), job("c", least=2, most=2)
    ab = frozenset(("a", "b"))
    tried = gandiva(cluster(*jobs, slots=1))
    assert tried.pairs == {ab} and tried.used == 1 and "c" not in tried.workers
    assert gandiva(cluster(*jobs, slots=1, packings={ab: 1.3})).pairs == {ab}
    assert gandiva(cluster(*jobs, slots=1, packings={ab: 0.9})).pairs == frozenset()
    alone = gandiva(cluster(*jobs[:2], slots=2, packings={ab: 1.3}))
    assert alone.pairs == frozenset() and alone.workers == {"a": 1, "b": 1}, "with room nobody is packed"


def test_gandiva_grows_into_idle_slots_and_shrinks_when_others_come() -> None:
    assert gandiva(cluster(job("a"))).workers == {"a": 4}
    assert gandiva(cluster(job("a", workers=4), job("b"), job("c"), job("d"))).workers == dict.fromkeys("abcd", 1)


def test_optimus_fits_the_curve_and_newer_points_count_more() -> None:
    exact = tuple((float(k), 1 / (0.3 * k + 0.5) + 0.2) for k in range(1, 31))
    b0, b1, b2 = optimus_curve(exact) or (0, 0, 0)
    assert (b0, b1, b2) == pytest.approx((0.3, 0.5, 0.2), rel=0.05)
    bent = tuple((k, loss + (0.6 if k < 10 else 0.0)) for k, loss in exact)  # the first third was worse
    b0, b1, b2 = optimus_curve(bent) or (0, 0, 0)
    errors = [abs(1 / (b0 * k + b1) + b2 - loss) for k, loss in bent]
    assert max(errors[20:]) < 0.08, "0.14 if all points counted the same"
    assert optimus_curve(exact[:3]) is None and samples_to_converge(exact[:3], 0.0) is None


@pytest.mark.parametrize("seed", [2, 3])
def test_optimus_fits_a_noisy_curve_about_as_well_as_the_true_one_does(seed: int) -> None:
    """An error of 1 / loss counts as one of the loss: squared, the fourth power of what is above the floor."""
    chance = Random(seed)

    def error(b0: float, b1: float, b2: float) -> float:
        return sum(4 ** ((k - 1) // 8) * (1 / (b0 * k + b1) + b2 - loss) ** 2 for k, loss in noisy)

    noisy = tuple((float(k), 1 / (0.3 * k + 0.1) + 0.2 + chance.gauss(0, 0.005)) for k in range(1, 25))
    assert error(*(optimus_curve(noisy) or (0, 1, 0))) < 1.2 * error(0.3, 0.1, 0.2)


def test_optimus_knows_when_a_job_will_have_converged() -> None:
    assert (samples_to_converge(FALLING, 800.0) or 0) > 500
    assert samples_to_converge(FLAT, 800.0) == 80.0, "a tenth more, in which it must be seen"


def test_optimus_fits_speeds_between_measured_ones() -> None:
    def speed(workers: int) -> float:
        return 32 * workers / (0.1 + 0.02 * workers)

    model = speed_model(tuple((w, speed(w)) for w in (1, 2, 4, 6, 8)))
    assert [model(w) for w in (3, 5, 12)] == pytest.approx([speed(w) for w in (3, 5, 12)], rel=1e-3)


@pytest.mark.parametrize("slots", range(2, 9))
def test_optimus_equals_brute_force_for_one_job_with_servers_and_workers(slots: int) -> None:
    def seconds(counts: tuple[int, ...]) -> float:
        w, p = counts
        return 100 * (1.0 / w + 0.05 + 0.1 * w / p + 0.01 * p)

    found = greedy({"a": seconds}, {"a": (1, 1)}, {"a": (99, 99)}, slots - 2, (1.0, 1.0))["a"]
    tried = [(w, p) for w in range(1, slots) for p in range(1, slots) if w + p <= slots]
    assert seconds(found) == pytest.approx(min(map(seconds, tried)), rel=0.02)


def test_optimus_gains_fall_along_the_greedy_path() -> None:
    def cost(counts: tuple[int, ...]) -> float:
        return 90 / counts[0] + 0.5 * counts[0]

    path = [greedy({"a": cost}, {"a": (1,)}, {"a": (99,)}, room)["a"] for room in range(20)]
    gains = [cost(before) - cost(after) for before, after in pairwise(path)]
    assert gains == sorted(gains, reverse=True) and path[-1] == (13,), "and it stops where one more costs time"


def test_optimus_gives_workers_to_those_that_they_help_most() -> None:
    slow = ((1, 100.0), (2, 103.0), (4, 104.0))
    both = cluster(job("a"), job("b", speeds=slow), slots=6)
    assert optimus(both).workers == {"a": 5, "b": 1}
    worse = ((1, 100.0), (2, 90.0), (4, 60.0))
    assert optimus(cluster(job("a", speeds=worse), slots=6)).workers == {"a": 1}, "fair would slow it down"
    assert fair(cluster(job("a", speeds=worse), slots=6)).workers == {"a": 6}


def test_optimus_starts_those_first_that_end_soonest() -> None:
    long, short = job("a", total=9000.0), job("b", arrived=1.0, total=900.0)
    assert optimus(cluster(long, short, slots=1)).workers == {"b": 1}


def test_optimus_takes_a_job_that_was_never_measured_for_a_usual_one() -> None:
    """One sample a second would be the guess of nobody, and leave such a job behind all others for ever."""
    long, new = job("a", total=9000.0), job("b", arrived=1.0, total=900.0, speeds=())
    assert optimus(cluster(long, new, slots=1)).workers == {"b": 1}
    assert optimus(cluster(replace(new, name="c"), new, slots=2)).workers == {"b": 1, "c": 1}


def test_slaq_gives_a_converged_job_one_worker_and_a_fresh_one_the_rest() -> None:
    over = tuple((100.0 * k, 0.5 + 0.5**k) for k in range(1, 21))
    old, new = job("old", curve=over, done=2000.0), job("new", curve=FALLING[:4], done=400.0)
    view = cluster(replace(old, total=None), replace(new, total=None), slice=1.0)
    assert slaq(view).workers == {"old": 1, "new": 3}


def test_slaq_follows_both_kinds_of_curves() -> None:
    linear = tuple((float(k), 0.8**k + 0.05) for k in range(1, 15))
    curve = slaq_curve(linear)
    assert curve is not None and curve(20) == pytest.approx(0.8**20 + 0.05, abs=0.02)
    square = tuple((float(k), 1 / (0.1 * k * k + 0.5) + 0.3) for k in range(1, 15))
    curve = slaq_curve(square)
    assert curve is not None and curve(20) == pytest.approx(1 / 40.5 + 0.3, abs=0.01)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("top", [1e49, 1e80, 1e160, 1e308, 1e-120, -1e308])
def test_losses_whose_powers_no_float_holds_are_no_curve(name: str, top: float) -> None:
    points = tuple((float(i), top / 10**i) for i in range(1, 8))
    assert (slaq_curve(points) is None) == (optimus_curve(points) is None) == (top != 1e49)
    one = job("a", curve=points, speeds=((1, 10.0),), total=1e3, converges=True, done=7.0, workers=1, most=2)
    assert POLICIES[name](cluster(one, job("b", speeds=((1, 10.0),)), slots=2)).workers["a"] >= 1


def test_slaq_with_the_least_first_differs_from_the_largest_sum() -> None:
    fast = tuple((100.0 * k, 5 * 0.7**k + 1) for k in range(1, 5))
    slow = tuple((100.0 * k, 5 * 0.99**k + 1) for k in range(1, 5))
    view = cluster(job("fast", curve=fast, done=400.0), job("slow", curve=slow, done=400.0), slots=6, slice=0.1)
    view = replace(view, jobs=tuple(replace(one, total=None) for one in view.jobs))
    total, least = slaq(view).workers, slaq_maxmin(view).workers
    assert total != least
    by_name = {one.name: one for one in view.jobs}

    def gains(workers: dict[str, int]) -> list[float]:
        return [gain_of(by_name[name], view.slice)(count) for name, count in workers.items()]

    assert sum(gains(dict(total))) >= sum(gains(dict(least))) and min(gains(dict(least))) >= min(gains(dict(total)))


def test_slaq_expects_no_gain_from_samples_that_a_job_does_not_have() -> None:
    nearly = job("nearly", curve=FALLING, done=990.0)  # 10 samples are left, a tenth of a second of one worker
    gain, endless = gain_of(nearly, 60.0), gain_of(replace(nearly, total=None), 60.0)
    assert gain(8) == gain(1) < 0.1 * endless(1)


@pytest.mark.parametrize("policy", [slaq, slaq_maxmin])
def test_slaq_suspends_nobody_before_its_slice_is_over(policy: SharingPolicy) -> None:
    """Starting takes time, which a job that is suspended at the next arrival has lost."""
    old, new = job("a", workers=1, since=950.0, curve=FLAT, done=800.0), job("b", arrived=960.0, most=1)
    assert policy(cluster(old, new, slots=1)).workers == {"a": 1}
    assert policy(cluster(replace(old, since=940.0), new, slots=1)).workers == {"b": 1}


def test_dolphin_picks_the_cheapest_of_a_table() -> None:
    cost = StepCost(compute=12.0, traffic=0.5)
    for servers in range(1, 5):
        table = {workers: max(12.0 / workers, 0.5 * workers / servers) for workers in range(1, 9)}
        assert table[cheapest(cost, 8, servers)] == min(table.values())
    assert cheapest(cost, 8, 1) == 5, "more workers would wait for the one server"
    assert cheapest(StepCost(compute=0.0, traffic=0.0), 8, 1) == 1
    chance = Random(0)
    for _ in range(200):
        cost = StepCost(chance.random(), chance.random() ** 4)
        most, servers = chance.randint(1, 60), chance.randint(1, 9)
        every = min(range(1, most + 1), key=lambda workers: (cost.of(workers, servers), workers))
        assert cheapest(cost, most, servers) == every


def test_dolphin_fits_its_costs_and_leaves_slots_that_only_wait() -> None:
    def speed(workers: int) -> float:
        return 1 / max(12.0 / workers, 0.5 * workers)

    one = job("a", speeds=tuple((w, speed(w)) for w in (1, 2, 4, 6, 8)))
    assert fitted(one.speeds, 1) == StepCost(pytest.approx(12.0), pytest.approx(0.5))  # type: ignore[arg-type]
    assert dolphin(cluster(one, slots=8)).workers == {"a": 5}


def test_flexps_gives_each_stage_its_workers() -> None:
    staged = job("a", stages=parse_stages("1@30%, 4@80%, 2"))
    at = {done: flexps(cluster(replace(staged, done=done))).workers["a"] for done in (0.0, 299.0, 300.0, 799.0, 800.0)}
    assert at == {0.0: 1, 299.0: 1, 300.0: 4, 799.0: 4, 800.0: 2}
    assert flexps(cluster(staged, job("b", arrived=1.0))).workers == {"a": 1, "b": 3}


@pytest.mark.parametrize("text", ["", "1@30%", "1@30%, 4@20%, 2", "0@10%, 2", "1, 2", "1@0%, 2", "1@100%, 2", "x"])
def test_stages_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(PlanError, match="--stages"):
        parse_stages(text)
