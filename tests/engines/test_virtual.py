"""The virtual engine: hand-written programs, numbers worked out by hand."""

from __future__ import annotations

import signal
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from covey.engines.cells import Cells
from covey.engines.virtual import Outcome, VirtualEngine
from covey.errors import PeerLost, PlanError, Stalled
from covey.message import Address, Message
from covey.observe.instruments import Instrument
from covey.observe.referee import Referee
from covey.observe.trace import Trace
from covey.program import Node, Receive
from covey.replica import Batch, Replica, Snapshot
from covey.simulate import BytesPerSecond, Cluster, Link, Seconds
from covey.strategy import Plan, Role, workers
from covey.target import Target
from covey.vector import Vector
from tests.conftest import Golden

ME, YOU, THIRD = workers(3)
SERVER = Address("server", 0)

# A thousand bytes take a millisecond, and another one to travel; a batch takes 20 of them.
LINK = Link(bandwidth=BytesPerSecond(1e6), latency=Seconds(0.001))
CLUSTER = Cluster(compute=Seconds(0.02), link=LINK)

Program = Callable[[Node, Replica], Coroutine[Any, Any, None]]


class Ping(Message):
    step: int
    load: Vector


class Pong(Message):
    step: int


class Word(Message):
    text: str


def ping(step: int = 0, size: int = 1000) -> Ping:
    return Ping(step, Vector([torch.full((size // 4,), float(step))]))


def replica(source: Callable[[int], Batch] | None = None) -> Replica:
    return Replica(nn.Linear(2, 1), lambda pairs: torch.optim.SGD([p for _, p in pairs], lr=0.1), source=source)


def run(
    *programs: Program, cluster: Cluster = CLUSTER, watch: Sequence[Instrument] = (), referee: Referee | None = None,
    score: Callable[[Sequence[Snapshot]], Mapping[str, float]] | None = None, replicas: Sequence[Replica] = (),
    limit: int | None = 1, **settings: Any,
) -> Outcome:  # fmt: skip
    """Run the programs as workers 0, 1, 2…"""
    addresses = workers(len(programs))
    roles = tuple(
        Role(address, program, trains=True, scored=True) for address, program in zip(addresses, programs, strict=True)
    )
    plan = Plan(roles=roles, limits=(limit,) * len(programs), **{"lockstep": False, **settings})
    given = dict(zip(addresses, replicas or [replica() for _ in programs], strict=True))
    return VirtualEngine(plan, given, cluster, watch, referee or Referee(10**9), score).run()


class Log(list[Any]):
    """What programs write down, each with its virtual time."""

    async def at(self, node: Node, what: Any = "") -> None:
        self.append((round(await node.now(), 6), what))


async def idle(node: Node, replica: Replica) -> None:
    pass


# -- time -----------------------------------------------------------------------------------------------------------


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
    assert (mine.compute, mine.waiting) == (pytest.approx(0.02), pytest.approx(0.002))
    assert (yours.waiting, yours.exchange) == (pytest.approx(0.02), pytest.approx(0.002))
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


# -- links ----------------------------------------------------------------------------------------------------------


def test_a_full_window_holds_the_sender_and_its_wait_is_exchange() -> None:
    log = Log()

    async def floods(node: Node, replica: Replica) -> None:
        for step in range(4):
            await node.send(YOU, ping(step))
            await log.at(node, step)

    async def drains(node: Node, replica: Replica) -> None:
        assert [(await node.receive(Ping)).step for _ in range(4)] == [0, 1, 2, 3]

    outcome = run(floods, drains, window=2000)
    assert log == [(0, 0), (0, 1), (0.002, 2), (0.003, 3)]
    assert outcome.tallies[ME].exchange == pytest.approx(0.003)


def test_a_message_larger_than_the_window_passes_alone() -> None:
    log = Log()

    async def sends(node: Node, replica: Replica) -> None:
        for step in range(2):
            await node.send(YOU, ping(step, 5000))
            await log.at(node, step)

    async def takes(node: Node, replica: Replica) -> None:
        await node.receive(Ping, step=0)
        await node.receive(Ping, step=1)

    run(sends, takes, window=2000)
    assert log == [(0, 0), (0.006, 1)]


def test_a_higher_priority_overtakes() -> None:
    async def sends(node: Node, replica: Replica) -> None:
        for step, priority in ((0, 0), (1, 0), (2, 5)):
            await node.send(YOU, ping(step), priority=priority)

    async def takes(node: Node, replica: Replica) -> None:
        assert [(await node.receive(Ping)).step for _ in range(3)] == [0, 2, 1]

    run(sends, takes)


@pytest.mark.parametrize("sharing", ["fifo", "fair"])
def test_the_latest_replaces_what_has_not_left(sharing: Any) -> None:
    heard: list[float] = []

    async def sends(node: Node, replica: Replica) -> None:
        for step in range(4):
            await node.send(YOU, ping(step), keep="latest")
        await node.send(YOU, Pong(0))

    async def takes(node: Node, replica: Replica) -> None:
        await node.receive(Pong)
        while message := node.receive_nowait(Ping):
            heard.append(message.load.parts[0][0].item())

    outcome = run(sends, takes, cluster=Cluster(link=LINK, sharing=sharing))
    assert heard == [0, 3]
    assert outcome.tallies[ME].bytes == {"worker 1": 2000}


def test_a_lossy_message_is_lost_only_when_the_window_is_full() -> None:
    async def sends(node: Node, replica: Replica) -> None:
        for step in range(4):
            await node.send(YOU, ping(step), lossy=True)
        await node.sleep(0.1)
        await node.send(YOU, ping(4), lossy=True)
        await node.send(YOU, Pong(0))

    async def takes(node: Node, replica: Replica) -> None:
        await node.receive(Pong)
        steps = [message.step for message in iter(lambda: node.receive_nowait(Ping), None)]
        assert steps == [0, 1, 4]

    run(sends, takes, window=2000)


def test_what_was_sent_stays_unless_it_is_lent() -> None:
    async def sends(node: Node, replica: Replica) -> None:
        for loan in (False, True):
            message = ping(1)
            await node.send(YOU, message, loan=loan)
            message.load.zero_()

    async def takes(node: Node, replica: Replica) -> None:
        kept, lent = await node.receive(Ping), await node.receive(Ping)
        assert (kept.load.parts[0][0], lent.load.parts[0][0]) == (1, 0)

    run(sends, takes)


def test_receive_into_a_vector() -> None:
    async def sends(node: Node, replica: Replica) -> None:
        await node.send(YOU, ping(7))
        await node.send(YOU, ping(8))

    async def takes(node: Node, replica: Replica) -> None:
        room = Vector([torch.zeros(250)])
        for step in (7, 8):
            message = await node.receive(Ping, into=room)
            assert message.load is room
            assert (room.parts[0] == step).all()
            await node.sleep(0.1)

    run(sends, takes)


def test_a_role_may_write_to_itself_for_nothing() -> None:
    async def alone(node: Node, replica: Replica) -> None:
        await node.send(ME, ping())
        assert (await node.receive(Ping)).sender == ME

    outcome = run(alone)
    assert (outcome.seconds, outcome.tallies[ME].bytes) == (0, {})


def test_sending_to_nobody_names_the_roles() -> None:
    async def lost(node: Node, replica: Replica) -> None:
        await node.send(SERVER, Pong(0))

    with pytest.raises(PlanError, match=r"worker 0 sends to server 0.*roles are worker 0"):
        run(lost)


# -- compute, streams and companions --------------------------------------------------------------------------------


def test_posts_arrive_while_the_work_goes_on() -> None:
    log = Log()

    async def works(node: Node, replica: Replica) -> None:
        await node.spawn(background(node))
        for _ in range(2):
            await log.at(node, (await node.receive(Pong, sender=ME)).step)

    async def background(node: Node) -> None:
        await node.compute(lambda: [node.host.post(Pong(n, sender=ME), n / 2) for n in (1, 2)])
        await log.at(node, "done")

    outcome = run(works)
    # The end of the work comes before a post of the same moment.
    assert log == [(0.01, 1), (0.02, "done"), (0.02, 2)]
    # The main program waited for its own compute: that is no waiting.
    assert (outcome.tallies[ME].compute, outcome.tallies[ME].waiting) == (pytest.approx(0.02), pytest.approx(0))


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

    streamed = Replica(model, lambda pairs: torch.optim.SGD([p for _, p in pairs], lr=0.1), source=source)
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


# -- scoring and ending ---------------------------------------------------------------------------------------------


async def trains(node: Node, replica: Replica) -> None:
    for _ in node.steps():
        await node.compute(lambda: None)
        await node.note("samples", 10)
        await node.note("loss", 2.0)


def test_the_clock_stands_still_while_the_model_is_scored() -> None:
    def score(parts: Sequence[Snapshot]) -> Mapping[str, float]:
        assert [part.params.numel for part in parts] == [3, 3]
        return {"accuracy": 0.5}

    referee = Referee(every=20)
    outcome = run(trains, trains, referee=referee, score=score, limit=3)
    rows = [(round(row["seconds"] or 0, 6), row["samples"], row["loss"]) for row in referee.history]
    assert rows[:3] == [(0.02, 20, 2.0), (0.04, 40, 2.0), (0.06, 60, 2.0)]
    assert outcome.seconds == pytest.approx(0.06)
    assert (outcome.samples, outcome.stopped) == (60, "budget")
    assert len(outcome.snapshots) == 2


def test_the_target_ends_each_worker_after_its_step() -> None:
    referee = Referee(every=50, target=Target("accuracy", 0.9))
    outcome = run(trains, trains, referee=referee, score=lambda parts: {"accuracy": 0.95}, limit=None)
    assert outcome.stopped == "target"
    assert referee.reached is not None
    assert (referee.reached.samples, round(referee.reached.seconds, 6)) == (60, 0.06)
    assert outcome.samples == 80  # each had begun its fourth step


def test_in_lockstep_all_stop_at_the_step_of_the_foremost() -> None:
    done = {ME: 0, YOU: 0}

    async def steps(node: Node, replica: Replica) -> None:
        for _ in node.steps():
            await node.compute(lambda: None)
            await node.note("samples", 10)
            done[node.address] += 1

    def stopped(lockstep: bool) -> tuple[int, int]:
        done.update({ME: 0, YOU: 0})
        referee = Referee(every=40, target=Target("accuracy", 0.9))
        cluster = Cluster(compute=Seconds(0.02), slowdowns={1: 3.0})
        run(
            steps, steps, cluster=cluster, referee=referee, score=lambda parts: {"accuracy": 1.0},
            limit=None, lockstep=lockstep,
        )  # fmt: skip
        return done[ME], done[YOU]

    # At 0.06 s worker 0 has done three steps and worker 1 its first.
    assert stopped(lockstep=True) == (4, 4)
    assert stopped(lockstep=False) == (4, 2)


def test_ctrl_c_stops_the_run_and_the_second_one_raises() -> None:
    def interrupting(times: int) -> Program:
        async def steps(node: Node, replica: Replica) -> None:
            for step in node.steps():
                for _ in range(times if step == 2 else 0):
                    signal.raise_signal(signal.SIGINT)
                await node.compute(lambda: None)

        return steps

    before = signal.getsignal(signal.SIGINT)
    outcome = run(interrupting(1), limit=None)
    assert (outcome.stopped, outcome.seconds) == ("interrupted", pytest.approx(0.06))
    with pytest.raises(KeyboardInterrupt):
        run(interrupting(2), limit=None)
    assert signal.getsignal(signal.SIGINT) is before


# -- when it goes wrong ---------------------------------------------------------------------------------------------


def test_a_stall_is_a_picture(golden: Golden) -> None:
    async def waits(node: Node, replica: Replica) -> None:
        onward = workers(3)[(node.rank + 1) % 2]
        await node.send(onward, Pong(0))
        await node.receive(Pong, sender=onward)
        await node.receive(Ping, sender=onward, step=3)

    async def third(node: Node, replica: Replica) -> None:
        await node.spawn(companion(node))
        await Receive((Word, Pong))

    async def companion(node: Node) -> None:
        await node.receive(Word, sender=Address("worker", 3))

    with pytest.raises(Stalled) as stalled:
        run(waits, waits, third, idle)
    golden("stalled.txt", f"{stalled.value}\n")


def test_a_killed_role_ends_the_run() -> None:
    async def tells(node: Node, replica: Replica) -> None:
        for _ in node.steps():
            await node.sleep(1.99)
            await node.send(ME, Pong(0))

    async def listens(node: Node, replica: Replica) -> None:
        while True:
            await node.receive(Pong)

    killed = Cluster(link=LINK, kills={"worker 1": Seconds(5.0)})
    with pytest.raises(PeerLost, match=r"^worker 1 was killed at 5\.0 s; last heard at 3\.981 s$"):
        run(listens, tells, cluster=killed, limit=None)
    assert run(idle, idle, cluster=killed).stopped == "budget"  # it had ended before
    with pytest.raises(Stalled):
        run(idle, listens, cluster=killed)
    with pytest.raises(PlanError, match="no such role; this run has worker 0"):
        run(idle, cluster=Cluster(kills={"server 0": Seconds(1.0)}))


@pytest.mark.parametrize("where", ["program", "work", "companion"])
def test_an_error_of_a_role_is_the_users_own(where: str) -> None:
    async def fails(node: Node, replica: Replica) -> None:
        if where == "program":
            raise ZeroDivisionError
        if where == "companion":
            await node.spawn(fail(node))
        await fail(node)

    async def fail(node: Node) -> None:
        await node.sleep(0.25)
        await node.compute(lambda: 1 / 0)

    with pytest.raises(ZeroDivisionError) as failed:
        run(idle, fails)
    assert [note.split(",")[0] for note in failed.value.__notes__] == ["(in worker 1"]


def test_work_that_runs_dry_does_not_end_its_role_quietly() -> None:
    async def runs_dry(node: Node, replica: Replica) -> None:
        await node.compute(lambda: next(iter(())))

    with pytest.raises(StopIteration):
        run(runs_dry)


def test_a_foreign_awaitable_is_refused() -> None:
    class Foreign:
        def __await__(self) -> Any:
            yield self

    async def foreign(node: Node, replica: Replica) -> None:
        await Foreign()

    with pytest.raises(TypeError, match="awaited a Foreign"):
        run(foreign)


# -- the same again -------------------------------------------------------------------------------------------------


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


def test_what_is_remembered_comes_back_in_order() -> None:
    cells = Cells(kept=["old"])
    first, second = cells.remember("new"), cells.remember(2)
    second.value += 1
    assert (first.value, cells.values()) == ("old", ["old", 3])
