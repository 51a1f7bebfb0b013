"""How long do a push, an addition and a pull of 100 MB take: covey against torch.distributed.rpc and a Ray actor?

Two processes on this machine, one pair for each; they take turns, so all see the same machine. covey's exchange through
the memory that both share, with the answer lent or copied, and through sockets as between hosts; and what one addition
and one copy of that size take, which is the least. `python -m benchmarks.push_pull`
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from covey.engines.process.role.allocator import keep_memory
from covey.engines.transport.shared import segment as shared_segment
from covey.engines.transport.shared.memory import HostMemory
from covey.engines.transport.zmq import ZmqTransport
from covey.message import Address, Message
from covey.program import Receive
from covey.vector import Vector

NUMBERS = 25_000_000  # float32: 100 MB
WORKER, SERVER = Address("worker", 0), Address("server", 0)


class Push(Message, kw_only=True):
    wire_name = "benchmark.push_pull.push"

    grad: Vector


class Pull(Message, kw_only=True):
    wire_name = "benchmark.push_pull.pull"

    weights: Vector


class Bye(Message, kw_only=True):
    wire_name = "benchmark.push_pull.bye"


def receive(transport: ZmqTransport, kind: type[Message], into: Vector | None) -> Message:
    transport.expect(Receive((kind,), into=into))
    while True:
        messages, _ = transport.poll(10.0)
        if messages:
            return messages[0]


def covey_server(place: str, loan: bool, settings: dict[str, int]) -> None:
    """Add each push, and answer with the sum."""
    transport = ready(place, SERVER, settings)
    weights = housed(transport, Vector([torch.zeros(NUMBERS)]))
    grad = None if transport.memory else Vector([torch.empty(NUMBERS)])  # lent memory is read in place
    while isinstance(push := receive(transport, Push, grad), Push):
        weights.add_(push.grad)
        del push
        # Lent, the sum must not change before it has left. The only worker's next push shows that it has; with more
        # workers a server sends copies instead, which is what `loan=False` measures.
        transport.offer(WORKER, Pull(sender=SERVER, weights=weights), loan=loan)
    transport.close()


def covey_worker(place: str, settings: dict[str, int], turns: Connection) -> None:
    transport = ready(place, WORKER, settings)
    weights, grad = Vector([torch.empty(NUMBERS)]), housed(transport, Vector([torch.ones(NUMBERS)]))

    def step() -> Tensor:
        transport.offer(SERVER, Push(sender=WORKER, grad=grad), loan=True)
        receive(transport, Pull, weights)
        return weights.parts[0]

    take_turns(step, turns)
    transport.offer(SERVER, Bye(sender=WORKER))
    transport.close(linger=5.0)


def ready(place: str, me: Address, settings: dict[str, int]) -> ZmqTransport:
    torch.set_num_threads(1)
    keep_memory()
    book = {role: f"ipc://{place}/{role.role}" for role in (WORKER, SERVER)}
    memory = HostMemory(me, shared_segment.SEGMENT[0]) if shared_segment.SEGMENT else None
    return ZmqTransport(me, book, limit=1 << 30, memory=memory, **settings)


def housed(transport: ZmqTransport, vector: Vector) -> Vector:
    """Where a role's parameters and gradients live."""
    return transport.memory.blocks.house(vector) if transport.memory else vector


def rpc_add(grad: Tensor) -> Tensor:
    """Runs on the server."""
    return SUM.add_(grad)


SUM = torch.zeros(0)


def rpc_server(port: int) -> None:
    global SUM  # noqa: PLW0603  # a remote function finds its state by name
    SUM = torch.zeros(NUMBERS)
    with_rpc("server", port, lambda: None)


def rpc_worker(port: int, turns: Connection) -> None:
    from torch.distributed import rpc

    grad = torch.ones(NUMBERS)
    with_rpc("worker", port, lambda: take_turns(lambda: rpc.rpc_sync("server", rpc_add, (grad,)), turns))


