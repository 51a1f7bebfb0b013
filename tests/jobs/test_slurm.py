"""A real SLURM of one node: a job that must go is queued again, and ends as if it had not been disturbed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

import covey
from covey.cli import app
from tests.etcd import free_port
from tests.real.harness import differing

ABLE = os.geteuid() == 0 and shutil.which("slurmctld") and shutil.which("slurmd")
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not ABLE, reason="no SLURM is installed (apt install slurmctld slurmd), or this is not root"),
]

SETTINGS = """
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
AuthInfo=cred_expire=5
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmctldPort={control}
SlurmdPort={daemon}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/control.pid
SlurmdPidFile={folder}/daemon.pid
SlurmctldLogFile={folder}/control.log
SlurmdLogFile={folder}/daemon.log
MpiDefault=none
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""
TASK = """
import time
from pathlib import Path
import torch
import covey

def step(model, batch):
    time.sleep(0.001 if Path("soon").exists() else 0.3)
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])

task = covey.Task(
    model=lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)),
    data=covey.data.digits(train=True), step=step, batch_size=32,
    optimizer=lambda params: torch.optim.SGD(params, lr=0.1), evaluate=covey.accuracy(covey.data.digits(train=False)),
)
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in which jobs are submitted to a SLURM of this machine's cores."""
    for name in ("state", "spool", "work"):
        (tmp_path / name).mkdir()
    host, cores = socket.gethostname().partition(".")[0], os.cpu_count()
    settings = SETTINGS.format(host=host, cores=cores, folder=tmp_path, control=free_port(), daemon=free_port())
    (tmp_path / "slurm.conf").write_text(settings)
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    monkeypatch.setenv("COVEY_RUNS", "runs")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path / "work")
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    daemons = [subprocess.Popen(words, **silent) for words in (["slurmctld", "-c", "-D"], ["slurmd", "-D", "-N", host])]
    try:
        until(lambda: "idle" in told("sinfo", "-h"), "no node is idle")
        yield tmp_path / "work"
    finally:
        subprocess.run(["scancel", "--me"], check=False, timeout=30, capture_output=True)
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(30)


def told(*words: str) -> str:
    return subprocess.run(words, check=False, timeout=30, capture_output=True, text=True).stdout


def until(condition: Callable[[], object], why: str) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, why
        time.sleep(0.2)


def test_a_job_that_is_told_to_go_is_queued_again_and_continues(slurm: Path) -> None:
    (slurm / "task.py").write_text(TASK)
    words = ["run", "task.py", "--strategy", "allreduce", "--workers", "2", "--steps", "60", "--threads", "1"]
    sent = CliRunner().invoke(app, ["jobs", "submit", "--to", "slurm", "--", *words, "--save", "model.safetensors"])
    assert sent.exit_code == 0, sent.output
    number = sent.stdout.split()[-1]
    until(
        lambda: "training" in "".join(file.read_text() for file in slurm.glob("runs/*/now.json")), "it does not train"
    )
    told("scancel", "--batch", "--signal=TERM", number)  # what SLURM does before the time of a job is over
    until(lambda: list(slurm.glob("*/latest")), "it keeps no checkpoint")
    (slurm / "soon").touch()
    until(lambda: "COMPLETED" in told("scontrol", "show", "job", number), "it does not end")
    assert "Requeue=1 Restarts=1" in told("scontrol", "show", "job", number)
    printed = "".join(file.read_text() for file in slurm.glob("covey-task-*.out"))
    assert "Traceback" not in printed
    plain = covey.fit("task.py", "allreduce", 2, steps=60, threads=1, runs=False).weights
    assert differing(load_file(slurm / "model.safetensors"), plain) == []
