"""Servers with copies, in a chain: whichever copy is lost, and whenever, every gradient counts once (virtual time)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import covey
from covey.central.server.chain_messages import Applied, CopyState, GiveParams, TellStanding, answers
from covey.central.server.chain_shard import CopiedShard
from covey.central.server.shard import Params, Pull, Push
from covey.errors import PeerLost, PlanError
from covey.message import Address, Message, stamped
from covey.model import build
from covey.model.scored import NOTHING
from covey.observe.instruments import Instrument
from covey.servers.standing import AskStanding
from covey.simulate import Cluster, Seconds
from covey.synchronization import Board
from tests.killing import Finished
from tests.worlds import CLUSTER, INSTANT, mlp, run, server, sgd, worker

STEPS = 3
BACKUP = Address("backup", 0)
COPIED: dict[str, Any] = {"workers": 2, "steps": STEPS, "replicas": 2, "most": 9}
TASK = mlp(sgd(momentum=0.9), model=lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).double())


@pytest.mark.parametrize(
    ("servers", "victim", "cluster"),
    [
        (1, server(0), CLUSTER), (1, BACKUP, INSTANT), (2, server(1), INSTANT),
        *(
            pytest.param(2, who, cluster, marks=pytest.mark.full)
            for who in (server(0), BACKUP, Address("backup", 1)) for cluster in (CLUSTER, INSTANT)
        ),
    ],
)  # fmt: skip
def test_bsp_ends_with_the_weights_of_a_run_that_lost_nobody(servers: int, victim: Address, cluster: Cluster) -> None:
    """To the bit, wherever a copy is killed, the first or the last one."""
    given = {**COPIED, "servers": servers, "task": TASK, "victim": victim, "cluster": cluster}
    rigid, whole = run(TASK, "bsp", 2, steps=STEPS, servers=servers), Finished("bsp", **given)
    assert whole.equals(rigid.scored) and whole.outcome.samples == rigid.outcome.samples and whole.effects > 10
    for at in range(whole.effects):
        found = Finished("bsp", [at], **given)
        assert found.equals(rigid.scored), f"killed at effect {at}"
        assert found.outcome.samples == rigid.outcome.samples
        assert [event.who for event in found.outcome.membership] == [str(victim)]


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize("replicas", [2, 3])
def test_bsp_keeps_its_weights_when_copies_and_workers_are_lost_one_after_the_other(replicas: int, every: int) -> None:
    task = mlp(sgd(momentum=0.9))  # without float buffers, of which a new worker takes the mean
    rigid, given = run(task, "bsp", 2, steps=STEPS), {**COPIED, "replicas": replicas, "task": task}
    ends, survived = list[str](), 0
    for at in range(0, 40, every):
        for later in range(at % 5, 25, every):
            also = {BACKUP: [later], worker(1): [at // 2]}
            try:
                found = Finished("bsp", [at, at + 9], victim=server(0), also=also, **given)
            except PeerLost as lost:
                ends.append(str(lost))
                continue
            survived += 1
            assert found.equals(rigid.scored), f"killed at effects {at} and {later}"
    assert survived and all("together with all other copies" in why for why in ends)


def test_bsp_keeps_its_weights_when_a_worker_is_lost_whose_gradient_waits_for_others() -> None:
    """The update may be made between the answer which step is next and the question for its parameters."""
    far = replace(INSTANT, link=replace(INSTANT.link, latency=Seconds(0.005)), slowdowns={1: 2.5})
    given: dict[str, Any] = {"engine": "simulated", "steps": STEPS, "cluster": far, "runs": False}
    task = mlp(sgd(momentum=0.9))  # without float buffers, of which a new worker takes the mean
    whole = covey.fit(task, "bsp", 2, **given)
    for at in range(20, 60, 3):  # gradients arrive at 30 and 45 ms
        lost = covey.fit(task, "bsp", 2, replicas=2, faults=f"kill worker 0@{at}ms", **given)
        same = all(torch.equal(lost.weights[name], whole.weights[name]) for name in whole.weights)
        assert same and lost.samples == whole.samples, f"killed after {at} ms"


class GivenParams(Instrument):
    """The parameters that workers were given for each step, as they arrived."""

    def __init__(self) -> None:
        self.of: dict[int, list[Tensor]] = defaultdict(list)

    def delivered(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
        if isinstance(message, Params):
            self.of[message.step].append(torch.cat([part.flatten() for part in message.params.parts]))


def test_what_a_worker_is_given_to_do_a_step_again_does_not_change_on_its_way() -> None:
    """Its first gradient waited, so the update is not held up until it has sent it again."""
    far = replace(INSTANT, link=replace(INSTANT.link, latency=Seconds(0.005)), slowdowns={1: 3.5})
    given: dict[str, Any] = {"engine": "simulated", "steps": STEPS, "cluster": far, "runs": False, "replicas": 2}
    for at in (31, 33, 36):  # gradients arrive at 30 and 55 ms
        seen = GivenParams()
        covey.fit(TASK, "bsp", 2, faults=f"kill worker 0@{at}ms for 0.01ms", instruments=[seen], **given)
        assert all(torch.equal(one, every[0]) for every in seen.of.values() for one in every), f"killed after {at} ms"
        assert len(seen.of[0]) == 3


def test_a_copy_that_came_while_the_one_before_it_was_away_is_in_the_chain() -> None:
    """Server 0 is away for a second after its second death; backup 1 is restarted meanwhile, and later it leads."""
    given: dict[str, Any] = {"engine": "simulated", "replicas": 3, "steps": 30, "cluster": CLUSTER, "runs": False}
    away = "kill server 0@50ms for 0.01ms; kill server 0@50.1ms for 0.01ms; kill backup 1@500ms for 1ms; "
    faults = f"{away}kill backup 0@1150ms for 1ms; kill server 0@1250ms for 1ms"
    lost = covey.fit(TASK, "bsp", 2, faults=faults, **given)
    whole = covey.fit(TASK, "bsp", 2, **{**given, "replicas": 1})
    assert isinstance(lost.membership, list) and len(lost.membership) == 5
    assert all(torch.equal(lost.weights[name], whole.weights[name]) for name in whole.weights)


class ChainHistory:
    """Every update of each copy, with the gradients in it; a new copy has the history of the one that it came from."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.of: dict[Address, list[tuple[tuple[Any, ...], Tensor, float]]] = defaultdict(list)
        self.given: dict[Address, list[Any]] = {}
        made, applied, state, copy = CopiedShard.made, CopiedShard.applied, CopiedShard.state, CopiedShard.copy

        def note(shard: CopiedShard, tags: tuple[Any, ...], grad: Any, scale: float) -> None:
            self.of[shard.node.address].append((tags, torch.cat([part.flatten() for part in grad.parts]), scale))

        async def making(shard: CopiedShard, pushes: Any, grad: Any, scale: float) -> None:
            await made(shard, pushes, grad, scale)
            note(shard, tuple((push.sender.rank, push.step) for push in pushes), grad, scale)

        async def applying(shard: CopiedShard, word: Applied) -> None:
            before = shard.board.version
            await applied(shard, word)
            if shard.board.version > before:
                note(shard, tuple(zip(word.ranks, word.steps, strict=True)), word.grad, word.scale)

        def giving(shard: CopiedShard) -> dict[str, Any]:
            self.given[shard.node.address] = list(self.of[shard.node.address])
            return state(shard)

        async def copying(shard: CopiedShard, word: CopyState) -> None:
            had = shard.whole, shard.board.version
            await copy(shard, word)
            if (shard.whole, shard.board.version) != had:
                self.of[shard.node.address] = list(self.given[word.sender])

        for name, act in [("made", making), ("applied", applying), ("state", giving), ("copy", copying)]:
            patch.setattr(CopiedShard, name, act)


