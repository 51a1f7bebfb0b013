"""Detect from the environment whether torchrun, SLURM or mpirun started this process as one of several ranks.

Nothing heavy is imported here: the command line asks this before it says a word.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

MPI = (  # rank, size, rank on this machine: Open MPI, MPICH and its kin, PMIx under SLURM
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("PMIX_RANK", "SLURM_NTASKS", "SLURM_LOCALID"),
)
GPUS = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class LaunchEnvironment:
    """This process's place in a job; `master` is where rank 0 awaits the others, if the environment says it."""

    rank: int
    size: int
    local: int = 0  # its rank among those of this machine
    master: str = ""
    port: int = 0

    @property
    def leads(self) -> bool:
        return self.rank == 0


def by_torchrun(environment: Mapping[str, str] = os.environ) -> LaunchEnvironment | None:
    """A rank of a c10d rendezvous: torchrun's own variables, or else SLURM's."""
    if all(name in environment for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
        return LaunchEnvironment(
            int(environment["RANK"]), int(environment["WORLD_SIZE"]), int(environment.get("LOCAL_RANK", 0)),
            environment["MASTER_ADDR"], int(environment["MASTER_PORT"]),
        )  # fmt: skip
    return by_slurm(environment)


def by_slurm(environment: Mapping[str, str] = os.environ) -> LaunchEnvironment | None:
    """A task of an srun step. (A batch script has most of these variables too, and is none.)"""
    if "SLURM_PROCID" not in environment or "SLURM_NTASKS" not in environment:
        return None
    step = [environment.get(name, "") for name in ("SLURM_STEP_NODELIST", "SLURM_LAUNCH_NODE_IPADDR")]
    if not any(step):
        return None
    nodes = step[0] or environment.get("SLURM_NODELIST", "") or environment.get("SLURM_JOB_NODELIST", "")
    master = environment.get("MASTER_ADDR") or first_node(nodes) or step[1]
    job = int(environment.get("SLURM_JOB_ID", 0)) * 7 + int(environment.get("SLURM_STEP_ID", 0))
    port = int(environment.get("MASTER_PORT", 15000 + job % 10000))  # jobs that share a node should not meet
    rank, size = int(environment["SLURM_PROCID"]), int(environment["SLURM_NTASKS"])
    return LaunchEnvironment(rank, size, int(environment.get("SLURM_LOCALID", 0)), master, port)


def by_mpi(environment: Mapping[str, str] = os.environ) -> LaunchEnvironment | None:
    """A rank of an MPI job."""
    for rank, size, local in MPI:
        if rank in environment and size in environment:
            return LaunchEnvironment(int(environment[rank]), int(environment[size]), int(environment.get(local, 0)))
    return None


def world(environment: Mapping[str, str] = os.environ) -> tuple[str, LaunchEnvironment] | None:
    """The engine whose world this process was started into, and its place there.

    srun gives its tasks MPI's variables too; the same rank in both is srun's own, whose tasks need no MPI to meet. In a
    task that only hosts an mpirun, SLURM counts the hosts.
    """
    if "MASTER_PORT" in environment and "RANK" in environment and (started := by_torchrun(environment)):
        return "torchrun", started
    mpi, slurm = by_mpi(environment), by_slurm(environment)
    if slurm and (mpi is None or (mpi.rank, mpi.size) == (slurm.rank, slurm.size)):
        return "torchrun", slurm
    return ("mpi", mpi) if mpi else None


def half_a_world(environment: Mapping[str, str] = os.environ) -> str:
    """The variable which says that others were started beside this process, where none says how to find them."""
    for name in ("WORLD_SIZE", "HOROVOD_SIZE"):
        if environment.get(name, "1").strip() not in ("", "0", "1"):
            return f"{name}={environment[name]}"
    return ""


def first_node(nodes: str) -> str:
    """The first name in SLURM's way of writing many: gpu03 of `gpu[03-07,9],login`, r0n4 of `r[0-1]n[4-7]`."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes.strip())
    return re.sub(r"\[([0-9]+)[^\]]*\]", r"\1", first[0]) if first else ""


def choose_gpu(local: int) -> None:
    """Leave one GPU to this process and the roles that it starts, before torch looks for GPUs."""
    given = os.environ.get(GPUS)
    if given is not None:
        gpus = [name.strip() for name in given.split(",") if name.strip()]
    else:
        gpus = [str(number) for number in range(len(list(Path("/dev").glob("nvidia[0-9]*"))))]
    if len(gpus) > 1:
        os.environ[GPUS] = gpus[local % len(gpus)]
