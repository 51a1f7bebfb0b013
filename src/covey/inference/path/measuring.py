"""What requests cost beside the model on this machine: an endpoint is started, asked and ended."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable

import msgspec
from torch import Tensor

from covey.engines.process.forking.die_with_parent import leashed
from covey.errors import PlanError
from covey.inference.path.measured_endpoint import MeasuredWishes
from covey.inference.path.path_costs import PathCosts
from covey.inference.path.path_probe import PathProbe

PROGRAM = "covey.inference.path.measured_endpoint"
PATIENCE = 20.0  # seconds in which it ends


def measured_costs(wishes: MeasuredWishes, example: Tensor, model: Callable[[int], float]) -> PathCosts:
    """What requests like the example cost beside the model, which takes so many seconds for a batch of this size."""
    words = [sys.executable, "-m", PROGRAM, msgspec.json.encode(wishes).decode()]
    body = json.dumps({"input": example.tolist()}).encode()
    with subprocess.Popen(leashed(words, signal.SIGKILL), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            if not address:
                raise PlanError("--plan starts an endpoint to measure it, and that has failed, for the reason above")
            costs = PathProbe(int(address.rpartition(":")[2]), process.pid, body).costs(
                model, wishes.threads, wishes.stages
            )
            stages = wishes.stages
            return msgspec.structs.replace(costs, replica=costs.replica / stages, row=costs.row / stages)
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
