"""What the environment tells of how this process was started, and what a file of hosts says."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from covey.engines import handover
from covey.engines.cluster.ranks import Presence, Ranks, names
from covey.engines.cluster.site_config import CONFIGS
from covey.engines.cluster.site_messages import SiteConfig
from covey.engines.launch_environment import (
    GPUS,
    LaunchEnvironment,
    by_mpi,
    by_slurm,
    by_torchrun,
    choose_gpu,
    first_node,
    world,
)
from covey.engines.mpirun import MpirunPlaces, environment, read_hosts
from covey.engines.torchrun_agent import TorchrunPlaces
from covey.engines.transport.keys import new_pair
from covey.errors import PlanError
from covey.run.clusters import host_only, refuse_ranks
from tests.worlds import mlp

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
SRUN = {"SLURM_PROCID": "2", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "12"}


def test_torchruns_variables() -> None:
    assert by_torchrun(TORCHRUN) == LaunchEnvironment(3, 8, 1, "node0", 29500)
    assert by_torchrun({}) is None
    assert by_torchrun({**SRUN, **TORCHRUN, "SLURM_STEP_NODELIST": "n1"}) == by_torchrun(TORCHRUN)


def test_slurms_variables() -> None:
    step = {**SRUN, "SLURM_STEP_NODELIST": "gpu[03-07]", "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.9"}
    assert by_slurm(step) == LaunchEnvironment(2, 4, 0, "gpu03", 15000 + 12 * 7)
    assert by_torchrun(step) == by_slurm(step)
    assert by_slurm({**step, "SLURM_STEP_ID": "1"}) != by_slurm(step), "two steps of a job must not meet"
    assert by_slurm({**SRUN, "SLURM_NODELIST": "gpu[03-07]"}) is None, "a batch script is no task of a step"


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node1", "node1"), ("a,b", "a"), ("gpu[03-07,9],login", "gpu03"), ("r1n[2,4]-ib,x", "r1n2-ib"), ("", ""),
        ("rack[0-1]n[03-07],x", "rack0n03"), ("r[2,4]n1,r9", "r2n1"),
    ],
)  # fmt: skip
def test_the_first_node_leads(nodes: str, first: str) -> None:
    assert first_node(nodes) == first


def test_mpis_variables() -> None:
    open_mpi = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
    assert by_mpi({**open_mpi, "PMIX_RANK": "1"}) == LaunchEnvironment(1, 4, 1)
    assert by_mpi({"PMI_RANK": "0", "PMI_SIZE": "2"}) == LaunchEnvironment(0, 2)
    assert by_mpi({"PMIX_RANK": "2", "SLURM_NTASKS": "3", "SLURM_LOCALID": "2"}) == LaunchEnvironment(2, 3, 2)
    assert by_mpi({"PMIX_RANK": "0"}) is None


@pytest.mark.parametrize(("given", "local", "left"), [("4,5,6,7", 2, "6"), ("4,5", 3, "5"), ("3", 1, "3"), ("", 1, "")])
def test_a_rank_gets_one_gpu(monkeypatch: pytest.MonkeyPatch, given: str, local: int, left: str) -> None:
    """Those that SLURM has given one each keep it; where there are too few they share."""
    monkeypatch.setenv(GPUS, given)
    choose_gpu(local)
    assert os.environ[GPUS] == left


@pytest.mark.parametrize(
    ("started", "size"),
    [
        ({"OMPI_COMM_WORLD_RANK": "0"}, "OMPI_COMM_WORLD_SIZE"), ({"PMI_RANK": "0"}, "PMI_SIZE"),
        ({"RANK": "0", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}, "WORLD_SIZE"),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NODELIST": "n1"}, "SLURM_NTASKS"),
    ],
)  # fmt: skip
def test_a_run_of_this_machine_is_refused_in_one_of_several_ranks_and_not_in_the_only_one(
    monkeypatch: pytest.MonkeyPatch, started: dict[str, str], size: str
) -> None:
    for name, value in started.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(size, "1")
    refuse_ranks()
    monkeypatch.setenv(size, "2")
    with pytest.raises(PlanError, match="this is rank 0 of 2 of (mpi|torchrun), and each rank would start a run of"):
        refuse_ranks()


def test_machines_of_one_name_are_told_apart() -> None:
    ranks = [Presence("vm", "a"), Presence("vm", "a"), Presence("vm", "b")]
    assert names(ranks) == ["vm.0", "vm.0", "vm.1"]
    assert names([Presence("x", "a"), Presence("y", "b")]) == ["x", "y"]


def test_a_file_of_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mpi4py")
    file = tmp_path / "hosts"
    file.write_text("# ours\nnode1 slots=2\n\nnode2:1 # small\nlocalhost\nnode1\n")
    assert read_hosts(file, 5) == ["node1", "node1", "node1", "node2", "localhost"]
    for wrong in ("node1 slots=abc", "node1 slots=-1", "node1:x", "node1 slots="):
        file.write_text(f"node0\n{wrong}\n")
        with pytest.raises(PlanError, match=f"'{wrong}' has '.*' slots; write a number"):
            read_hosts(file, 1)
    file.write_text("# ours\nnode1 slots=2\n\nnode2:1 # small\nlocalhost\nnode1\n")
    if " " in sys.prefix:
        pytest.skip("Open MPI does not start on other hosts from a folder with a space in its name")
    places = MpirunPlaces(5, file, native=False)
    assert places.hosts == ["localhost", "node1", "node1", "node1", "node2"], "this machine first, as mpirun will do"
    command = places.command()
    assert "localhost:2,node1:3,node2:1" in command, "one more here, for the relay"
    assert command[command.index("-n") + 1] == "6"
    monkeypatch.setattr(subprocess, "Popen", lambda *given, **more: pytest.fail("mpirun was started"))
    with pytest.raises(PlanError, match="a task or strategy of this process does not travel to other hosts: put the"):
        places.invite([], b"a task of a notebook")


def test_mpi_leaves_no_shared_memory_behind_unless_somebody_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMPI_MCA_btl", raising=False)
    assert environment()["OMPI_MCA_btl"] == "self,tcp"
    monkeypatch.setenv("OMPI_MCA_btl", "self,sm")
    assert environment()["OMPI_MCA_btl"] == "self,sm"


def test_a_job_has_one_run() -> None:
    """The other ranks end inside the first `covey.fit`."""
    ranks = Ranks("torchrun", lambda: None, lambda *_: SimpleNamespace())  # type: ignore[arg-type,return-value]
    ranks.places(LaunchEnvironment(0, 2), None)
    with pytest.raises(PlanError, match="other ranks ended with the first run: call covey.fit once per torchrun"):
        ranks.places(LaunchEnvironment(0, 2), None)


OPEN_AS_NOBODY = "import os, sys; os.setgroups([]); os.setgid(65534); os.setuid(65534); open(sys.argv[1])"


@pytest.mark.parametrize("engine", ["torchrun", "mpi"])
def test_sites_of_this_machine_read_their_keys_in_memory_of_the_launcher(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the command nor the environment tells a secret, and no other user can open the memory."""
    if engine == "mpi":
        pytest.importorskip("mpi4py")
    places = TorchrunPlaces(2) if engine == "torchrun" else MpirunPlaces(2, None, native=False)
    started: list[Any] = []
    program = SimpleNamespace(wait=lambda *_: 0, kill=lambda: None, send_signal=lambda _: None, pid=0)
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", lambda *given, **more: started.append((given, more)) or program)
        pairs = [new_pair(), new_pair()]
        config = [SiteConfig(site=n, launcher="", warm="", pair=pair, secret=b"0123") for n, pair in enumerate(pairs)]
        places.invite(config, b"")
    path = started[0][1]["env"][CONFIGS]
    held = Path(path).read_bytes()
    assert all(pair.secret.encode() in held and pair.secret not in repr(started) for pair in pairs)
    assert os.stat(path).st_mode & 0o777 == 0o600
    if os.geteuid() == 0:
        command = [sys.executable, "-c", OPEN_AS_NOBODY, path]
        snoop = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False)
        assert "PermissionError" in snoop.stderr
    places.close(well=True)
    assert not os.path.exists(path)


OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
STEP = {**SRUN, "SLURM_STEP_NODELIST": "node[0-1]"}
WORLDS = [
    ({}, None),
    (TORCHRUN, ("torchrun", 3, 8)),
    (OPEN_MPI, ("mpi", 2, 4)),
    (STEP, ("torchrun", 2, 4)),
    ({**STEP, "PMIX_RANK": "2"}, ("torchrun", 2, 4)),  # srun --mpi=pmix: the same task by two names
    ({**STEP, "SLURM_PROCID": "0", "SLURM_NTASKS": "2", **OPEN_MPI}, ("mpi", 2, 4)),  # srun started mpirun's daemons
    ({**STEP, "SLURM_NTASKS": "3", **OPEN_MPI}, ("mpi", 2, 4)),  # the same, where both count this one alike
    ({**OPEN_MPI, **TORCHRUN}, ("torchrun", 3, 8)),
    (SRUN, None),  # a batch script is no task of a step
]


@pytest.mark.parametrize(("environment", "expected"), WORLDS)
def test_a_script_joins_the_world_that_started_it(
    environment: dict[str, str], expected: tuple[str, int, int] | None
) -> None:
    found = world(environment)
    assert (found and (found[0], found[1].rank, found[1].size)) == expected


@pytest.mark.parametrize("rate", [1.0, 0.25])
def test_a_rank_that_hosts_a_task_of_this_process_trains_at_the_rate_that_was_asked_for(rate: float) -> None:
    """The leader's own site is handed the task as the leader has changed it; the others must make the same change."""
    handed: list[bytes] = []

    class Ranks:
        def guest(self, pack: Callable[[], bytes]) -> bool:
            handed.append(pack())
            return True

    engine: Any = SimpleNamespace(environment=lambda: LaunchEnvironment(1, 2), ranks=Ranks)
    assert host_only(engine, mlp(), "bsp", 2, rate) and host_only(engine, "train.py", "bsp", 2, rate)
    ours, named = handed
    task = handover.of_memory(handover.opened(ours)).task
    assert (task.rate(0.5) if task.rate else 1.0) == rate and named == b"", "a file is read by each of its roles"
