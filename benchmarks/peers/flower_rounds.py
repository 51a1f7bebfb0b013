"""Flower's simulation of the same clients: client-rounds per second, the accuracy in the end, CPU seconds, as JSON.

    PYTHON flower_rounds.py DATA PER_ROUND ROUNDS
"""

from __future__ import annotations

import json
import os
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


def kept() -> Any:
    """The data, read once in each process."""
    if not hasattr(torch, "kept_data"):  # what belongs to this file is sent to the process again with every client
        torch.kept_data = torch.load(FILE)  # type: ignore[attr-defined]
    return torch.kept_data


def cpu() -> float:
    """Seconds of all processes of this simulation so far."""
    parents, used = dict[int, int](), dict[int, float]()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                words = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(name)], used[int(name)] = int(words[1]), sum(map(int, words[11:13])) / os.sysconf("SC_CLK_TCK")
    ours = {os.getpid()}
    while more := {one for one, parent in parents.items() if parent in ours and one not in ours}:
        ours |= more
    return sum(used.get(one, 0.0) for one in ours)


class Trainer(NumPyClient):
    """One epoch of plain SGD on a client's samples."""

    def __init__(self, number: int) -> None:
        torch.set_num_threads(1)
        mine = kept()["clients"][number]
        self.x, self.y = (column[mine] for column in kept()["train"])

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
    LAST["weights"], LAST["at"], LAST["cpu"] = parameters, time.perf_counter(), cpu()
    LAST.setdefault("began", LAST["at"])  # the initial weights: clients train from here on
    LAST.setdefault("cpu began", LAST["cpu"])


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
    seconds, used = LAST["at"] - LAST["began"], LAST["cpu"] - LAST["cpu began"]
    print(json.dumps([PER_ROUND * ROUNDS / seconds, accuracy, used]))


if __name__ == "__main__":
    main()
