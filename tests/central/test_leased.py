"""Workers that come and go: every server applies each batch of the run exactly once, whenever somebody leaves."""

from __future__ import annotations

from collections import defaultdict
from itertools import zip_longest
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import covey
from covey.central.server.leased_shard import LeasedShard
from covey.data.leases import BatchSet, Lease, Ledger
from covey.data.shards import Shards
from covey.errors import CoveyError, PeerLost, PlanError
from covey.model import build
from covey.servers.leasing_server import LeasingServer
from covey.servers.taking_part import EntryStep, TakesPart, first_step
from covey.simulate.faults import parse_faults
from covey.synchronization import GatherChoice
from covey.vector import Vector, chunk
from tests.central.ranged_runs import EFFECTS, HALF, STEPS, check_once, run
from tests.worlds import mlp, sgd

CLIPPED = mlp(sgd(momentum=0.9), clip_norm=0.1)
Applied = dict[str, list[list[Lease]]]


@pytest.fixture
def applied(monkeypatch: pytest.MonkeyPatch) -> Applied:
    """The batches of each update of each server; none where it only counts one."""
    found: Applied = defaultdict(list)
    update = LeasedShard.update

    async def noting(self: Any, choice: GatherChoice) -> None:
        pushes = [self.waiting[place] for place in choice.used]
        found[str(self.node.address)].append([Lease(push.seat, push.number) for push in pushes if push.samples])
        await update(self, choice)

    monkeypatch.setattr(LeasedShard, "update", noting)
    return found


def check(applied: Applied, servers: int, seats: int = 3) -> None:
    found = {who: [lease for update in updates for lease in update] for who, updates in applied.items()}
    check_once(found, servers, seats)
    applied.clear()


def weights(result: covey.Result) -> list[torch.Tensor]:
    return [result.weights[name] for name in sorted(result.weights)]


@pytest.mark.parametrize("strategy", ["bsp", "ssp(bound=1)", "asynchronous", "dssp", "dc_asgd"])
@pytest.mark.parametrize("servers", [1, 2])
def test_where_nobody_goes_a_range_is_its_largest_number(strategy: str, servers: int) -> None:
    ranged, fixed = (run(strategy, workers=workers, servers=servers) for workers in ("2:3", 3))
    assert ranged.samples == fixed.samples and ranged.workers == 3
    if strategy == "bsp":
        assert all(map(torch.equal, weights(ranged), weights(fixed)))


CASES = [
    ("bsp", 2, "leave worker 1#{n}"),
    ("bsp", 2, "leave worker 1#{n}; join worker 1@25ms"),
    ("bsp", 1, "leave worker 0#{n}"),
    ("ssp(bound=1)", 2, "leave worker 1#{n}; join worker 2@21ms"),
    ("asynchronous", 2, "leave worker 1#{n}; leave worker 2@33ms; join worker 1@30ms"),
    ("asynchronous", 1, "kill worker 1#{n} for 8ms; leave worker 1@31ms"),
    ("asynchronous", 2, HALF),
    ("bsp", 2, HALF),
]


@pytest.mark.parametrize(("strategy", "servers", "faults"), CASES)
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.full) for part in range(1, 4))])
def test_at_whatever_effect_a_worker_leaves_each_batch_counts_once(
    applied: Applied, strategy: str, servers: int, faults: str, part: int
) -> None:
    for number in range(part + 1, EFFECTS, 4):
        result = run(strategy, faults.format(n=number, m=number + 12), servers=servers)
        check(applied, servers)
        assert result.samples == 3 * STEPS * 8, faults.format(n=number, m=number + 12)


def test_a_worker_that_dies_again_and_again_leaves_and_the_others_go_on(applied: Applied) -> None:
    result = run("bsp", "kill worker 1#9 for 1ms; kill worker 1#10", max_failures=1)
    check(applied, 1)
    assert isinstance(result.membership, list)
    assert [event.event for event in result.membership] == ["rebirth", "leave"]
    assert result.membership[-1].workers == 2 and "2 times without a new step" in result.membership[-1].cause


