"""The engine torchrun: inside a rendezvous, under SLURM's variables, and on its own, also when somebody dies."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import covey
from covey.errors import PeerLost, PlanError
from covey.observe.result import read
from tests.clusters.harness import (
    DIGITS,
    GONE_WITHIN,
    STEPS,
    assert_bit_equal,
    check,
    computes_the_same,
    cut_models,
    every_strategy,
    finish,
    keeps_promises,
    names_the_dead,
)  # fmt: skip
from tests.clusters.machines import Machines, machines, needs_namespaces
from tests.real.harness import SLOW, Room, Watch, fit, trained
from tests.warm import Command

pytestmark = pytest.mark.xdist_group("torchrun")

TORCHRUN = ("-m", "torch.distributed.run", "--log-dir", os.devnull)  # else it leaves a folder of empty logs behind
ROOT = Path(__file__).parents[2]
TASK = str(ROOT / DIGITS)


def asked(room: Room, strategy: str, *more: str) -> list[str]:
    return [
        "covey", "run", TASK, "--engine", "torchrun", "--strategy", strategy, "--workers", "2", "--threads", "1",
        "--json", str(room.path / "result.json"), *more,
    ]  # fmt: skip


def result(room: Room) -> covey.Result:
    return read(room.path / "result.json")


@every_strategy
def test_promises(room: Room, name: str) -> None:
    keeps_promises("torchrun", name)


def test_inside_a_rendezvous_rank_0_leads_and_the_others_are_silent(room: Room) -> None:
    save = room.path / "weights.safetensors"
    command = asked(room, "allreduce", "--steps", str(STEPS), "--save", str(save))
    code, out, err = finish(room.start(*TORCHRUN, "--nproc-per-node", "2", "-m", *command))
    assert code == 0, err
    found = result(room)
    check(found, "allreduce", "torchrun")
    found.keep_weights(load_file(save))
    assert_bit_equal(found, "allreduce")
    assert out.count("stopped") == 1 and err.count("allreduce · 2 workers") == 1


@pytest.mark.parametrize("strategy", [pytest.param("bsp(", marks=pytest.mark.full), "bspp"])
def test_a_request_that_cannot_run_is_refused_once(room: Room, strategy: str) -> None:
    """One is refused before torch is imported, the other when rank 0 plans."""
    code, out, err = finish(room.start(*TORCHRUN, "--nproc-per-node", "2", "-m", *asked(room, strategy)))
    assert code != 0
    assert len(re.findall("^Error:", err, re.M)) == 1 and not out  # torchrun has an error of its own, ChildFailedError


def test_slurms_variables_do_the_same(room: Room) -> None:
    ranks = [start_under_slurm(room, rank, asked(room, "gosgd", "--steps", str(STEPS))) for rank in (1, 0)]
    (guest, out, err), leader = finish(ranks[0]), finish(ranks[1])
    assert leader[0] == 0, leader[2]
    assert (guest, out, err) == (0, "", "")
    check(result(room), "gosgd", "torchrun")


@pytest.mark.full
def test_under_slurm_guests_do_not_wait_for_a_leader_that_refuses(room: Room) -> None:
    ranks = [start_under_slurm(room, rank, asked(room, "bspp")) for rank in (0, 1)]
    leader, guest = finish(ranks[0]), finish(ranks[1])
    assert leader[0] == 2 and "no strategy 'bspp'" in leader[2]
    assert guest == (0, "", "")


def start_under_slurm(room: Room, rank: int, command: list[str]) -> Command:
    variables = {
        "SLURM_PROCID": str(rank), "SLURM_NTASKS": "2", "SLURM_LOCALID": str(rank), "SLURM_NODELIST": "localhost",
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1", "SLURM_JOB_ID": str(os.getpid()),
    }  # fmt: skip
    return room.start("-m", *command, **variables)


@cut_models("tensor=2")
def test_divided_models_compute_the_same(room: Room, mesh: str) -> None:
    computes_the_same("torchrun", mesh)


def test_native_sums_are_torchs_own_and_near(room: Room) -> None:
    native = covey.fit(DIGITS, "allreduce", 2, engine="torchrun(native=true)", steps=20, threads=1)
    plain = covey.fit(DIGITS, "allreduce", 2, engine="simulated", steps=20)
    for name, weights in plain.weights.items():
        torch.testing.assert_close(native.weights[name], weights, atol=1e-5, rtol=0)
    assert native.traffic.by_link == plain.traffic.by_link
    assert native.notes["native bytes"] == native.traffic.bytes
    assert "native bytes" not in plain.notes


def test_settings_and_hosts_that_make_no_sense_are_refused() -> None:
    with pytest.raises(PlanError, match="has no setting 'nodes'"):
        covey.fit(DIGITS, engine="torchrun(nodes=2)")
    with pytest.raises(PlanError, match="native must be true or false, not 2"):
        covey.fit(DIGITS, engine="torchrun(native=2)")
    with pytest.raises(PlanError, match="torchrun --nnodes 2"):
        covey.fit(DIGITS, engine="torchrun", hosts="hosts")


@pytest.mark.full
def test_a_task_of_a_script_trains_on_both_ranks(room: Room) -> None:
    script = room.script("""
import covey, torch
from torch import nn
x = torch.randn(64, 6, generator=torch.Generator().manual_seed(1))
task = covey.Task(model=lambda: nn.Linear(6, 3), data=(x, x[:, 0].long().clamp(0, 2)),
    optimizer=lambda p: torch.optim.SGD(p, lr=0.1), loss=nn.functional.cross_entropy, batch_size=4)
