"""What two workers do so that a machine and a task can be measured: the programs of a run that trains nothing.

CPU time, not the clock, wherever that is what the virtual engine asks for: it minds no other load of the machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean, median, quantiles, stdev

import torch

from covey.calibrate.loopback import Loopback
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.program import Node
from covey.vector import Vector

WARM = 3  # of everything, before it counts
TURNS = 40  # messages there and back, and other short things
RESTS = 12  # reports
PARTS = 4  # of a batch
ASLEEP = 0.002  # seconds after which the other end waits, and its cores have nothing to do
REPORTS = 0.02  # seconds between two reports to the launcher


class Echo(Message):
    """A message there and back."""

    wire_name = "probes.ball"

    load: Vector
    counted = False


class SecondLinkAddress(Message):
    """How a worker is found on a second link."""

    wire_name = "probes.card"

    key: str
    endpoint: str
    counted = False


@dataclass(slots=True)
class CpuClocks:
    """What the driver's thread and the other threads of this process took, and the clock on the wall."""

    driver: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)

    def busy(self) -> list[float]:
        """CPU time of all threads together; the wall's where several compute, or something that is no CPU."""
        if torch.get_num_threads() > 1 or torch.cuda.is_available():
            return self.wall
        return [mine + theirs for mine, theirs in zip(self.driver, self.others, strict=True)]

    @contextmanager
    def running(self) -> Iterator[None]:
        driver, all_threads, wall = time.thread_time(), time.process_time(), time.perf_counter()
        yield
        took = time.thread_time() - driver
        self.driver.append(took)
        self.others.append(time.process_time() - all_threads - took)
        self.wall.append(time.perf_counter() - wall)


async def probe(
    node: Node, replica: Replica, *, sizes: tuple[int, ...], beside: tuple[int, ...], turns: int = TURNS
) -> None:
    """Measure what a worker does, all of them at once as in a run; then ranks 0 and 1 exchange messages."""
    await compute(node, replica, turns)
    await arithmetic(node, replica)
    if node.rank > 1:
        return
    peer = Address("worker", 1 - node.rank)
    for size in sizes:
        await ping_pong(node, replica, peer, Vector([torch.zeros(size, dtype=torch.uint8)]), f"{size}", turns)
    await rest(node)
    if beside:
        await second_link(node, peer, beside)


async def compute(node: Node, replica: Replica, turns: int) -> None:
    """Batches and optimizer steps, as in a run: each finds the caches as the other left them."""
    batches, steps = CpuClocks(), CpuClocks()
    for _ in node.steps():
        with batches.running():
            await replica.gradient(node)
        with steps.running():
            replica.update()
    times = batches.busy()[WARM:]
    await node.note("batch", fmean(times))
    await node.note("jitter", stdev(times) / fmean(times))
    await node.note("reports in a batch", min(1.0, fmean(batches.wall[WARM:]) / REPORTS))
    await node.note("step", fmean(steps.driver[WARM:]))
    await node.note("part of a batch", await part_of_a_batch(node, replica, turns) / fmean(times))


async def part_of_a_batch(node: Node, replica: Replica, turns: int) -> float:
    """Forward and backward on the first of the parts of a batch."""
    clocks = CpuClocks()
    for step in range(WARM + turns):
        with clocks.running():
            await replica.gradient_of(node, node.rank, step, 0, PARTS)
    return fmean(clocks.busy()[WARM:])


async def arithmetic(node: Node, replica: Replica) -> None:
    """Optimizer steps over all parameters and an eighth of them, sums of large vectors and of tiny ones."""
    eighth = replica.pieces(8)[0] if replica.flat.numel >= 8 else replica.trained
    vector, other = replica.flat.clone(), replica.flat.clone()
    tiny, small = Vector([torch.zeros(1)]), Vector([torch.zeros(1)])
    await node.note("sum", _each(partial(vector.add_, other)))
    await node.note("tiny sum", _each(partial(tiny.add_, small)))
    whole = _each(replica.update)
    replica.keep(eighth, buffers=False)
    await node.note("part of a step", _each(replica.update) / whole)
    await node.note("part", replica.flat.cut(eighth).nbytes)
    await node.note("model", replica.flat.nbytes)


def _each(act: Callable[[], object]) -> float:
    """CPU time of this thread for one of many."""
    taken = [_once(act) for _ in range(WARM + TURNS)]
    return fmean(taken[WARM:])


def _once(act: Callable[[], object]) -> float:
    begin = time.thread_time()
    act()
    return time.thread_time() - begin


async def ping_pong(node: Node, replica: Replica, peer: Address, load: Vector, name: str, turns: int) -> None:
    """Messages there and back, one at a time: what sending and receiving costs either end, and how long it takes.

    A batch lies between two of them, as in a run: caches have gone cold, and the other end has to wake up.
    """
    sends, whole = CpuClocks(), CpuClocks()
    if node.rank == 1:
        for turn in range(WARM + turns):
            await node.receive(Echo, sender=peer)
            await node.send(peer, Echo(load))
            await node.compute(partial(replica.differentiate, turn))
        return
    for turn in range(WARM + turns):
        await node.compute(partial(replica.differentiate, turn))
        await node.sleep(ASLEEP)
        with whole.running():
            with sends.running():
                await node.send(peer, Echo(load))
            await node.receive(Echo, sender=peer)
    await node.note(f"send {name}", fmean(sends.driver[WARM:]))
    await node.note(f"receive {name}", fmean(whole.driver[WARM:]) - fmean(sends.driver[WARM:]))
    await node.note(f"reports while receiving {name}", min(1.0, fmean(whole.wall[WARM:]) / REPORTS))
    await node.note(f"network {name}", fmean(whole.others[WARM:]) / 2)
    await node.note(f"there and back {name}", quiet(whole.wall[WARM:]))


def quiet(times: list[float]) -> float:
    """A time as it would be without other load: the lower quartile."""
    return quantiles(times, n=4)[0]


async def rest(node: Node) -> None:
    """Wake up now and then, when a report to the launcher is due."""
    reports = CpuClocks()
    for _ in range(RESTS):
        with reports.running():
            await node.sleep(1.05 * REPORTS)
    await node.note("report", median(reports.busy()))


async def second_link(node: Node, peer: Address, sizes: tuple[int, ...]) -> None:
    """The same balls over TCP with encryption, as between machines; they stay on this one."""
    link = Loopback(node.address, peer)
    await node.send(peer, SecondLinkAddress(key=link.key, endpoint=""))
    link.open((await node.receive(SecondLinkAddress, sender=peer)).key)
    await node.send(peer, SecondLinkAddress(key="", endpoint=link.endpoint))
    link.connect((await node.receive(SecondLinkAddress, sender=peer)).endpoint)
    for size in sizes:
        ball, clocks = Echo(Vector([torch.zeros(size, dtype=torch.uint8)])), CpuClocks()
        for _ in range(WARM + TURNS):
            with clocks.running():
                link.turn(ball, throws=node.rank == 0)
        if node.rank == 0:
            await node.note(f"tcp driver {size}", fmean(clocks.driver[WARM:]))
            await node.note(f"tcp network {size}", fmean(clocks.others[WARM:]) / 2)
            await node.note(f"tcp there and back {size}", quiet(clocks.wall[WARM:]))
    await node.ask(
        peer, SecondLinkAddress(key="", endpoint=""), SecondLinkAddress
    )  # neither leaves before the other has all
    link.close()