def test_a_worker_that_does_a_batch_between_its_deaths_is_restarted() -> None:
    """Its new incarnations enter at steps that others have done; what counts is what it has done itself."""
    kills = "; ".join(f"kill worker 1#{effect} for 1ms" for effect in range(9, 9 + 5 * 7, 7))
    result = run("bsp", kills, max_failures=2, steps=130)
    assert [event.event for event in result.membership or []] == ["rebirth", "rebirth", "rebirth", "leave"]


def test_a_worker_that_leaves_while_another_is_away_does_not_end_the_run() -> None:
    """The servers hear first of the one that comes back: else they would have no worker, and end."""
    for leaving in ("leave worker 1@21ms", "notice worker 1@21ms for 30ms"):
        result = run("asynchronous", f"kill worker 0@18ms for 31ms; {leaving}", workers="1:2")
        assert [event.event for event in result.membership or []] == ["rebirth", "leave"]
        assert result.samples == 2 * STEPS * 8


def replay(applied: Applied, servers: int) -> torch.Tensor:
    """The parameters, where each server makes each update from the mean gradient of the batches that it had."""
    task = mlp()
    assert isinstance(task.data, tuple)
    deal, module = Shards(len(task.data[0]), 3, 8), build.model(task, 0)
    flat = torch.nn.utils.parameters_to_vector(module.parameters()).detach()
    moving, cuts = torch.zeros_like(flat), [slice(*chunk(flat.numel(), servers, index)) for index in range(servers)]
    for updates in zip_longest(*(applied[f"server {index}"] for index in range(servers)), fillvalue=()):
        torch.nn.utils.vector_to_parameters(flat.clone(), module.parameters())
        for update, cut in zip(updates, cuts, strict=True):
            if update:
                picked = torch.cat([deal.indices(*lease) for lease in update])
                loss = task.forward(module, tuple(column[picked] for column in task.data))
                grads = torch.autograd.grad(loss, list(module.parameters()))
                moving[cut] = 0.9 * moving[cut] + torch.cat([grad.flatten() for grad in grads])[cut]
                flat[cut] -= 0.1 * moving[cut]
    return flat


def check_replay(result: covey.Result, applied: Applied, servers: int) -> None:
    names = [name for name, _ in build.model(mlp(), 0).named_parameters()]
    found = torch.cat([result.weights[name].flatten() for name in names])
    torch.testing.assert_close(found, replay(applied, servers), rtol=1e-9, atol=1e-12)


def test_bsp_is_a_replay_of_what_it_accepted(applied: Applied) -> None:
    """Each update is one step on the mean gradient of its samples, whoever computed them."""
    result = run("bsp", "leave worker 1@15ms; join worker 1@45ms; leave worker 0@60ms", workers="1:3")
    assert {len(update) for update in applied["server 0"]} >= {2, 3}, "global batches of several sizes"
    check_replay(result, applied, 1)


LATE = "delay worker 0 -> server 1@{n}ms by 15ms; leave worker 1@{m}ms; join worker 1@{l}ms"  # one server is ahead


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("faults", ["leave worker 1#{n}; join worker 1@{m}ms", HALF + "; join worker 1@{l}ms", LATE])
def test_bsp_is_a_replay_whenever_somebody_joins(applied: Applied, servers: int, faults: str) -> None:
    if servers == 1 and "server 1" in faults:
        faults = faults.replace("server 1", "server 0")
    for number in range(2, 50, 3):
        plan = faults.format(n=number, m=number + 3, l=number + 5)
        result = run("bsp", plan, servers=servers)
        if isinstance(result.membership, list):  # it was still there
            check_replay(result, applied, servers)
            for updates in applied.values():
                assert all(len({*update}) == len(update) <= 3 for update in updates)
        check(applied, servers)


