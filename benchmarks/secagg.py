"""How much CPU time does a client of a secure sum take to mask its numbers, beside Flower's SecAgg+?

    python -m venv /tmp/flower && /tmp/flower/bin/pip install flwr
    python -m benchmarks.secagg /tmp/flower/bin/python

A million numbers, 100 clients, all with all, one thread each; the two take turns. Both open 99 boxes of shares,
quantise the numbers and add a mask for each other client. Without an argument only covey's own client is timed.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from covey.privacy.secagg import FixedPoint, Identity, SumClient, SumServer, sum_terms
from covey.vector import Vector

CLIENTS, NUMBERS, REPEATS, ROUNDS = 100, 1_000_000, 2, 3
PEER = Path(__file__).parent / "peers" / "flower_masking.py"


def own(clients: int = CLIENTS, numbers: int = NUMBERS) -> float:
    """CPU seconds in which client 0 makes its masked numbers."""
    fixed = FixedPoint()
    identities = [Identity.create() for _ in range(clients)]
    directory = {client: identity.public for client, identity in enumerate(identities)}
    terms = sum_terms(range(clients), numbers, fixed)
    server = SumServer(terms, directory)
    parties = {c: SumClient(c, terms, identity, directory) for c, identity in enumerate(identities)}
    for client, party in parties.items():
        server.receive(client, party.advertise())
    for client, keys in server.advance().items():
        server.receive(client, parties[client].share(keys))  # type: ignore[arg-type]
    delivered = server.advance()[0]
    update = Vector([torch.randn(numbers, generator=torch.Generator().manual_seed(1))])
    before = time.process_time()
    parties[0].mask(delivered, fixed.quantise(update))  # type: ignore[arg-type]
    return time.process_time() - before


def measure(python: str = "") -> dict[str, object]:
    torch.set_num_threads(1)
    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(own())
        if python:
            command = [python, str(PEER), str(CLIENTS), str(NUMBERS), str(REPEATS)]
            theirs += json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    found: dict[str, object] = {"covey_s": ours, "flower_s": theirs}
    if theirs:
        found["ratio"] = round(statistics.median(ours) / statistics.median(theirs), 3)
    return found


if __name__ == "__main__":
    print(json.dumps(measure(*sys.argv[1:]), indent=1))
