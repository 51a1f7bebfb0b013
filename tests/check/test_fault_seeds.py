"""Seeds of faults: every strategy keeps its promises whatever goes wrong, and planted mistakes are found."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from covey import catalog
from covey.check import fault_seeds
from covey.check.fault_seeds import CHECKPOINTS, FaultCase, case_of, examined, rehearsed, tried
from covey.checkpoint import RoleState
from covey.data.leases import Ledger
from covey.decentral.elastic.easgd import CentreMaster
from covey.engines.remembered import Remembered
from covey.engines.virtual.keeping import RunKeeper
from covey.engines.virtual.link_faults import LinkFaults
from covey.engines.virtual.virtual_actor import MessageInFlight
from covey.model.replica import Replica
from covey.servers.together import Together
from covey.simulate.faults import OF_SEATS, parse_faults

SEEDS, PARTS, QUICK = 200, 8, 4


@pytest.mark.xdist_group("fault seeds")  # they share runs without faults
@pytest.mark.parametrize(
    "part", [*range(QUICK), *(pytest.param(part, marks=pytest.mark.full) for part in range(QUICK, PARTS))]
)
def test_seeds(part: int) -> None:
    """`python -m benchmarks.faults --seeds 0..9999` tries more of them."""
    for seed in range(part * SEEDS // PARTS, (part + 1) * SEEDS // PARTS):
        finding = tried(case_of(seed), seed)
        assert not finding.broken, str(finding)


def test_seeds_pick_every_strategy_and_the_same_one_again() -> None:
    assert {catalog.resolve(case_of(seed).strategy, 4).name for seed in range(1000)} == set(catalog.for_any_model())
    ranged = {catalog.resolve(one.strategy, 4).name for one in map(case_of, range(3000)) if one.least}
    assert ranged >= {"bsp", "allreduce", "local_sgd", "bmuf", "diloco"}
    assert case_of(5) == case_of(5) and {case_of(seed).workers for seed in range(90)} == {2, 3, 4}
    assert any(one.elastic and "with mesh" in one.strategy for one in map(case_of, range(3000)))


@pytest.fixture
def planting(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """What is planted here changes runs without faults too, of which none may be remembered."""
    rehearsed.cache_clear()
    yield monkeypatch
    rehearsed.cache_clear()


def found(strategy: str, faults: str, workers: int = 4) -> str:
    return "\n".join(examined(FaultCase(strategy, workers), parse_faults(faults))[1])


def test_what_goes_on_after_a_checkpoint_may_break_off_the_next_one() -> None:
    """A notice ends while those that were held go on, one after the other: found by a seed."""
    case = FaultCase("essp", 3, elastic=True)
    plan = parse_faults("notice worker 1#54 for 11.698ms; partition worker 0#45 for 0.028478s")
    assert not examined(case, plan)[1]


KILL = "kill worker 1@75ms"


def nothing(*args: Any, **kwargs: Any) -> None:
    pass


def deliver_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    in_order = LinkFaults._in_order

    def always(self: LinkFaults, flight: MessageInFlight) -> bool:
        in_order(self, flight)
        return True

    monkeypatch.setattr(LinkFaults, "_in_order", always)


def lose_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LinkFaults, "check", nothing)
    monkeypatch.setattr(LinkFaults, "_in_order", lambda self, flight: True)


def forget_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    restore = Replica.restore

    def without(self: Replica, state: dict[str, Any]) -> None:
        restore(self, {**state, "optimizer": {**state["optimizer"], "state": {}}})

    monkeypatch.setattr(Replica, "restore", without)


def forget_memories(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Remembered, "_recalled", lambda self, kept, name, fresh: fresh)


def skip_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    of = RoleState.of

    def ahead(**given: Any) -> RoleState:
        return of(**{**given, "done": given["done"] + 1})

    monkeypatch.setattr(RoleState, "of", staticmethod(ahead))


def keep_while_messages_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunKeeper, "_quiet", lambda self: True)


def move_only_one_side(monkeypatch: pytest.MonkeyPatch) -> None:
    async def move(self: CentreMaster, elastic: Any) -> None:
        self.replica.model.add_(self.decode(elastic.force), alpha=0.5)

    monkeypatch.setattr(CentreMaster, "move", move)


def differ_between_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    restore, turn = Replica.restore, [0]

    def rounded(self: Replica, state: dict[str, Any]) -> None:
        restore(self, state)
        turn[0] += 1
        if turn[0] % 2:
            for part in self.flat.parts:
                part.copy_(part.to(torch.float32))

    monkeypatch.setattr(Replica, "restore", rounded)


@pytest.mark.parametrize(
    ("plant", "strategy", "faults", "told"),
    [
        (deliver_twice, "gosgd(probability=0.5)", "duplicate worker 0 -> worker 1@1ms", "delivered more often"),
        (deliver_twice, "asynchronous", "duplicate worker 0 -> server 0#8", "delivered more often"),
        (lose_silently, "asynchronous", "drop worker 0 -> server 0@20ms", "Stalled|nobody noticed"),
        (lose_silently, "gosgd(probability=0.5)", "drop worker 0 -> worker 1@1ms", "nobody noticed|weight 0"),
        (forget_optimizer, "bsp", KILL, "away from the run without faults"),
        (forget_optimizer, "allreduce", KILL, "away from the run without faults"),
        (forget_memories, "gosgd(probability=0.5)", KILL, "all workers have weight"),
        (forget_memories, "diloco(period=5)", KILL, "away from the run without faults"),
        (skip_a_step, "ssp", KILL, r"accepted \d times, not 4"),
        (keep_while_messages_travel, "bsp", KILL, "Stalled|away from|RoleFailed"),
        (move_only_one_side, "easgd(period=2)", KILL, "forces do not cancel"),
        (differ_between_replicas, "allreduce", KILL, "workers have different weights"),
    ],
)
def test_planted_mistakes_are_found(
    plant: Callable[[pytest.MonkeyPatch], None], strategy: str, faults: str, told: str, planting: pytest.MonkeyPatch
) -> None:
    assert found(strategy, faults) == ""
    plant(planting)
    rehearsed.cache_clear()
    why = found(strategy, faults)
    assert re.search(told, why), why


def test_a_run_that_does_not_end_is_named() -> None:
    record = fault_seeds.record_of(FaultCase("bsp", 2), parse_faults("slow worker 1@0s for 9s by 2x"), limit=0.02)
    assert record.why == "it still runs after 0.02 s of virtual time"


def test_a_failing_seed_says_how_to_see_it_again_and_which_faults_matter(planting: pytest.MonkeyPatch) -> None:
    forget_optimizer(planting)
    plan = parse_faults("slow worker 0@10ms for 20ms by 2x; kill worker 1@75ms; delay worker 0 -> server 0@5ms by 9ms")
    planting.setattr(fault_seeds, "draw", lambda seed, run, kinds: plan)
    told = str(tried(FaultCase("bsp", 4), 17))
    assert "seed 17: bsp, 4 workers" in told and "away from the run without faults" in told
    assert "again: python -m benchmarks.faults --seeds 17" in told
    assert told.endswith("faults that matter: kill worker 1@75ms")
    typed = "covey simulate 'my task.py' --servers 2 --slow 3:4x --faults{}{} --on-failure continue"
    for between in (" ", "="):
        mine = FaultCase("bsp", 4, task="my task.py", command=typed.format(between, "0..99"))
        assert fault_seeds.SeedFinding(3, mine, plan).replay == typed.format(between, 3)


def test_checkpoints_lie_in_the_middle_of_a_run(tmp_path: Path) -> None:
    calm = rehearsed(FaultCase("bsp", 4)).result
    assert calm is not None and calm.seconds / CHECKPOINTS < 0.075


@pytest.mark.parametrize(
    "strategy",
    [
        "allreduce", "sliced", "bmuf(period=5)", "adpsgd", "tree_easgd(fanout=2, up=2, down=4)", "dpsgd",
        "sgp(overlap=1)", "malt", "malt(bound=2)",
    ],
)  # fmt: skip
def test_runs_whose_lost_workers_are_restarted_keep_their_promises(strategy: str) -> None:
    case = FaultCase(strategy, 3, elastic=True)
    found = [tried(case, seed) for seed in range(12)]
    assert [one.broken for one in found if one.broken] == []
    assert sum(str(one.plan).count("kill") for one in found) > 2, "somebody must be lost"


def test_a_list_of_batches_that_is_not_taken_over_is_found(planting: pytest.MonkeyPatch) -> None:
    planting.setattr(Ledger, "restore", lambda self, state: None)
    case = FaultCase("allreduce", 3, elastic=True, least=1)
    assert any(tried(case, seed).broken for seed in range(12))


def test_messages_of_a_broken_round_that_are_not_dropped_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Together, "_forget", lambda self: None)
    case = FaultCase("allreduce", 3, elastic=True)
    assert any(tried(case, seed).broken for seed in range(12))


@pytest.mark.xdist_group("fault seeds")
@pytest.mark.parametrize(
    "strategy",
    [
        "bsp", "ssp", "asynchronous", "allreduce", "local_sgd(period=3)", "quorum", "softsync(groups=2)",
        "petuum", "essp", "downpour(push=3, fetch=2)", "sliced", "bigdl",
    ],
)  # fmt: skip
def test_seeds_in_which_workers_come_and_go(strategy: str) -> None:
    joined, served = 0, catalog.resolve(strategy, 3).servers.count > 0
    for seed in range(12):
        servers = 1 + seed % 2 if served else None
        finding = tried(FaultCase(strategy, 3, servers=servers, elastic=True, least=1), seed)
        assert not finding.broken, str(finding)
        joined += any(fault.kind in OF_SEATS for fault in finding.plan.faults)
    assert joined > 3
