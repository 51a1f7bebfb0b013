"""Everything of a run in virtual time that is worth a number: what was sent, waited for, learned, on each role."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from covey.errors import CoveyError, PlanError
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.observe.instruments import Instrument
from covey.observe.result import Result
from covey.run.options import check, options
from covey.run.request import request
from covey.run.simulated import simulated
from covey.task import Task
from tests.behaviour.kept_values import number

ROW = ("samples", "bytes", "seconds", "loss", "error")
"""Of each score."""


class Sends(Instrument):
    """Counts messages and their bytes, by kind and direction."""

    def __init__(self) -> None:
        self.found: dict[str, list[int]] = {}

    def sent(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
        counted = self.found.setdefault(f"{type(message).__name__}.{sender.role}>{to.role}", [0, 0])
        counted[0] += 1
        counted[1] += size


def lines(task: Task, spec: str, workers: int, folder: Path, given: Mapping[str, Any]) -> Iterator[str]:
    """A run's numbers; or why it was refused, or how it ended."""
    sends, replicas = Sends(), dict[Address, Replica]()
    asked_for = {"engine": "simulated", "instruments": [sends], **given}
    if asked_for.get("checkpoint"):
        asked_for["checkpoint"] = folder
    try:
        wishes = options(asked_for)
        check(wishes, "simulated", None)
        asked = request(task, spec, workers, wishes)
        result = simulated(asked, replicas.update)
    except PlanError as error:
        yield f"refused: {said(error)}"
        return
    except CoveyError as error:
        yield f"ended: {type(error).__name__}: {said(error)}"
        return
    yield f"is: {asked.strategy.text}"
    yield from of_result(result)
    yield "sent: " + " ".join(f"{kind}={count}/{size}" for kind, (count, size) in sorted(sends.found.items()))
    if result.weights:
        yield f"model: {of_state(result.weights)}"
    yield from of_roles(result, replicas)


def said(error: Exception) -> str:
    """The sentence, without the SPEC and the caret before it, and without a traceback."""
    return " ".join(str(error).rpartition("^ ")[2].partition("\n\n")[0].split())


def of_result(result: Result) -> Iterator[str]:
    yield (
        f"run: updates={result.updates} samples={result.samples} seconds={number(result.seconds)} "
        f"messages={result.traffic.messages} bytes={result.traffic.bytes} stopped={result.stopped}"
    )
    yield "scores: " + " ".join(
        "/".join(number(value) for key in ROW if (value := row.get(key)) is not None) for row in result.history
    )
    if result.staleness.histogram:
        yield "staleness: " + " ".join(f"{age}={count}" for age, count in result.staleness.histogram.items())
    if result.notes:
        yield "notes: " + " ".join(f"{kind.replace(' ', '_')}={number(value)}" for kind, value in result.notes.items())
    if isinstance(result.membership, list):
        yield "membership: " + " ".join(
            f"{event.event}.{event.who.replace(' ', '.')}={number(event.seconds)}/{number(event.stalled)}/{event.view}"
            for event in result.membership
        )
        yield f"goodput: accepted={result.goodput.accepted} repeated={result.goodput.repeated}"  # type: ignore[union-attr]


def of_roles(result: Result, replicas: Mapping[Address, Replica]) -> Iterator[str]:
    """How each spent its time; and its weights, of those that train."""
    known = {str(address): replica for address, replica in replicas.items()}
    for who, shares in result.roles.items():
        spent = f"compute={shares.compute} exchange={shares.exchange} waiting={shares.waiting}"
        line = f"{who}: {spent} memory={shares.memory}"
        replica = known.get(who)
        yield line if replica is None or not who.startswith("worker") else f"{line} {of_replica(replica)}"


def of_replica(replica: Replica) -> str:
    if any(part.is_meta for part in replica.flat.parts):
        return ""
    found = f"weights={projected(replica.flat.parts)}"
    buffers = replica.layout.buffers.parts
    return f"{found} buffers={projected(buffers)}" if buffers else found


def of_state(state: Mapping[str, Tensor]) -> str:
    """Weights, float buffers, and counters, of a state dict."""
    buffers = [value for name, value in state.items() if "running" in name]
    counters = [int(value) for value in state.values() if not value.is_floating_point()]
    weights = [value for name, value in state.items() if value.is_floating_point() and "running" not in name]
    found = f"weights={projected(weights)}"
    found += f" buffers={projected(buffers)}" if buffers else ""
    return found + (f" counters={','.join(map(str, counters))}" if counters else "")


def projected(tensors: Iterable[Tensor]) -> str:
    """The norm of all numbers together, and where they lie along two fixed directions."""
    found = [tensor.detach().double().reshape(-1) for tensor in tensors]
    whole = torch.cat(found) if found else torch.zeros(0, dtype=torch.float64)
    ways = directions(whole.numel())
    return ",".join(number(float(value)) for value in (whole.norm(), *(way @ whole for way in ways)))


@cache
def directions(size: int) -> tuple[Tensor, Tensor]:
    chance = np.random.default_rng(7)
    return torch.from_numpy(chance.standard_normal(size)), torch.from_numpy(chance.standard_normal(size))
