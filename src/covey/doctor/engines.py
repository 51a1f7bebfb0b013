"""Which engines of clusters work on this machine, and the exact fix for those that do not."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from covey.doctor.finding import Trouble

PATIENCE = 60.0  # seconds for an import on a busy machine
JAVA = 17  # what PySpark 4 runs on
ASK_MPI = """
import mpi4py
mpi4py.rc.initialize = False  # a process that is not a rank would leave a segment of shared memory behind
from mpi4py import MPI
print(MPI.Get_library_version().splitlines()[0].split(',')[0])
"""
NO_MPI = (
    "pip install 'covey[mpi]' brings Open MPI; or install this machine's own, such as apt-get install libopenmpi-dev"
)


def torchrun() -> str:
    """Inside or outside a rendezvous of torchrun."""
    if find_spec("torch") is None:
        raise Trouble("torch is not installed", "pip install torch", "missing")
    from torch import distributed

    if not distributed.is_available():
        raise Trouble("this torch has no torch.distributed", "pip install --force-reinstall torch")
    known = {"gloo": distributed.is_gloo_available(), "nccl": distributed.is_nccl_available()}
    return f"torch.distributed with {', '.join(name for name, there in known.items() if there) or 'no backend'}"


def mpi() -> str:
    """Whether an MPI library can be loaded, and processes started with it."""
    _installed("mpi4py", "mpi")
    try:
        library = _in_child(ASK_MPI)
    except Trouble as trouble:
        raise Trouble(f"mpi4py finds no MPI library: {trouble.found}", NO_MPI) from None
    beside = Path(sys.executable).parent / "mpirun"
    if shutil.which("mpirun") is None and not beside.exists():
        raise Trouble(f"{library}, but no mpirun", NO_MPI, "missing")
    return f"mpi4py {version('mpi4py')}, {library}"


def ray() -> str:
    _installed("ray", "ray")
    return f"ray {_in_child('import ray; print(ray.__version__)')}"


def spark() -> str:
    """PySpark, and the Java that it needs."""
    _installed("pyspark", "spark")
    return f"pyspark {version('pyspark')}, Java {_java()}"


def lab() -> str:
    """Whether hosts can be made as network namespaces: one is, and goes again."""
    from covey.engines.lab import iproute, trial_lab

    if missing := iproute.missing():
        found, _, fix = missing.partition(": ")
        raise Trouble(found, f"only for --engine lab: {fix}", "missing")
    try:
        return trial_lab.make_one()
    except iproute.LabError as error:
        first, *_ = str(error).splitlines()
        raise Trouble(first, "only for --engine lab: a kernel with namespaces, veth, bridges and tbf") from error


def _installed(package: str, extra: str) -> None:
    if find_spec(package) is None:
        fix = f"only for --engine {extra}: pip install 'covey[{extra}]'"
        raise Trouble(f"{package} is not installed", fix, "missing")


def _in_child(code: str) -> str:
    """What a fresh Python prints: some packages start things when they are imported."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        raise Trouble(f"no answer within {PATIENCE:g} s", "try again on a quieter machine") from None
    if done.returncode:
        words = done.stderr.strip().splitlines() or ["it said nothing"]
        raise Trouble(words[-1], "reinstall it, in this very Python")
    return done.stdout.strip()


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    fix = f"only for --engine spark: apt-get install openjdk-{JAVA}-jre-headless, or set JAVA_HOME"
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired):
        raise Trouble(f"no Java at {java}" if home else "no java command", fix, "missing") from None
    found = re.search(r'version "([0-9.]+)', done.stdout + done.stderr)
    if not found or int(found[1].split(".")[0]) < JAVA:
        raise Trouble(f"Java {found[1] if found else 'of unknown version'}; PySpark needs {JAVA} or newer", fix)
    return found[1]
