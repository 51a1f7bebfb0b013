"""What the tests of all cluster engines share: a run on digits that keeps what every strategy promises, and killers."""

from __future__ import annotations

import random
import subprocess
import time
from functools import cache
from math import ceil
from typing import Any

import pytest
import torch

import covey
from covey.errors import PeerLost
from covey.observe.result import Result
from covey.task import load_task
from tests.promises.digits import NUMBERS, counted, formula, positive
from tests.real.harness import SLOW, Room, Watch, differing, trained
from tests.warm import Command

DIGITS = "examples/digits.py"
EPOCHS, SET, BATCH = 5, 1437, 32
SAMPLES = EPOCHS * SET
STEPS = 115  # of two workers in that time
GONE_WITHIN = 10.0  # seconds, on a cluster: the promise
PATIENCE = 240.0

SHORT = ("bsp", "gosgd")  # in CI
LONG = ("asynchronous", "ssp", "allreduce", "local_sgd", "easgd", "dpsgd")
CREWS = {"ssp": 3, "allreduce": 4, "local_sgd": 3, "easgd": 3, "dpsgd": 4}  # workers, if not two
EXACT = ("bsp", "allreduce")  # bit-equal on every engine, with one thread

every_strategy = pytest.mark.parametrize(
    "name", [*SHORT, *(pytest.param(name, marks=pytest.mark.full) for name in LONG)]
)


def keeps_promises(engine: str, name: str, **given: Any) -> Result:
    """Train digits on two to four workers: the samples, the traffic and the accuracy are those of every engine.

    Use it inside the `room` fixture, which checks that nothing is left behind.
    """
    result = covey.fit(DIGITS, name, CREWS.get(name, 2), engine=engine, epochs=EPOCHS, threads=1, stall="60s", **given)
    check(result, name, engine, CREWS.get(name, 2))
    load_task(DIGITS).model().load_state_dict(result.weights)
    if name in EXACT:
        assert_bit_equal(result, name, CREWS.get(name, 2))
    return result


def check(result: Result, name: str, engine: str, workers: int = 2) -> None:
    """What five passes over the digits come to, whatever they ran on."""
    assert result.engine == engine and result.stopped == "budget"
    assert result.samples == SAMPLES
    assert result.history[-1]["accuracy"] > 0.85
    traffic, says = result.traffic, formula(name)
    if says.beside is not None:  # only chance knows how many
        assert traffic.bytes == traffic.messages * (4 * NUMBERS + says.beside)
    else:
        steps = EPOCHS * ceil(ceil(SET / workers) / BATCH)
        assert positive(traffic.by_link) == positive(says.links(counted(name, workers, steps)))
    assert traffic.bytes == sum(traffic.by_link.values()) == sum(traffic.by_role.values())


def assert_bit_equal(result: Result, name: str, workers: int = 2) -> None:
    """The weights are those of the engine `local`; where roles share no memory, sums are those of virtual time."""
    engine = "simulated" if result.engine.startswith("lab") else "local"
    assert not differing(result.weights, expected_weights(name, workers, engine))


@cache
def expected_weights(name: str, workers: int, engine: str) -> dict[str, Any]:
    threads = None if engine == "simulated" else 1
    return covey.fit(DIGITS, name, workers, epochs=EPOCHS, threads=threads, engine=engine).weights


def cut_models(quick: str) -> pytest.MarkDecorator:
    """One mesh in CI, of those that divide a model in each way."""
    meshes = ("tensor=2", "shard=2", "stage=2, timetable=plain")
    return pytest.mark.parametrize(
        "mesh", [one if one == quick else pytest.param(one, marks=pytest.mark.full) for one in meshes]
    )


def computes_the_same(engine: str, mesh: str) -> None:
    """Two workers that divide a model train as workers with whole ones do, one for each batch."""
    found = covey.fit(DIGITS, f"allreduce with mesh({mesh})", 2, engine=engine, steps=10, threads=1)
    whole = covey.fit(DIGITS, "allreduce", 2 if mesh == "shard=2" else 1, engine="simulated", steps=10)
    assert found.engine == engine and found.samples == whole.samples
    for name, weights in whole.weights.items():
        torch.testing.assert_close(found.weights[name], weights, atol=1e-6, rtol=0)


def names_the_dead(room: Room, engine: str, victim: str, strategy: str = "bsp", **given: Any) -> PeerLost:
    """Kill a role of three workers and two servers with -9 at a random moment: it is named, in time."""
    moment = random.randrange(200)
    watch = Watch(trained(moment), lambda: room.kill(victim))
    servers = 2 if strategy in ("bsp", "ssp", "asynchronous") else None
    with pytest.raises(PeerLost, match=f"^{victim} exited with signal 9, SIGKILL") as lost:
        covey.fit(
            room.task(before_step=SLOW), strategy, 3, engine=engine, steps=2000, servers=servers, watcher=watch,
            threads=1, stall="60s", **given,
        )  # fmt: skip
    assert watch.acted is not None
    assert time.monotonic() - watch.acted < GONE_WITHIN, f"killed at {moment} samples"
    room.wait_empty(GONE_WITHIN - (time.monotonic() - watch.acted))
    return lost.value


def restarts(room: Room, engine: str, **given: Any) -> None:
    """Kill a worker after a checkpoint: the run starts again from it, to the weights of a run that lost nobody."""
    task, kept = room.task(before_step=SLOW), room.path / "kept"
    watch = Watch(lambda now: (kept / "checkpoint-000001").exists(), lambda: room.kill("worker 1"))
    result = covey.fit(
        task, "bsp", 2, engine=engine, steps=150, checkpoint=kept, every="300ms", on_failure="restart", watcher=watch,
        threads=1, stall="60s", **given,
    )  # fmt: skip
    assert watch.acted is not None and isinstance(result.membership, list)
    assert [(event.event, event.who) for event in result.membership] == [("restart", "worker 1")]
    assert sum("the run starts again from" in line for line in watch.said) == 1
    assert not differing(result.weights, covey.fit(task, "bsp", 2, engine="simulated", steps=150).weights)


def finish(process: subprocess.Popen[str] | Command) -> tuple[int, str, str]:
    """Exit code and output; the process must end by itself. Starting takes long where many things run at once."""
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err