def test_a_run_with_too_few_workers_ends_by_name() -> None:
    with pytest.raises(PeerLost, match=r"worker 1 left at .*: only 1 worker is left, .* at least 2: use a smaller MIN"):
        run("bsp", "leave worker 1@15ms", workers="2:2")


@pytest.mark.parametrize(
    ("faults", "absent"),
    [
        ("leave worker 1#5; join worker 1@25ms", []),
        ("join worker 1@25ms; leave worker 1#5", ["worker 1"]),
        ("leave worker 1@30ms; join worker 1@25ms; leave worker 2#9", ["worker 1"]),
    ],
)
def test_who_joins_before_it_leaves_is_absent(faults: str, absent: list[str]) -> None:
    """By the times, or where a fault has none by the order in which they are written."""
    assert parse_faults(faults).absent == absent


def test_who_was_there_when_is_told() -> None:
    result = run("bsp", "join worker 2@15ms; leave worker 0@35ms")
    assert isinstance(result.membership, list)
    told = [(event.event, event.who, event.workers) for event in result.membership]
    assert told == [("join", "worker 2", 3), ("leave", "worker 0", 2)]


def test_a_restart_counts_the_seats_that_are_taken() -> None:
    result = run("bsp", "leave worker 2@5ms; kill worker 1@15ms")
    assert isinstance(result.membership, list)
    assert [(event.event, event.workers) for event in result.membership] == [("leave", 2), ("rebirth", 2)]


def entered(step: int, pushed: bool, entries: int = 1) -> EntryStep:
    return EntryStep(1, step, pushed, entries, False, Vector(()), ())


@pytest.mark.parametrize(
    ("entries", "step"),
    [
        ([entered(3, False), entered(5, False)], 5),  # behind none of the servers
        ([entered(4, True), entered(4, True)], 4),
        ([entered(4, True), entered(3, False)], 3),  # one has had step 3, and the other not
        ([entered(5, True, entries=2), entered(4, True)], 4),  # the other does not know yet that it has entered again
    ],
)
def test_what_only_some_servers_have_had_of_a_worker_it_does_again(entries: list[EntryStep], step: int) -> None:
    assert first_step(entries) == step


@pytest.mark.parametrize(("steps", "enters"), [({0: 3, 2: 5}, 3), ({}, 6)])
def test_who_enters_is_as_far_as_the_slowest_that_is_there(steps: dict[int, int], enters: int) -> None:
    """It would wait for the slowest if it came further ahead; where nobody is, it goes on where the last one was."""
    server: Any = object.__new__(type("There", (LeasingServer,), {"taking_part": steps, "furthest": 6}))
    assert server.entry(1) == enters


def test_a_new_incarnation_says_once_what_its_seat_has_done() -> None:
    """Its process counts from nothing."""
    client: Any = object.__new__(TakesPart)
    notes = list[tuple[Any, ...]]()

    async def note(*words: Any) -> None:
        notes.append(words)

    async def ask_batch() -> None:
        client.done, client.lease = 24, Lease(1, 3)

    client.node, client.ask_batch = SimpleNamespace(note=note), ask_batch
    for _ in range(2):
        with pytest.raises(StopIteration, match="True"):
            client.batch().send(None)
    assert notes == [("resumed", 24)]


def test_what_the_codec_owed_is_lost_with_a_worker() -> None:
    result = run("bsp + topk(density=0.2)", "kill worker 1@25ms for 4ms; leave worker 2@25ms; join worker 2@35ms")
    assert result.notes["lost residuals"] == 2


# -- planted mistakes --------------------------------------------------------------------------------------------------


def plant_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a worker had is forgotten with it."""
    monkeypatch.setattr(Ledger, "leave", lambda self, worker, known: self.empty.add(worker))


def plant_doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server applies what it has had."""
    monkeypatch.setattr(BatchSet, "add", lambda self, lease: True)