def with_rpc(name: str, port: int, work: Callable[[], None]) -> None:
    from torch.distributed import rpc

    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TP_SOCKET_IFNAME="lo", GLOO_SOCKET_IFNAME="lo")
    rpc.init_rpc(name, rank=int(name == "worker"), world_size=2)
    work()
    rpc.shutdown()


def take_turns(step: Callable[[], Tensor], turns: Connection) -> None:
    """Whenever asked, do one step and tell how long it took; the answer is checked."""
    expected = 0.0
    while turns.recv():
        begin = time.perf_counter()
        answer = step()
        seconds = time.perf_counter() - begin
        expected += 1.0
        assert answer[0] == answer[-1] == expected, "the answer is not the sum of the pushes"
        turns.send(seconds)


def ray_worker(turns: Connection) -> None:
    """Against an actor, which gets and gives its numbers through Ray's object store."""
    import ray

    torch.set_num_threads(1)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")

    @ray.remote  # type: ignore[untyped-decorator]
    class Server:
        def __init__(self) -> None:
            torch.set_num_threads(1)
            self.sum = torch.zeros(NUMBERS).numpy()

        def add(self, grad: Any) -> Any:
            self.sum += grad
            return self.sum

    server, grad = Server.remote(), torch.ones(NUMBERS).numpy()
    take_turns(lambda: torch.from_numpy(ray.get(server.add.remote(grad)).copy()), turns)
    ray.shutdown()


def least_worker(turns: Connection) -> None:
    """One addition and one copy, in one process."""
    torch.set_num_threads(1)
    weights, grad, copy = torch.zeros(NUMBERS), torch.ones(NUMBERS), torch.empty(NUMBERS)
    take_turns(lambda: copy.copy_(weights.add_(grad)), turns)


class Pair:
    """A worker and its server, in processes of their own; with `shared` memory they are forked from this one."""

    def __init__(
        self, worker: Callable[[Connection], None], server: Callable[[], None] | None = None, shared: bool = False
    ) -> None:
        shared_segment.SEGMENT.clear()
        if shared:
            shared_segment.create([WORKER, SERVER])
        fresh = multiprocessing.get_context("fork" if shared else "spawn")
        self.turns, theirs = fresh.Pipe()
        self.processes = [fresh.Process(target=worker, args=(theirs,), daemon=worker is not ray_worker)]
        if server:
            self.processes.append(fresh.Process(target=server, daemon=True))
        for process in self.processes:
            process.start()

    def step(self) -> float:
        self.turns.send(True)
        return float(self.turns.recv())

    def stop(self) -> None:
        self.turns.send(False)
        for process in self.processes:
            process.join(30)


def measure(rounds: int = 9, warm_up: int = 3, **settings: int) -> dict[str, Any]:
    """Median seconds of a push, an addition and a pull: with the answer lent, with it copied, and by rpc."""
    with tempfile.TemporaryDirectory() as place:
        port = free_port()

        def ours(name: str, loan: bool, shared: bool) -> Pair:
            os.mkdir(f"{place}/{name}")
            worker = partial(covey_worker, f"{place}/{name}", settings)
            return Pair(worker, partial(covey_server, f"{place}/{name}", loan, settings), shared)

        pairs = {
            "lent": ours("lent", True, True),
            "copied": ours("copied", False, True),
            "sockets": ours("sockets", True, False),
            "rpc": Pair(partial(rpc_worker, port), partial(rpc_server, port)),
            "ray": Pair(ray_worker),
            "least": Pair(least_worker),
        }
        times: dict[str, list[float]] = {name: [] for name in pairs}
        for _ in range(warm_up + rounds):
            for name, pair in pairs.items():
                times[name].append(pair.step())
        for pair in pairs.values():
            pair.stop()
    median = {name: statistics.median(times[name][warm_up:]) for name in pairs}
    return {
        "megabytes": NUMBERS * 4 / 1e6,
        "rounds": rounds,
        "seconds": median,
        "spread": {name: [min(times[name][warm_up:]), max(times[name][warm_up:])] for name in pairs},
        "ratio": {
            name: {peer: median[name] / median[peer] for peer in ("rpc", "ray", "least")}
            for name in ("lent", "copied", "sockets")
        },
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
