"""Flower's simulation of the same clients: client-rounds per second, and the accuracy in the end, as JSON.

    PYTHON flower_rounds.py DATA PER_ROUND ROUNDS
"""

from __future__ import annotations

import json
import sys
import time
from collections import OrderedDict
from typing import Any

import torch
from flwr.client import ClientApp, NumPyClient
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

FILE, PER_ROUND, ROUNDS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
LAST: dict[str, Any] = {}


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def weights(module: nn.Module) -> list[Any]:
    return [value.numpy() for value in module.state_dict().values()]


def load(module: nn.Module, given: list[Any]) -> None:
    module.load_state_dict(OrderedDict(zip(module.state_dict(), map(torch.tensor, given), strict=True)))


class Trainer(NumPyClient):
    """One epoch of plain SGD on a client's samples."""

    def __init__(self, number: int) -> None:
        torch.set_num_threads(1)
        kept = torch.load(FILE)
        mine = kept["clients"][number]
        self.x, self.y = (column[mine] for column in kept["train"])

    def fit(self, parameters: list[Any], config: dict[str, Any]) -> tuple[list[Any], int, dict[str, Any]]:
        module = model()
        load(module, parameters)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
        for numbers in torch.randperm(len(self.y)).split(10):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(self.x[numbers]), self.y[numbers]).backward()
            optimizer.step()
        return weights(module), len(self.y), {}


def keep(number: int, parameters: list[Any], config: dict[str, Any]) -> None:
    LAST["weights"], LAST["at"] = parameters, time.perf_counter()
    LAST.setdefault("began", LAST["at"])  # the initial weights: clients train from here on


def server(context: Any) -> ServerAppComponents:
    strategy = FedAvg(
        fraction_fit=1e-9, min_fit_clients=PER_ROUND, fraction_evaluate=0.0, min_available_clients=PER_ROUND,
        evaluate_fn=keep, initial_parameters=ndarrays_to_parameters(weights(model())),  # type: ignore[arg-type]
    )  # fmt: skip
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=ROUNDS))


def main() -> None:
    clients = len(torch.load(FILE)["clients"])
    app = ClientApp(client_fn=lambda context: Trainer(int(context.node_config["partition-id"])).to_client())
    one_core = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(ServerApp(server_fn=server), app, clients, backend_config=one_core)
    module = model()
    load(module, LAST["weights"])
    x, y = torch.load(FILE)["test"]
    with torch.no_grad():
        accuracy = float((module(x).argmax(1) == y).float().mean())
    print(json.dumps([PER_ROUND * ROUNDS / (LAST["at"] - LAST["began"]), accuracy]))


if __name__ == "__main__":
    main()