result = covey.fit(task, "bsp", 2, engine="torchrun", steps=5, threads=1)
print("samples", result.samples)
""")
    code, out, err = finish(room.start(*TORCHRUN, "--nproc-per-node", "2", script))
    assert (code, out) == (0, "samples 40\n"), err
    code, out, err = finish(room.start(script))
    assert (code, out) == (0, "samples 40\n"), err


@needs_namespaces
@pytest.mark.parametrize("strategy", ["bsp", pytest.param("gosgd", marks=pytest.mark.full)])
def test_two_machines(room: Room, strategy: str) -> None:
    """Two namespaces with an agent each; the links between them are encrypted, and servers go where they are told."""
    with machines() as both:
        place = ("--place", "servers:node1") if strategy == "bsp" else ()
        command = asked(room, strategy, "--steps", str(STEPS), *place)
        agents = [on_machine(room, both, number, ["-m", *command]) for number in (0, 1)]
        ended = [finish(agent) for agent in agents]
    assert [code for code, _, _ in ended] == [0, 0], ended
    assert ended[1][1] == ""
    assert "they live in networks of their own" in " ".join(ended[0][2].split())  # so they share no memory
    check(result(room), strategy, "torchrun")


@pytest.mark.full
@needs_namespaces
def test_native_sums_between_machines_need_a_word(room: Room) -> None:
    command = [*asked(room, "allreduce", "--steps", "5"), "--engine", "torchrun(native=true)"]
    with machines() as both:
        ended = [finish(agent) for agent in [on_machine(room, both, number, ["-m", *command]) for number in (0, 1)]]
        assert ended[0][0] != 0 and "neither encrypted nor authenticated" in ended[0][2]
        command.append("--insecure")
        ended = [finish(agent) for agent in [on_machine(room, both, number, ["-m", *command]) for number in (0, 1)]]
    assert [code for code, _, _ in ended] == [0, 0], ended
    assert json.loads((room.path / "result.json").read_text())["notes"]["native bytes"] > 0


def on_machine(room: Room, both: Machines, number: int, command: list[str], ranks: int = 1) -> subprocess.Popen[str]:
    rendezvous = [
        "--nnodes", "2", "--nproc-per-node", str(ranks), "--rdzv-backend", "c10d", "--rdzv-id", both.mark,
        "--rdzv-endpoint", f"{both.address(0)}:29411", "--local-addr", both.address(number),
        "--rdzv-conf", f"is_host={number == 0}",  # torchrun guesses it from the host's name, which both share
    ]  # fmt: skip
    return subprocess.Popen(
        [*both.prefix(number), sys.executable, *TORCHRUN, *rendezvous, *command], env=room.environment,
        cwd=room.path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


# -- deaths ------------------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize(
    ("strategy", "victim"), [("bsp", "server 1"), ("gosgd", "worker 2"), ("allreduce", "worker 0")]
)
def test_a_dead_role_is_named(room: Room, strategy: str, victim: str) -> None:
    names_the_dead(room, "torchrun", victim, strategy)


@pytest.mark.full
def test_a_dead_worker_is_named_though_a_native_sum_breaks_first(room: Room) -> None:
    names_the_dead(room, "torchrun(native=true)", "worker 1", "allreduce")


def site_of(room: Room, number: int) -> int:
    """The process of a rank, known by what torchrun told it."""
    for pid, title in room.processes().items():
        words = dict(
            word.partition(b"=")[::2] for word in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if b"=" in word
        )
        if words.get(b"RANK") == str(number).encode() and "covey:" not in title:
            return pid
    raise AssertionError(f"no rank {number} among {room.processes()}")


@pytest.mark.full
def test_a_dead_rank_is_named_by_its_roles(room: Room) -> None:
    watch = Watch(trained(40), lambda: os.kill(site_of(room, 1), signal.SIGKILL))
    with pytest.raises(PeerLost, match="^worker 1 was lost with host localhost, site 1"):
        fit(room.task(before_step=SLOW), "asynchronous", 3, engine="torchrun", steps=5000, watcher=watch)
    in_time(room, watch)


@pytest.mark.full
def test_a_dead_agent_ends_the_run(room: Room) -> None:
    def kill() -> None:
        (agent,) = [
            pid for pid, title in room.processes().items() if title.endswith("-m covey.engines.torchrun_agent 3")
        ]
        os.kill(agent, signal.SIGKILL)

    watch = Watch(trained(40), kill)
    with pytest.raises(PeerLost, match="^torchrun's agent on this machine exited with signal 9"):
        fit(room.task(before_step=SLOW), "asynchronous", 3, engine="torchrun", steps=5000, watcher=watch)
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
    process = room.start("-m", "covey", "run", task, "--workers", "2", "--steps", "5000", "--engine", "torchrun")
    room.appears("tmp/covey-*" if moment == "starting" else "training")
    os.kill(process.pid, signal.SIGKILL)
    room.wait_empty(GONE_WITHIN + (5 if moment == "starting" else 0))  # processes may be importing torch
    finish(process)


@pytest.mark.full
@pytest.mark.parametrize("rank", [0, 1])
def test_a_dead_rank_of_a_rendezvous_ends_it(room: Room, rank: int) -> None:
    task = room.task(before_step=f"(HERE / 'training').touch(); {SLOW}")
    command = ["covey", "run", task, "--engine", "torchrun", "--workers", "3", "--steps", "5000", "--threads", "1"]
    process = room.start(*TORCHRUN, "--nproc-per-node", "3", "-m", *command)
    room.appears("training")
    begun = time.monotonic()
    os.kill(site_of(room, rank), signal.SIGKILL)
    code, _, err = finish(process)
    assert time.monotonic() - begun < GONE_WITHIN
    assert code != 0
    assert ("rank 0, which led the run, is gone" if rank == 0 else "worker 1 was lost with host") in err
    room.wait_empty(1)