def plant_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first server takes its own knowledge for that of all."""
    honest, made = Ledger.leave, LeasedShard.__init__
    monkeypatch.setattr(Ledger, "leave", lambda self, worker, known: honest(self, worker, SEEN[-1].__contains__))

    def noting(self: Any, *args: Any, **given: Any) -> None:
        made(self, *args, **given)
        if self.first:
            SEEN.append(self.received)

    monkeypatch.setattr(LeasedShard, "__init__", noting)


SEEN: list[BatchSet] = []


@pytest.mark.parametrize(
    ("plant", "faults"), [(plant_lost, "leave worker 1#{n}"), (plant_doubled, HALF), (plant_known, HALF)]
)
def test_planted_mistakes_are_found(applied: Applied, monkeypatch: pytest.MonkeyPatch, plant: Any, faults: str) -> None:
    plant(monkeypatch)
    broken = 0
    for number in range(1, EFFECTS, 6):
        try:
            run("asynchronous", faults.format(n=number, m=number + 12), servers=2)
            check(applied, 2)
        except (AssertionError, CoveyError):
            broken += 1
            applied.clear()
    assert broken


@pytest.mark.parametrize(("strategy", "servers"), [("bsp", 1), ("ssp(bound=1)", 2)])
def test_clipping_stands_no_update_still(strategy: str, servers: int) -> None:
    for number in range(1, 30, 6):
        faults = f"slow worker 1@1ms for 10s by 3x; leave worker 1@{number}ms; join worker 1@{number + 8}ms"
        assert run(strategy, faults, servers=servers, task=CLIPPED).samples == 3 * STEPS * 8


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "given", "said"),
    [
        ("0:4", {}, 'workers="0:4": at least 1 is needed; write 1:4'),
        ("4:2", {}, "the smaller number comes first: write 2:4"),
        ("2:", {}, "write a number, such as 4, or a range, such as 2:8"),
        ("a:b", {}, "write a number, such as 4, or a range, such as 2:8"),
        (":4", {}, "write a number"),
        (True, {}, "workers must be a whole number or a string"),
        (2.5, {}, "workers must be a whole number or a string"),
        ("2:3", {"strategy": "tree_easgd"}, "workers of tree_easgd cannot come and go; use bsp, .*or use a number, as"),
        ("2:3", {"strategy": "asynchronous(epoch=0.5)"}, "omit epoch"),
        ("2:3", {"checkpoint": "kept", "strategy": "easgd"}, "omit checkpoint=… and resume=…, or use bsp"),
        ("2:3", {"on_failure": "restart", "checkpoint": "kept"}, "or use a number, as workers=3"),
        ("auto:3", {"engine": "spark"}, 'workers="auto:3": a range .*local, simulated, lab and ray, not for spark'),
        ("2:3", {"engine": "torchrun"}, 'workers=3, .*on_failure="restart" with .*checkpoint.* the engine ray or lab'),
        (3, {"engine": "spark", "on_failure": "continue"}, 'on_failure="continue" is for .*: use on_failure="restart"'),
        (3, {"faults": "leave worker 1@5s"}, 'number of workers of this run is fixed: use a range, as workers="1:3"'),
        ("2:3", {"faults": "leave server 0@5s"}, "only workers come and go"),
        ("2:3", {"faults": "join worker 1#5"}, "who is not there has no effects: give a time"),
        ("2:3", {"task": CLIPPED, "servers": 2}, 'workers="2:3": the servers of bsp clip .*use servers=1, .*or use a'),
        (3, {"task": CLIPPED, "servers": 2, "on_failure": "continue"}, 'on_failure="continue": the servers of bsp'),
        ("2:3", {"strategy": "bsp over proxies(groups=2)"}, 'workers="2:3": .*omit .over proxies.*or use a number'),
        ("3:3", {"faults": "join worker 1@5s"}, "would begin with 2 workers, and at least 3"),
    ],
)
def test_what_cannot_be_is_refused(workers: Any, given: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        covey.fit(workers=workers, **{"task": mlp(), "strategy": "bsp", "engine": "simulated", "runs": False, **given})
