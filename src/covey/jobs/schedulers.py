"""How does a job run where SLURM or Kubernetes has the machines? As a script or a manifest that they can run again."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from covey.errors import CoveyError, PlanError
from covey.jobs.job_command import JobRequest, job_request, option_value
from covey.spec import parse_call

GRACE = 120  # seconds that a run has to keep a checkpoint when it must go
MOST = 10  # times that Kubernetes starts a job that fails


def slurm_script(words: Sequence[str], cwd: Path) -> str:
    """A batch script: before its time is over the run keeps a checkpoint, and SLURM queues it again.

    On one machine (`--engine local`) the workers are cores of one task. With `--engine torchrun` or `mpi` srun starts
    one task for each of them, on as many nodes as SLURM likes.
    """
    job, engine = _sound(words, cwd)
    if engine in ("local", "lab"):
        room, start = [f"--ntasks=1 --cpus-per-task={job.most}"], ""
    elif engine in ("torchrun", "mpi"):
        room, start = [f"--ntasks={job.most}"], "srun "
    else:
        raise PlanError(f"--engine {engine} has a scheduler of its own: use local, torchrun or mpi with SLURM")
    name = _name(job)
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name={name}",
        *(f"#SBATCH {line}" for line in room),
        f"#SBATCH --output={name}-%j.out",
        f"#SBATCH --signal=B:TERM@{GRACE}",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        "",
        f"cd {shlex.quote(str(cwd))} || exit 1",
        f'kept="{name}-$SLURM_JOB_ID"',
        'resume=(); [ -e "$kept/latest" ] && resume=(--resume "$kept")',
        "asked=",
        "trap 'asked=1; kill -TERM $run' TERM",
        f'{start}covey {shlex.join(job.words)} --checkpoint "$kept" --every auto "${{resume[@]}}" &',
        "run=$!",
        "wait $run; code=$?",
        "while kill -0 $run 2>/dev/null; do wait $run; code=$?; done",
        '[ -n "$asked" ] && [ $code -ne 0 ] && scontrol requeue "$SLURM_JOB_ID"',
        "exit $code",
    ]
    return "\n".join(lines) + "\n"


def kubernetes_manifest(words: Sequence[str], image: str, claim: str) -> str:
    """A Job of one pod, whose checkpoints are on a volume: a pod that is evicted is replaced, and continues."""
    job, engine = _sound(words, Path("/"))
    if engine != "local":
        raise PlanError(f"--engine {engine}: a Kubernetes job is one pod, whose workers are processes: use local")
    name = _name(job)
    resume = '$([ -e "$kept/latest" ] && echo --resume "$kept")'
    run = f'covey {shlex.join(job.words)} --checkpoint "$kept" --every auto {resume}'
    container = {
        "name": "covey",
        "image": image,
        # exec: the run itself hears SIGTERM, and keeps a checkpoint
        "command": ["/bin/sh", "-c", f"kept=checkpoints-{name}; exec {run}"],
        "workingDir": "/work",
        "resources": {"requests": {"cpu": str(job.most)}, "limits": {"cpu": str(job.most)}},
        "volumeMounts": [{"name": "work", "mountPath": "/work"}],
    }
    pod: dict[str, Any] = {
        "restartPolicy": "OnFailure",
        "terminationGracePeriodSeconds": GRACE,
        "automountServiceAccountToken": False,
        "containers": [container],
        "volumes": [{"name": "work", "persistentVolumeClaim": {"claimName": claim}}],
    }
    labels = {"app.kubernetes.io/name": "covey", "app.kubernetes.io/instance": name}
    manifest = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels},
        "spec": {"backoffLimit": MOST, "template": {"metadata": {"labels": labels}, "spec": pod}},
    }
    return json.dumps(manifest, indent=1) + "\n"


def submitted(to: Literal["slurm", "kubernetes"], text: str) -> str:
    """What the scheduler says when it has taken the job."""
    command = ["sbatch"] if to == "slurm" else ["kubectl", "apply", "-f", "-"]
    if shutil.which(command[0]) is None:
        raise PlanError(f"there is no command {command[0]} here: --dry-run prints what it would be given")
    done = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
    if done.returncode:
        raise CoveyError(f"{command[0]} refused the job: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip()


def _sound(words: Sequence[str], cwd: Path) -> tuple[JobRequest, str]:
    job = job_request(words, cwd, 0.0)
    if job.words[0] != "run":
        raise PlanError(f"covey {job.words[0]} keeps no checkpoints: only covey run can go to another scheduler")
    if job.ranged and not job.kept:
        raise PlanError(f"this strategy keeps no checkpoints of a range of workers: write --workers {job.most}")
    return job, parse_call(option_value(job.words, "--engine") or "local").name


def _name(job: JobRequest) -> str:
    """Letters, digits and hyphens, as both schedulers take them; from the task's file, and what the command says."""
    file = next((Path(word.partition(":")[0]).stem for word in job.words[1:] if not word.startswith("-")), "run")
    plain = re.sub(r"[^a-z0-9]+", "-", file.lower()).strip("-")[:30] or "run"
    return f"covey-{plain}-{zlib.crc32(job.command.encode()):08x}"
