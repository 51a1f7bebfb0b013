"""What requests cost beside the model on this machine: an endpoint is started, asked and ended."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence

import msgspec
from torch import Tensor

from covey.engines.process.forking.die_with_parent import leashed
from covey.errors import PlanError
from covey.inference.path.measured_endpoint import MeasuredWishes
from covey.inference.path.path_costs import PathCosts, costs_of
from covey.inference.path.path_probe import PathProbe
from covey.inference.path.rehearsal import Times, rehearsed

PROGRAM = "covey.inference.path.measured_endpoint"
PATIENCE = 20.0  # seconds in which it ends


def measured_costs(wishes: MeasuredWishes, example: Tensor, times: Sequence[Times]) -> PathCosts:
    """What requests like the example cost beside the model, whose stages take so many seconds for a batch of a size."""
    words = [sys.executable, "-m", PROGRAM, msgspec.json.encode(wishes).decode()]
    body = json.dumps({"input": example.tolist()}).encode()
    with subprocess.Popen(leashed(words, signal.SIGKILL), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            if not address:
                raise PlanError("--plan starts an endpoint to measure it, and that has failed, for the reason above")
            probe, stages = PathProbe(int(address.rpartition(":")[2]), process.pid, body), wishes.stages
            phases = probe.phases()
            costs = costs_of(phases, lambda size: sum(one(size) for one in times), wishes.threads, stages)
            costs = msgspec.structs.replace(costs, replica=costs.replica / stages, row=costs.row / stages)
            return rehearsed(probe, max(one.rate for one in phases), costs, wishes.served.front, times)
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