@pytest.mark.parametrize("victim", [server(0), BACKUP])
@pytest.mark.parametrize("strategy", ["ssp(bound=1)", "asynchronous", "dssp"])
def test_each_gradient_counts_once(strategy: str, victim: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    """The final weights are those of a sequential replay of the accepted updates, and all copies have the same."""
    task = mlp(sgd(momentum=0.9))
    wanted = sorted((rank, step) for rank in range(2) for step in range(STEPS))
    effects = Finished(strategy, victim=victim, task=task, **COPIED).effects
    for at in range(0, effects, 2 if strategy == "asynchronous" else 5):
        history = ChainHistory(monkeypatch)
        found = Finished(strategy, [at], victim=victim, task=task, cluster=INSTANT, **COPIED)
        survivor = history.of[BACKUP if victim == server(0) else server(0)]
        assert sorted(tag for tags, _, _ in survivor for tag in tags) == wanted, f"killed at effect {at}"
        model = build.model(task, 0)
        optimizer = sgd(momentum=0.9)(model.parameters())
        rate = optimizer.param_groups[0]["lr"]
        for _, grad, scale in survivor:
            places = grad.split([parameter.numel() for parameter in model.parameters()])
            for parameter, part in zip(model.parameters(), places, strict=True):
                parameter.grad = part.view_as(parameter)
            optimizer.param_groups[0]["lr"] = rate * scale
            optimizer.step()
        assert found.equals(model.state_dict()), f"killed at effect {at}"
        monkeypatch.undo()


class Wire(Instrument):
    """Who was delivered what, in order."""

    def __init__(self) -> None:
        self.log: list[tuple[float, Address, Address, Message]] = []

    def delivered(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
        self.log.append((at, sender, to, message))


def test_what_a_worker_was_answered_is_in_all_copies_and_survives_the_first() -> None:
    """Killed right after the answer, the value survives; killed before, the worker sees no answer."""
    given = {**COPIED, "workers": 1, "victim": server(0), "cluster": CLUSTER}
    whole, early = Finished("asynchronous", **given).effects, 0
    for at in range(whole):
        wire = Wire()
        found = Finished("asynchronous", [at], watch=wire, **given)
        there = {BACKUP: 0, server(0): 0}
        answers: list[Params] = []
        (lost,) = [event.seconds for event in found.outcome.membership]
        for seconds, sender, to, message in wire.log:
            if isinstance(message, Applied):
                there[to] = message.version
            if isinstance(message, Params):
                if seconds < lost:
                    assert sender == BACKUP and message.version <= there[BACKUP], f"killed at effect {at}"
                answers.append(message)
        assert all(before.version <= after.version for before, after in pairwise(answers)), f"killed at effect {at}"
        assert {answer.step for answer in answers} == {*range(STEPS)}
        sent = [seconds for seconds, _, to, message in wire.log if isinstance(message, Applied) and seconds < lost]
        early += len(sent) < STEPS and not any(a.step > len(sent) for a in answers if a.version < len(sent))
    assert early


def test_nothing_of_a_lost_leader_is_applied_after_another_leads() -> None:
    """With a slow network its last update is still on its way when the next one leads: it never arrives."""
    given = {**COPIED, "victim": server(0), "cluster": CLUSTER}
    cut_off = 0
    for at in range(Finished("asynchronous", **given).effects):
        wire = Wire()
        found = Finished("asynchronous", [at], watch=wire, **given)
        (event,) = found.outcome.membership
        updates = [(seconds, sender, word) for seconds, sender, _, word in wire.log if isinstance(word, Applied)]
        assert all(sender == BACKUP for seconds, sender, _ in updates if seconds > event.seconds)
        old = [word.version for seconds, _, word in updates if seconds <= event.seconds]
        made = found.outcome.tallies[server(0)].updates
        cut_off += made > len(old)
    assert cut_off, "no update was on its way"


def test_one_that_hears_a_former_leader_does_nothing() -> None:
    shard = CopiedShard.__new__(CopiedShard)
    shard.copies, shard.incarnations = (server(0), BACKUP), {server(0): 1}
    shard.node = type("Here", (), {"address": BACKUP})()  # type: ignore[assignment]
    assert not shard.behind(server(0))
    shard.incarnations = {BACKUP: 1}
    assert shard.behind(server(0))


def test_a_gradient_that_only_waits_is_not_told_to_the_next_copy_as_had() -> None:
    """If the leader is lost before it makes the update, its worker sends that gradient again, and it must count."""
    shard = CopiedShard.__new__(CopiedShard)
    shard.board, shard.before, shard.gone, shard.finished = Board({0: 1, 1: 0}), None, set(), set()
    shard.waiting = [Push(0, 0, 8, NOTHING, NOTHING, sender=worker(0))]
    shard.replica = run(TASK, "bsp", 2, steps=1).replicas[server(0)]
    assert shard.state()["clocks"] == {0: 0, 1: 0}
    shard.waiting.clear()
    assert shard.state()["clocks"] == {0: 1, 1: 0}


def test_a_question_whose_gradient_was_lost_with_a_leader_is_not_kept() -> None:
    """Its worker sends both again."""
    shard: Any = object.__new__(CopiedShard)
    shard.board, shard.parked = SimpleNamespace(clocks={1: 3}), {}
    for step, parked in ((4, []), (3, [1])):
        with pytest.raises(StopIteration):
            shard.park(stamped(Pull(step), worker(1), copy=False)).send(None)
        assert list(shard.parked) == parked


def test_nobody_answers_a_worker_that_has_left() -> None:
    """After a loss it asks the next leader, and may then be given what the lost one had sent on; so it goes on."""
    shard = CopiedShard.__new__(CopiedShard)
    shard.board, shard.versions, shard.asked, shard.early, shard.replies = Board({0: 8, 1: 7}), None, {}, {}, {}
    shard.parked = {rank: Pull(7, sender=worker(rank)) for rank in range(2)}
    with pytest.raises(StopIteration):
        shard.left(worker(0)).send(None)
    assert [*shard.parked] == [*shard.board.clocks] == [1]


def test_an_old_answer_takes_along_nothing_that_waits_for_a_new_leader() -> None:
    """A worker may hear of a loss before a copy does, to which the lost leader's last words still come."""
    push = Push(3, 5, 8, NOTHING, NOTHING, sender=worker(1))
    early: list[Message] = [push, Pull(4, sender=worker(1)), AskStanding(0, sender=worker(1))]
    assert not any(answers(GiveParams(1, 3, 5, 0), message) for message in early)
    assert not any(answers(GiveParams(0, 4, 6, 0), message) for message in early)
    assert [answers(GiveParams(1, 4, 6, 0), message) for message in early] == [True, True, False]
    assert [answers(TellStanding(1, 0, 4), message) for message in early] == [False, False, True]
    assert not answers(TellStanding(1, -1, 4), early[2])


def test_a_run_that_loses_all_copies_at_once_ends_or_starts_again(tmp_path: Path) -> None:
    given: dict[str, Any] = {"engine": "simulated", "replicas": 2, "steps": 12, "cluster": CLUSTER, "runs": False}
    faults = "kill server 0@60ms; kill backup 0@60ms"
    with pytest.raises(PeerLost, match="backup 0 was lost together with all other copies of its parameters"):
        covey.fit(TASK, "bsp", 2, faults=faults, **given)
    kept = covey.fit(TASK, "bsp", 2, faults=faults, checkpoint=tmp_path, every="20ms", **given)
    plain = covey.fit(TASK, "bsp", 2, **{**given, "replicas": 1})
    assert all(torch.equal(kept.weights[name], plain.weights[name]) for name in plain.weights)
    assert isinstance(kept.membership, list) and kept.membership[-1].event == "restart"


@pytest.mark.parametrize(
    ("strategy", "given", "match"),
    [
        ("allreduce", {"replicas": 2}, "allreduce has no servers: use bsp, ssp"),
        ("softsync", {"replicas": 2}, "hold something between two messages that copies would lack: use bsp"),
        ("quorum", {"replicas": 2}, "hold something between two messages that copies would lack: use bsp"),
        ("bsp", {"replicas": 4}, "2 or 3 copies"),
        ("bsp", {"replicas": 0}, "at least 1"),
        ("bsp", {"replicas": 2, "workers": "1:2"}, "use workers=2"),
        ("bsp", {"replicas": 2, "on_failure": "restart"}, "omit either"),
        ("bsp", {"replicas": 2, "engine": "mpi"}, "replicas=2 is for the engines local, simulated, lab and ray, not"),
        ("bsp over proxies(groups=2)", {"replicas": 2}, "proxies"),
    ],
)  # fmt: skip
def test_copies_that_cannot_be_are_refused_before_anything_starts(
    strategy: str, given: dict[str, Any], match: str
) -> None:
    with pytest.raises(PlanError, match=match):
        covey.fit(TASK, strategy, **{"workers": 2, "engine": "simulated", "steps": 1, "runs": False, **given})
