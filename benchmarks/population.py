"""What does a day of a large population cost? CPU seconds and memory of federated runs in virtual time.

    python -m benchmarks.population day       # 100,000 clients that train, 300 a round, four times as many at night
    python -m benchmarks.population million   # a million clients, timing only

The seconds are those of one core; a round takes about three minutes of virtual time, most of it the clients' training.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import covey
from benchmarks.federated import data

CLIENTS, PER_CLIENT = 100_000, 10
SLOW = {"compute": "120s", "uplink": "1mbit", "availability": "daily(share=0.3, swing=4)"}


def task(train: TensorDataset) -> covey.Task:
    return covey.Task(
        model=lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)), data=train,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1), loss=nn.functional.cross_entropy, batch_size=10,
        evaluate=covey.accuracy(data(2_000, 2)),
    )  # fmt: skip


def day(rounds: int = 500, clients: int = CLIENTS) -> dict[str, Any]:
    """A virtual day of training."""
    made = task(data(clients * PER_CLIENT, 1))
    return _told(made, clients=clients, per_round=300, rounds=rounds, score_every=100, **SLOW)


def million(rounds: int = 100) -> dict[str, Any]:
    """Many more clients than samples, of which none trains."""
    return _told(task(data(1_000, 1)), clients=1_000_000, per_round=300, rounds=rounds, timing_only=True, **SLOW)


def _told(made: covey.Task, **given: Any) -> dict[str, Any]:
    torch.set_num_threads(1)
    before, used = time.perf_counter(), time.process_time()
    result = covey.federate(made, "fedavg", runs=False, **given)
    seconds, used = time.perf_counter() - before, time.process_time() - used
    rounds = result.participation.rounds if result.participation else []
    chosen = sum(one.chosen for one in rounds)
    there = [one.there for one in rounds[2:]]  # before that the service has not seen a whole cycle
    return {
        "clients": given["clients"], "hours of virtual time": round(result.seconds / 3600, 2),
        "rounds": len(rounds), "committed": sum(one.state == "committed" for one in rounds), "chosen clients": chosen,
        "dropped out": round(result.participation.drop_out or 0, 4) if result.participation else None,
        "there, from and to": [min(there, default=0), max(there, default=0)],
        "accuracy": result.history[-1].get("accuracy") if result.history else None,
        "CPU s": round(used, 1), "s": round(seconds, 1), "ms of CPU for a chosen client": round(1e3 * used / chosen, 3),
        "peak memory, GB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
    }  # fmt: skip


if __name__ == "__main__":
    which, *more = sys.argv[1:] or ["day"]
    print(json.dumps({"day": day, "million": million}[which](*map(int, more)), indent=1))
