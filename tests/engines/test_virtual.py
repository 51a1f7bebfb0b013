"""The virtual engine: hand-written programs, numbers worked out by hand."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

import covey
from covey.engines.virtual import VirtualEngine
from covey.errors import PlanError
from covey.message import Address, Message
from covey.model.batches import Batch, BatchSource
from covey.model.replica import Replica
from covey.observe.progress import Progress
from covey.observe.referee import Referee
from covey.observe.trace import Trace
from covey.program import Node
from covey.simulate import Cluster, Link, Seconds
from covey.strategy import Plan, Role, workers
from covey.vector import Vector
from tests.conftest import Golden
from tests.engines.stage import CLUSTER, LINK, ME, SERVER, THIRD, YOU, Log, Ping, Pong, Word, ping, replica, run
from tests.worlds import mlp, perform, slowed


class Seen:
    """A watcher that keeps what it is shown."""

    def __init__(self) -> None:
        self.shown: list[Progress] = []

    def update(self, progress: Progress) -> None:
        self.shown.append(progress)

    def say(self, line: str) -> None:
        pass


def test_a_watcher_sees_how_long_a_role_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker 1 takes 100 ms for a batch, and worker 0, after 10 ms, waits for it."""
    monkeypatch.setattr("covey.engines.virtual.progress_watch.SHOW_EVERY", 0.0)
    seen = Seen()
    covey.fit(mlp(), "allreduce", 2, engine="simulated", steps=3, cluster=slowed(w1=10), watcher=seen)
    waits = [role.waited for progress in seen.shown if (role := progress.roles.get("worker 0")) and role.waiting]
    assert waits and max(waits) == pytest.approx(0.09, rel=0.05)


def test_what_a_cluster_says_of_roles_that_are_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, said, slow = Seen(), list[str](), Link(latency=Seconds(1.0))
    monkeypatch.setattr(seen, "say", said.append)
    given = {"engine": "simulated", "steps": 1, "watcher": seen}
    covey.fit(mlp(), "bsp", 2, cluster=Cluster(links={"server 0": slow, "wrker 1": slow, "server 1": slow}), **given)
    covey.fit(mlp(), "allreduce", 2, cluster=Cluster(links={"server 0": slow}), **given)
    have = "worker 0, worker 1, server 0"
    assert said == [f"the cluster describes wrker 1, server 1, which this run does not have: it has {have}"]
    with pytest.raises(PlanError, match="'kill server 7@1s': there is no such role; this run has"):
        covey.fit(mlp(), "bsp", 2, cluster=Cluster(kills={"server 7": Seconds(1.0)}), **given)


def test_ping_pong_takes_the_time_of_the_wire() -> None:
    log = Log()

    async def serve(node: Node, replica: Replica) -> None:
        await node.compute(lambda: None)
        await node.send(YOU, ping())
        await log.at(node, "sent")
        await node.receive(Pong, sender=YOU)
        await log.at(node, "answered")

    async def answer(node: Node, replica: Replica) -> None:
        message = await node.receive(Ping)
        assert message.sender == ME
        await log.at(node, "heard")
        await node.send(ME, Pong(0))

    outcome = run(serve, answer)
    assert log == [(0.02, "sent"), (0.022, "heard"), (0.023, "answered")]
    assert outcome.seconds == pytest.approx(0.023)
    assert outcome.stopped == "budget"


def test_how_the_time_was_spent() -> None:
    async def sends(node: Node, replica: Replica) -> None:
        await node.compute(lambda: None)
        await node.send(YOU, ping())
        await node.sleep(0.002)

    async def waits(node: Node, replica: Replica) -> None:
        await node.receive(Ping)

    mine, yours = run(sends, waits).tallies.values()
    assert (mine.compute, mine.waiting) == pytest.approx((0.02, 0.002))
    assert (yours.waiting, yours.exchange) == pytest.approx((0.02, 0.002))
    assert (mine.bytes, mine.messages) == ({"worker 1": 1000}, {"worker 1": 1})
    assert mine.memory == 2 * 3 * 4


