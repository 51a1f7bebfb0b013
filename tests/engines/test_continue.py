"""A worker that is lost is restarted in its place, whichever of its effects it is killed at (virtual time)."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

import covey
from covey.engines.virtual.virtual_membership import STARTING
from covey.errors import PeerLost
from covey.membership import Deaths
from covey.message import Address, Message
from covey.model import build
from covey.observe.instruments import Instrument
from covey.servers.common_states import enter
from covey.simulate import Cluster
from tests.killing import STEPS, Finished
from tests.worlds import CLUSTER, INSTANT, cloud, mlp, run, server, sgd, worker

FAMILIES = [
    ("ssp(bound=1)", 2), ("asynchronous", 2), ("dssp", 2), ("quorum", 2), ("softsync", 2), ("dc_asgd", 2),
    ("petuum(bound=1)", 2), ("essp(bound=1)", 2), ("downpour", 2), ("downpour(push=2, fetch=2)", 2),
    ("asynchronous(epoch=0.5)", 1), ("ssp + topk(density=0.2)", 2),
    ("easgd(period=2)", None), ("eamsgd(period=1)", None), ("gosgd(probability=0.5)", None),
    ("adpsgd", None), ("tree_easgd(fanout=2, up=1, down=2)", None),
    ("dpsgd", None), ("sgp", None), ("sgp(overlap=1)", None), ("malt", None), ("malt(bound=2)", None),
    ("malt(share=model, barrier=true)", None),
    ("diloco(period=3)", None), ("local_sgd(period=3, momentum=keep)", None),
]  # fmt: skip
SERVERS_STEP = ("bsp", "ssp", "asynchronous", "dssp", "quorum", "softsync", "dc_asgd")  # and their workers do not


def dropout() -> Any:
    """A task whose gradient is up to chance, too."""
    return mlp(model=lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 3)).double())


@pytest.mark.parametrize(("servers", "victim", "cluster"), [(1, 0, CLUSTER), (2, 2, INSTANT)])
def test_bsp_ends_with_the_weights_of_a_run_that_lost_nobody(servers: int, victim: int, cluster: Cluster) -> None:
    """To the bit, wherever a worker is killed: a gradient that came to one server only is completed, never doubled.

    On a slow network what the dead has sent is lost; on an instant one it has arrived.
    """
    task = dropout()
    rigid = run(task, "bsp", 3, steps=STEPS, servers=servers)
    whole = Finished("bsp", servers=servers, task=task, victim=worker(victim), cluster=cluster)
    assert whole.equals(rigid.scored) and whole.outcome.samples == rigid.outcome.samples and whole.effects > 20
    for at in range(whole.effects):
        found = Finished("bsp", [at], servers=servers, task=task, victim=worker(victim), cluster=cluster)
        assert found.equals(rigid.scored), f"killed at effect {at}"
        assert found.outcome.samples == rigid.outcome.samples and len(found.outcome.membership) == 1
        assert sum(tally.updates for tally in found.outcome.tallies.values()) == STEPS


@pytest.mark.full
def test_bsp_keeps_its_weights_through_deaths_of_deaths() -> None:
    """A new incarnation is killed again soon after it began, at every effect of a step."""
    rigid = run(mlp(sgd(momentum=0.9)), "bsp", 3, steps=STEPS, servers=2)
    for first in range(8, 20):
        for later in range(1, 12, 2):
            found = Finished("bsp", [first, first + later], servers=2, cluster=INSTANT)
            assert found.equals(rigid.scored), f"killed at effects {first} and {first + later}"
            assert found.outcome.samples == rigid.outcome.samples and len(found.outcome.membership) == 2


@pytest.mark.parametrize(
    ("strategy", "workers", "victim", "cluster"),
    [
        ("allreduce", 3, 0, INSTANT), ("allreduce", 3, 1, CLUSTER), ("bmuf(period=3)", 3, 0, CLUSTER),
        ("local_sgd(period=2, momentum=reset)", 3, 1, CLUSTER),
        ("local_sgd(period=2, momentum=average)", 3, 2, INSTANT),
        *(
            pytest.param(f"allreduce(pattern={pattern})", workers, 1, CLUSTER, marks=pytest.mark.full)
            for pattern, workers in [
                ("star", 3), ("binomial", 4), ("scatter", 3), ("halving", 4), ("hierarchical", 4), ("chain", 3),
                ("bruck", 3), ("butterfly", 4), ("doubling", 4),
            ]
        ),
    ],
)  # fmt: skip
def test_global_sums_end_with_the_weights_of_a_run_that_lost_nobody(
    strategy: str, workers: int, victim: int, cluster: Cluster
) -> None:
    """To the bit, wherever a worker is killed: a sum that some have and some have not is taken over, never doubled."""
    task = mlp(sgd(momentum=0.9), model=dropout().model)
    rigid = run(task, strategy, workers, steps=STEPS)
    whole = Finished(strategy, task=task, workers=workers, victim=worker(victim), cluster=cluster)
    assert whole.equals(rigid.scored) and whole.outcome.samples == rigid.outcome.samples and whole.effects > 20
    for at in range(whole.effects):
        found = Finished(strategy, [at], task=task, workers=workers, victim=worker(victim), cluster=cluster)
        assert found.equals(rigid.scored), f"killed at effect {at}"
        assert found.outcome.samples == rigid.outcome.samples and len(found.outcome.membership) == 1


@pytest.mark.parametrize("every", [17, pytest.param(3, marks=pytest.mark.full)])
@pytest.mark.parametrize("strategy", ["allreduce", "bmuf(period=3)"])
def test_global_sums_go_on_when_two_workers_are_lost_at_once_or_one_while_all_meet(strategy: str, every: int) -> None:
    task = mlp(sgd())
    rigid = run(task, strategy, 3, steps=STEPS)
    for first in range(2, 40, every):
        for second in range(first - 2, first + 14, every // 2):
            found = Finished(strategy, [first], task=task, also={worker(2): [max(0, second)]})
            assert found.equals(rigid.scored), f"killed at effects {first} and {second}"
            again = Finished(strategy, [first, first + 1 + second % 7], task=task)
            assert again.equals(rigid.scored), f"killed at effects {first} and {first + 1 + second % 7}"


def test_when_all_workers_are_lost_at_once_the_run_cannot_go_on() -> None:
    with pytest.raises(PeerLost, match="worker . was lost, and no other worker had the model"):
        Finished("allreduce", [9], also={worker(0): [9], worker(2): [9]}, cluster=INSTANT)


class Nobody:
    """All others have ended."""

    async def enter(self, replica: object) -> bool:
        return False


def test_a_run_that_loses_worker_0_after_all_others_have_ended_ends() -> None:
    def entered(rank: int) -> Any:
        node: Any = SimpleNamespace(rank=rank, address=worker(rank))
        with pytest.raises(StopIteration) as ended:
            enter(node, cast(Any, None), cast(Any, Nobody())).send(None)
        return ended.value.value

    assert entered(1) is False
    with pytest.raises(PeerLost, match="worker 0 was lost after all others had ended, and with it the model"):
        entered(0)


def test_workers_with_shorter_budgets_leave_only_when_nobody_needs_them() -> None:
    """Samples do not divide evenly: two workers end a step earlier than the other, which may still lack its sum."""
    task = mlp(sgd(momentum=0.9), samples=49)
    for strategy in ("allreduce", "bmuf(period=2)"):
        rigid = run(task, strategy, 3, epochs=1)
        whole = Finished(strategy, task=task, steps=None, epochs=1)
        assert whole.equals(rigid.scored)
        for at in range(whole.effects // 3, whole.effects):
            found = Finished(strategy, [at], task=task, steps=None, epochs=1)
            assert found.equals(rigid.scored), f"{strategy} killed at effect {at}"
            assert found.outcome.samples == rigid.outcome.samples


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize(("strategy", "servers"), FAMILIES)
def test_every_strategy_that_goes_on_does_so_wherever_a_worker_is_killed(
    strategy: str, servers: int | None, every: int
) -> None:
    given = {"servers": servers} if servers else {}
    whole = Finished(strategy, **given)
    for at in range(every // 2, whole.effects, every):
        found = Finished(strategy, [at], **given)
        assert len(found.outcome.membership) == 1 and all(t.isfinite().all() for t in found.weights.values())
        if "epoch" not in strategy:  # which samples of an epoch are skipped is up to the order of events
            assert found.outcome.samples == whole.outcome.samples, f"killed at effect {at}"


def normed(**more: Any) -> Any:
    """Statistics of inputs that are far from where statistics begin."""
    x, y = cloud(128)
    model = lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3)).double()  # noqa: E731
    return mlp(model=model, data=(x + 20, y), **more)


@pytest.mark.parametrize(("strategy", "servers"), [("bsp", 2), *FAMILIES])
def test_a_new_incarnation_goes_on_with_the_statistics_and_the_schedule_of_the_others(
    strategy: str, servers: int | None
) -> None:
    """Killed shortly before its end: it has others' running means and, if it steps itself, their progress."""
    given = {"steps": 8, **({"servers": servers} if servers else {})}
    task = normed(rate=lambda progress: 1 - progress / 2)
    whole = Finished(strategy, task=task, **given)
    found = Finished(strategy, [whole.effects - 12], task=task, **given)
    assert len(found.outcome.membership) == 1
    means = [found.replicas[worker(rank)].buffers.parts[0][:6].mean() for rank in range(3)]
    assert min(means) > 0.7 * max(means)
    seen = [[run.replicas[worker(rank)].progress.seen for rank in range(3)] for run in (whole, found)]
    if re.split(r"\W", strategy)[0] in SERVERS_STEP:
        assert not any(seen[0]), "workers that do not step themselves follow no schedule"
    else:
        assert seen[0] == seen[1] and all(seen[0])


