"""Can somebody who has the model tell who was in the data? Beside the undefended run, which tells.

    python -m benchmarks.membership [SEEDS] [DELTA]     # 3 seeds, 1e-4

Nothing explains the labels, so that a model which knows one has seen it: the worst case for its members. The
attack takes those for members whose loss is below a limit (Yeom et al. 2018); the limit is chosen with one half of
members and others, and tried on the other half. A coin is right half of the time.
"""

from __future__ import annotations

import json
import statistics
import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import covey
from covey.privacy.accountant import noise_for
from covey.task import PrivateSgd, Task

MEMBERS, STEPS, EPSILON = 1000, 300, 2.0
CLIENTS: dict[str, Any] = {"clients": 200, "rounds": 60, "per_round": 40, "selection": "5s", "runs": False}


def drawn(members: int, seed: int) -> tuple[Tensor, Tensor]:
    """As many others as members."""
    chance = torch.Generator().manual_seed(seed)
    x = torch.randn(2 * members, 30, generator=chance)
    return x, torch.randint(2, (2 * members,), generator=chance)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 2))


def task(members: int, seed: int, private: PrivateSgd | None = None) -> Task:
    x, y = drawn(members, seed)
    return Task(
        model=net, data=TensorDataset(x[:members], y[:members]), loss=nn.functional.cross_entropy, private=private,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.5), batch_size=members // 10,
    )  # fmt: skip


def attacked(weights: dict[str, Any], members: int, seed: int) -> float:
    """How often the attack is right."""
    model = net()
    model.load_state_dict(weights)
    x, y = drawn(members, seed)
    with torch.no_grad():
        losses = nn.functional.cross_entropy(model(x), y, reduction="none")
    inside, outside = losses[:members], losses[members:]
    limits = losses.sort().values
    known = [(inside[::2] < limit).float().mean() + (outside[::2] >= limit).float().mean() for limit in limits]
    limit = limits[int(torch.stack(known).argmax())]
    return float((inside[1::2] < limit).float().mean() + (outside[1::2] >= limit).float().mean()) / 2


def samples(seed: int, private: bool, delta: float = 1e-4) -> float:
    """The attack on the samples of a run with or without `Task(private=…)`."""
    noise = PrivateSgd(noise=noise_for(EPSILON, 0.1, STEPS, delta), clip=1.0, delta=delta) if private else None
    made = task(MEMBERS, seed, noise)
    found = covey.fit(made, "bsp", workers=1, engine="simulated", steps=STEPS, seed=seed, runs=False)
    assert not private or (found.privacy and found.privacy.epsilon and 1.9 < found.privacy.epsilon <= EPSILON)
    return attacked(found.weights, MEMBERS, seed)


def clients(seed: int, private: bool, delta: float = 1e-4) -> float:
    """The attack on the samples of clients, five each, of a federated run with or without `+ dp`."""
    strategy = "fedavg(epochs=5, batch=all)" + (f" + dp(clip=0.5, delta={delta})" if private else "")
    epsilon = EPSILON if private else None
    found = covey.federate(task(MEMBERS, seed), strategy, epsilon=epsilon, seed=seed, **CLIENTS)
    assert not private or (found.privacy and found.privacy.epsilon and 1.9 < found.privacy.epsilon <= EPSILON)
    return attacked(found.weights, MEMBERS, seed)


def measure(seeds: int = 3, delta: float = 1e-4) -> dict[str, Any]:
    """The shares of right guesses: of each seed, their mean, and its standard error."""
    told: dict[str, Any] = {}
    for name, attack in (("samples", samples), ("clients", clients)):
        for private in (False, True):
            rates = [attack(seed, private, delta) for seed in range(seeds)]
            error = statistics.stdev(rates) / seeds**0.5 if seeds > 1 else None
            told[f"{name}, {'epsilon 2' if private else 'undefended'}"] = {
                "mean": round(statistics.mean(rates), 4), "error": error and round(error, 4), "seeds": rates,
            }  # fmt: skip
    return told


if __name__ == "__main__":
    given = sys.argv[1:]
    print(json.dumps(measure(*map(int, given[:1]), *map(float, given[1:2])), indent=1))