def test_a_slow_worker_is_slow_and_jitter_repeats() -> None:
    async def steps(node: Node, replica: Replica) -> None:
        for _ in node.steps():
            await node.compute(lambda: None, load=0.5)

    slow = Cluster(compute=Seconds(0.02), slowdowns={1: 4.0}, link=LINK)
    assert run(steps, steps, cluster=slow, limit=3).seconds == pytest.approx(3 * 0.5 * 0.08)
    shaky = Cluster(compute=Seconds(0.02), jitter=0.3, link=LINK)
    first, again, other = (run(steps, steps, cluster=shaky, seed=seed).seconds for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize("way", ["receive", "receive_within", "receive_any", "receive_nowait", "gather", "ask"])
def test_every_way_to_receive_keeps_to_the_sender_that_it_names(way: str) -> None:
    heard: list[Address] = []

    async def waits(node: Node, replica: Replica) -> None:
        await node.sleep(1)  # what the other has sent lies here first
        message: Message | None
        if way == "receive":
            message = await node.receive(Pong, sender=THIRD)
        elif way == "receive_within":
            message = await node.receive_within(Pong, 10, sender=THIRD)
        elif way == "receive_any":
            message = await node.receive_any(Ping, Pong, sender=THIRD)
        elif way == "receive_nowait":
            await node.sleep(2)
            message = node.receive_nowait(Ping, Pong, sender=THIRD)
        elif way == "gather":
            (message,) = await node.gather(Pong, [THIRD])
        else:
            message = await node.ask(THIRD, Pong(9), Pong)
        assert message is not None
        heard.append(message.sender)

    async def early(node: Node, replica: Replica) -> None:
        await node.send(ME, Pong(0))

    async def late(node: Node, replica: Replica) -> None:
        await node.sleep(2)
        await node.send(ME, Pong(0))

    run(waits, early, late)
    assert heard == [THIRD]


def test_a_timeout_is_a_value() -> None:
    log = Log()

    async def waits(node: Node, replica: Replica) -> None:
        await log.at(node, await node.receive_within(Pong, 0.005))
        await log.at(node, await node.receive_within(Pong, 0.5) is not None)
        await log.at(node, await node.receive_within(Pong, 0.1))

    async def late(node: Node, replica: Replica) -> None:
        await node.sleep(0.006)
        await node.send(ME, Pong(0))

    run(waits, late)
    assert log == [(0.005, None), (0.007, True), (0.107, None)]


def test_receive_picks_by_kind_sender_and_step_and_nowait_never_waits() -> None:
    log = Log()

    async def tells(node: Node, replica: Replica) -> None:
        for body in (Word("a"), Pong(1), Pong(0), Word("b")):
            await node.send(ME, body)

    async def picks(node: Node, replica: Replica) -> None:
        assert node.receive_nowait(Word) is None
        await node.sleep(0.1)
        log.append((await node.receive(Pong, step=0, sender=YOU)).step)
        log.extend(message.text for message in iter(lambda: node.receive_nowait(Word), None))
        log.append(type(await node.receive_any(Word, Pong)).__name__)

    run(picks, tells)
    assert log == [0, "a", "b", "Pong"]


def test_posts_arrive_while_the_work_goes_on() -> None:
    log = Log()

    async def works(node: Node, replica: Replica) -> None:
        await node.spawn(background(node))
        for _ in range(2):
            await log.at(node, (await node.receive(Pong, sender=ME)).step)

    async def background(node: Node) -> None:
        def work() -> None:
            for n in (1, 2):
                node.host.post(Pong(n, sender=ME), n / 2)

        await node.compute(work)
        await log.at(node, "done")

    outcome = run(works)
    # The end of the work comes before a post of the same moment.
    assert log == [(0.01, 1), (0.02, "done"), (0.02, 2)]
    # The main program waited for its own compute: that is no waiting.
    assert (outcome.tallies[ME].compute, outcome.tallies[ME].waiting) == pytest.approx((0.02, 0))


def test_a_stream_gives_the_gradient_in_pieces_while_backward_runs() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    log = Log()

    def source(step: int) -> Batch:
        loss = model(torch.ones(5, 4)).sum()
        loss.backward()
        return Batch(loss.item(), 5)

    async def works(node: Node, replica: Replica) -> None:
        assert node.training()
        async for piece in replica.stream(node, bucket_bytes=1):
            await log.at(node, piece)

    streamed = Replica(model, lambda pairs: torch.optim.SGD([p for _, p in pairs], lr=0.1), BatchSource(own=source))
    outcome = run(works, replicas=[streamed])
    third = 0.02 / 3
    assert [at for at, _ in log] == [pytest.approx(third * (1 + 2 * n / 4), abs=1e-6) for n in (1, 2, 3, 4)]
    assert log[0][1] == ((21, 23),)  # the last bias
    assert outcome.samples == 5


def test_one_compute_at_a_time() -> None:
    log = Log()

    async def works(node: Node, replica: Replica) -> None:
        await node.spawn(other(node))
        await node.spawn(other(node))
        await node.receive(Pong)
        await node.receive(Pong)

    async def other(node: Node) -> None:
        await node.compute(lambda: None)
        await log.at(node)
        await node.send(ME, Pong(0))

    run(works)
    assert log == [(0.02, ""), (0.04, "")]


def test_companions_end_with_their_role() -> None:
    closed: list[str] = []

    async def works(node: Node, replica: Replica) -> None:
        await node.spawn(responder(node))
        await node.sleep(0.01)

    async def responder(node: Node) -> None:
        try:
            await node.receive(Pong)
        finally:
            closed.append("closed")

    assert run(works).seconds == 0.01
    assert closed == ["closed"]


def test_a_server_computes_for_nothing_unless_the_cluster_says_so() -> None:
    async def serve(node: Node, replica: Replica) -> None:
        await node.compute(lambda: None)

    plan = Plan(roles=(Role(SERVER, serve),), limits=(), lockstep=False)
    times = [
        VirtualEngine(plan, {SERVER: replica()}, cluster, [], Referee(1)).run().seconds
        for cluster in (CLUSTER, Cluster(update=Seconds(0.5)))
    ]
    assert times == [0, 0.5 * 12]


def test_collectives_fall_back() -> None:
    async def sums(node: Node, replica: Replica) -> None:
        async def fallback(node: Node, vector: Vector, group: tuple[Address, ...]) -> None:
            vector.mul_(2)

        vector = Vector([torch.ones(1)])
        await node.sum(vector, (ME,), fallback)
        assert vector.parts[0] == 2

    run(sums)


async def chatter(node: Node, replica: Replica) -> None:
    """Everybody tells somebody, by chance, and listens for a while."""
    for step in node.steps():
        await node.compute(lambda: None)
        peer = node.rng.choice([address for address in workers(node.workers) if address != node.address])
        await node.send(peer, ping(step, 400 * (1 + node.rank)))
        heard = await node.receive_within(Ping, 0.005)
        await node.note("staleness", step - heard.step if heard else 0)


def test_the_same_seed_gives_the_same_trace(golden: Golden) -> None:
    def traced(seed: int) -> str:
        trace = Trace()
        run(chatter, chatter, chatter, watch=[trace], cluster=Cluster(jitter=0.5, link=LINK), limit=3, seed=seed)
        return trace.text()

    assert traced(7) == traced(7) != traced(8)
    golden("chatter.txt", traced(7))


def test_work_that_waits_for_the_compute_thread_is_done_in_the_order_of_asking() -> None:
    asked, done = list[int](), list[int]()

    async def work(node: Node, number: int) -> None:
        asked.append(number)
        await node.compute(partial(done.append, number))

    async def program(node: Node, replica: Replica) -> None:
        for number in range(4):
            await node.spawn(work(node, number))
        await node.sleep(1.0)

    perform(program)
    assert done == asked and sorted(done) == [0, 1, 2, 3]