class Pushes(Instrument):
    """Counts what servers were given and what they did."""

    def __init__(self) -> None:
        self.updates = 0

    def noted(self, at: float, who: Address, kind: str, value: float) -> None:
        self.updates += kind == "update" and who == server(0)


def test_asynchronous_servers_apply_each_gradient_once() -> None:
    for at in range(0, Finished("asynchronous", servers=2).effects, 2):
        seen = Pushes()
        Finished("asynchronous", [at], servers=2, watch=seen, cluster=INSTANT)
        assert seen.updates == 3 * STEPS, f"killed at effect {at}"


class Deliveries(Instrument):
    """From whom messages came, with what each role heard before."""

    def __init__(self) -> None:
        self.of: list[tuple[float, Address, Message]] = []

    def delivered(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
        self.of.append((at, sender, message))


def test_nothing_of_an_old_incarnation_comes_after_the_new_one_began() -> None:
    """With a slow network a push of the dead is still on its way when the new incarnation begins: it never arrives."""
    whole = Finished("bsp", servers=1)
    repeated = 0
    for at in range(4, whole.effects - 4):
        log = Deliveries()
        Finished("bsp", [at], servers=1, watch=log)
        steps = [message.step for _, who, message in log.of if who == worker(1) and type(message).__name__ == "Push"]
        assert steps == sorted(set(steps)) == list(range(STEPS))
        pulls = [message.step for _, who, message in log.of if who == worker(1) and type(message).__name__ == "Pull"]
        repeated += len(pulls) > STEPS
    assert repeated, "no kill came between a pull and its push"


def test_a_new_worker_of_easgd_begins_at_the_centre() -> None:
    found = Finished("easgd(period=1)", [0], task=mlp(sgd(lr=0.0)))
    for name, tensor in build.model(mlp(), 0).state_dict().items():
        assert torch.allclose(found.weights[name], tensor)


def test_a_new_worker_of_gosgd_takes_half_of_a_peers_weight_and_the_lost_share_is_noted() -> None:
    found = Finished("gosgd(probability=0.5)", [5])
    snapshots = found.outcome.snapshots
    assert found.outcome.tallies[worker(1)].notes["lost shares"] == 1
    assert 0 < sum(snapshot.weight for snapshot in snapshots) <= 2 / 3 + 1e-12
    assert all(snapshot.weight > 0 for snapshot in snapshots)


def test_what_a_codec_still_owed_is_noted_as_lost() -> None:
    assert Finished("ssp + topk(density=0.2)", [9]).outcome.tallies[worker(1)].notes["lost residuals"] == 1


def test_the_same_death_again_and_again_ends_the_run() -> None:
    """Three in a row without a new step between them, named; the pauses between them grow."""
    with pytest.raises(PeerLost, match=r"worker 1 was killed: it died 3 times without .* step;.*max_failures=…"):
        Finished("bsp", [9, 10, 11])
    found = Finished("bsp", [9, 10, 11], most=3)
    assert [event.stalled for event in found.outcome.membership] == [0.0, 1.0, 2.0]


def test_two_deaths_in_a_row_are_survived_unless_more_or_fewer_are_asked_for() -> None:
    """The second incarnation dies at once, and the third, started after a pause of a second, too."""
    kills = [f"kill worker 1@{when}" for when in ("15ms", "15.1ms", "1015.3ms")]

    def fit(deaths: int, **given: Any) -> Any:
        given |= {"engine": "simulated", "cluster": INSTANT, "steps": STEPS, "on_failure": "continue"}
        return covey.fit(mlp(sgd()), "bsp", 2, faults="; ".join(kills[:deaths]), **given)

    assert [event.stalled for event in fit(2).membership] == pytest.approx([STARTING, 1 + STARTING])
    with pytest.raises(PeerLost, match="it died 3 times without finishing a step"):
        fit(3)
    assert len(fit(3, max_failures=3).membership) == 3


def test_steps_between_deaths_forgive_them() -> None:
    deaths = Deaths(2)
    assert [deaths.note(worker(1), step, "died") for step in (4, 4, 5, 5, 6, 9)] == [0, 1, 0, 1, 0, 0]
    assert deaths.incarnations == {worker(1): 6} and deaths.count == 6


def test_deaths_before_another_worker_took_the_seat_do_not_count() -> None:
    deaths = Deaths(1)
    deaths.note(worker(1), 4, "died")
    assert deaths.joined(worker(1)) == 2
    assert deaths.note(worker(1), 4, "died") == 0
    with pytest.raises(PeerLost, match="it died 2 times without finishing a step"):
        deaths.note(worker(1), 4, "died")


def test_a_worker_that_is_lost_while_the_run_stops_is_restarted_to_stop() -> None:
    """The target is reached while the slow worker computes; its next incarnation does its last step, and no other."""
    cluster = Cluster(slowdowns={1: 20.0})
    given: Any = {"engine": "simulated", "until": "accuracy>=0.8", "cluster": cluster, "on_failure": "continue"}
    calm = covey.fit("examples/digits.py", "asynchronous", 3, **given)
    assert calm.reached is not None and calm.seconds > calm.reached.seconds
    when = (calm.reached.seconds + calm.seconds) / 2
    killed = covey.fit("examples/digits.py", "asynchronous", 3, faults=f"kill worker 1@{when!r}s", **given)
    assert killed.membership and (killed.stopped, killed.samples) == ("target", calm.samples)


def test_a_lost_server_ends_the_run() -> None:
    with pytest.raises(PeerLost, match="server 0 was killed"):
        Finished("bsp", [5], victim=server(0))
