"""Jobs for SLURM and Kubernetes: right for them, and quoted."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from covey.cli import app
from covey.errors import PlanError
from covey.jobs.schedulers import kubernetes_manifest, slurm_script

RUN = ["run", "my task.py", "--strategy", "ssp(bound=2)", "--workers", "3", "--epochs", "9"]


def test_a_manifest_is_one_that_kubernetes_takes() -> None:
    validate = pytest.importorskip("kubernetes_validate")
    manifest = json.loads(kubernetes_manifest(RUN, "registry.example/covey:1", "data"))
    for version in ("1.28", "1.31"):
        validate.validate(manifest, version, strict=True)
    pod = manifest["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"]["requests"] == {"cpu": "3"} and pod["terminationGracePeriodSeconds"] > 60
    assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "data"}
    manifest["spec"]["template"]["spec"]["restartPolicy"] = "Sometimes"
    del manifest["spec"]["template"]["spec"]["containers"][0]["name"]
    with pytest.raises(validate.ValidationError):
        validate.validate(manifest, "1.31", strict=True)


def test_names_are_those_of_both_schedulers() -> None:
    name = json.loads(kubernetes_manifest(["run", "./Über Task_1.py:mine"], "i", "c"))["metadata"]["name"]
    assert (
        name.isascii() and name == name.lower() and len(name) <= 63 and all(part.isalnum() for part in name.split("-"))
    )


def test_a_range_of_workers_gets_cores_for_all_of_them(tmp_path: Path) -> None:
    words = ["run", "my task.py", "--strategy", "bsp", "--workers", "2:4"]
    assert "#SBATCH --ntasks=1 --cpus-per-task=4\n" in slurm_script(words, tmp_path)
    manifest = json.loads(kubernetes_manifest(words, "i", "c"))
    assert manifest["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "4"}


PRETENDED = """#!/bin/bash
printf '%s\\n' "$@" >> words
kept=$(printf '%s\\n' "$@" | grep -A1 -- --checkpoint | tail -1)
trap 'mkdir -p "$kept"; touch "$kept/latest"; exit ${CODE:-130}' TERM
touch started
[ -n "$QUICK" ] && exit 0
while true; do sleep 0.05; done
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pretended commands covey, scontrol, sbatch and kubectl."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in {
        "covey": PRETENDED, "scontrol": '#!/bin/sh\necho "$@" > requeued\n',
        "sbatch": "#!/bin/sh\ncat > batch\necho Submitted batch job 7\n",
        "kubectl": "#!/bin/sh\necho no cluster >&2; exit 1\n",
    }.items():  # fmt: skip
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def begin(folder: Path, script: str) -> subprocess.Popen[bytes]:
    (folder / "script").write_text(script)
    running = subprocess.Popen(["bash", "script"], cwd=folder)
    until = time.monotonic() + 30
    while not (folder / "started").exists():
        assert time.monotonic() < until and running.poll() is None
        time.sleep(0.02)
    return running


def test_a_batch_job_that_must_go_keeps_a_checkpoint_and_is_queued_again(machine: Path) -> None:
    script = slurm_script(RUN, machine)
    assert "#SBATCH --ntasks=1 --cpus-per-task=3\n" in script and "#SBATCH --signal=B:TERM@" in script
    running = begin(machine, script)
    running.send_signal(signal.SIGTERM)  # what SLURM does before the time is over
    assert running.wait(30) == 130 and (machine / "requeued").read_text() == "requeue 7\n"
    first = (machine / "words").read_text().splitlines()
    assert first[: len(RUN)] == RUN and "--resume" not in first, "each word is one, also with spaces and parentheses"
    (machine / "started").unlink()
    (machine / "words").unlink()
    again = begin(machine, script)
    again.send_signal(signal.SIGTERM)
    again.wait(30)
    kept = first[first.index("--checkpoint") + 1]
    assert (machine / "words").read_text().splitlines()[-2:] == ["--resume", kept]


def test_a_batch_job_that_ends_by_itself_is_not_queued_again(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUICK", "1")
    (machine / "script").write_text(slurm_script(RUN, machine))
    assert subprocess.run(["bash", "script"], cwd=machine, check=False).returncode == 0
    assert not (machine / "requeued").exists()


def test_a_batch_job_that_ends_well_when_it_must_go_is_not_queued_again(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODE", "0")
    running = begin(machine, slurm_script(RUN, machine))
    running.send_signal(signal.SIGTERM)
    assert running.wait(30) == 0 and not (machine / "requeued").exists()


def test_ranks_are_tasks_of_srun(tmp_path: Path) -> None:
    script = slurm_script([*RUN, "--engine", "torchrun"], tmp_path)
    assert "#SBATCH --ntasks=3\n" in script and f"\nsrun covey {shlex.join([*RUN, '--engine', 'torchrun'])} " in script


def test_the_command_hands_it_over(machine: Path) -> None:
    said = CliRunner().invoke(app, ["jobs", "submit", "--to", "slurm", "--", *RUN])
    assert said.exit_code == 0 and said.stdout == "Submitted batch job 7\n"
    assert (machine / "batch").read_text() == slurm_script(RUN, machine)
    refused = CliRunner().invoke(app, ["jobs", "submit", "--to", "kubernetes", "--image", "i", "--", *RUN])
    assert refused.exit_code == 1 and "kubectl refused the job: no cluster" in refused.stderr
    assert "--image IMAGE" in CliRunner().invoke(app, ["jobs", "submit", "--to", "kubernetes", "--", *RUN]).stderr
    shown = CliRunner().invoke(app, ["jobs", "submit", "--to", "slurm", "--dry-run", "--", *RUN])
    assert shown.stdout == slurm_script(RUN, machine)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["launch", "own.py"], "covey launch keeps no checkpoints"),
        (["run", "x.py", "--engine", "ray"], "--engine ray has a scheduler of its own"),
        (["run", "x.py", "--strategy", "easgd", "--workers", "1:4"], "write --workers 4"),
    ],
)
def test_what_cannot_be_handed_over_is_refused(tmp_path: Path, words: list[str], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        slurm_script(words, tmp_path)
