"""covey.fit from wherever a person may call it, with models and data of every kind."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import covey
from covey.engines.machine import threads_each
from covey.errors import PlanError
from covey.observe.result import Result
from tests.real.harness import SLOW, Room, Watch, differing, finish, fit, trained

INLINE = """
import torch, covey
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 3)
    def forward(self, x):
        return helper(self.inner(x))

def helper(x):
    return x * 2

data = (torch.randn(32, 6), torch.randint(0, 3, (32,)))
task = covey.Task(
    model=lambda: Net(), data=data, optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
    loss=lambda output, y: nn.functional.cross_entropy(output, y), batch_size=4, evaluate=covey.accuracy(data),
)
result = covey.fit(task, "easgd", 2, epochs=1, threads=1)
print(result.samples, sorted(result.weights), len(result.history))
"""
SAID = "32 ['inner.bias', 'inner.weight'] 2\n"


def test_from_a_script_with_classes_and_lambdas_of_its_own(room: Room) -> None:
    assert finish(room.start(room.script(INLINE))) == (0, SAID, "")


def test_from_standard_input_as_in_a_notebook(room: Room) -> None:
    process = room.start("-", stdin=True)
    assert process.stdin
    process.stdin.write(INLINE)
    assert finish(process) == (0, SAID, "")


@pytest.mark.full
def test_two_runs_at_the_same_time_never_meet(room: Room) -> None:
    both = [room.start(room.script(INLINE, name)) for name in ("one.py", "two.py")]
    assert [finish(process) for process in both] == [(0, SAID, "")] * 2


def test_from_another_thread_in_a_folder_with_spaces(room: Room) -> None:
    found: list[Result] = []
    task = room.task("my own tasks/a task.py")
    thread = threading.Thread(target=lambda: found.append(fit(f"{task}:task", "bsp", 2, epochs=1)))
    thread.start()
    thread.join()
    assert found[0].samples == 64


@pytest.mark.full
def test_the_same_run_twice_gives_the_same(room: Room) -> None:
    one, two = (fit(room.task(), "allreduce", 2, epochs=2) for _ in range(2))
    assert not differing(one.weights, two.weights)


@pytest.mark.full
def test_a_long_name_for_temporary_files_is_no_hindrance(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(room.temporary / ("long" * 40)))
    assert fit(room.task(), "bsp", 2, epochs=1).samples == 64


class Scalar(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(1.0) if size == 0 else torch.zeros(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - self.w.reshape(-1)[:1]).square().mean()


def tiny(size: int = 0) -> covey.Task:
    return covey.Task(
        model=lambda: Scalar(size), data=(torch.randn(12, 1),), optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
        step=lambda model, batch: model(batch[0]), batch_size=2,
    )  # fmt: skip


@pytest.mark.parametrize("strategy", ["allreduce", pytest.param("gosgd", marks=pytest.mark.full)])
def test_a_model_that_is_one_number(room: Room, strategy: str) -> None:
    result = fit(tiny(), strategy, 3, epochs=2)
    assert result.samples == 24 and result.weights["w"].shape == ()


def test_more_servers_than_numbers_are_refused(room: Room) -> None:
    with pytest.raises(PlanError, match="a server would hold no parameter: use fewer servers"):
        fit(tiny(), "bsp", 2, servers=2, epochs=1)


@pytest.mark.parametrize("strategy", [pytest.param("bsp", marks=pytest.mark.full), "allreduce"])
def test_where_memory_cannot_be_shared_sockets_do_and_one_line_says_so(room: Room, strategy: str) -> None:
    task = room.task(model="nn.Sequential(nn.Linear(6, 9000), nn.ReLU(), nn.Linear(9000, 3))")
    # memory that has a file counts as a file, and this is the longest that may be written
    short = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))"
    asked = ["covey", "run", task, "--workers", "2", "--steps", "6", "--strategy", strategy]
    script = room.script(f"{short}; sys.argv = {asked}; from covey.cli import main; main()")
    code, out, err = finish(room.start(script))
    assert code == 0, err
    assert (out + err).count("can share no more memory (File too large") == 1


@pytest.mark.parametrize("strategy", ["bsp", pytest.param("dpsgd", marks=pytest.mark.full)])
def test_a_model_of_a_hundred_megabytes(room: Room, strategy: str) -> None:
    result = fit(tiny(25_000_000), strategy, 2, steps=2)
    assert result.weights["w"].numel() == 25_000_000
    assert result.traffic.bytes >= 400_000_000


LOADED = """
class Data(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, number):
        (HERE / f"loader-{os.getpid()}").touch()
        return x[number], y[number]
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("end", ["budget", "killed"])
def test_processes_that_load_data_go_with_their_role(room: Room, end: str) -> None:
    task = room.task(more=LOADED, data="Data()", options="loaders=2", before_step=SLOW)
    if end == "budget":
        assert fit(task, "bsp", 2, epochs=2).samples == 128
    else:
        with pytest.raises(covey.errors.PeerLost, match="worker 0"):
            fit(task, "bsp", 2, epochs=200, watcher=Watch(trained(8), lambda: room.kill("worker 0")))
    loaders = [int(path.name.partition("-")[2]) for path in room.path.glob("loader-*")]
    assert len(loaders) == 8  # two workers, warm-up and run
    until = time.monotonic() + 2  # by themselves they would look after five seconds whether their parent is there
    while any(map(alive, loaders)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not [pid for pid in loaders if alive(pid)], "they end with the run"


def test_roles_have_names_a_place_of_their_own_and_leave_ctrl_c_to_the_launcher(room: Room) -> None:
    shown: dict[str, tuple[str, bool]] = {}
    modes: list[int] = []

    def look() -> None:
        modes.extend(path.stat().st_mode & 0o777 for path in room.temporary.glob("covey-*"))
        for pid, title in room.processes().items():
            status = dict(line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
            ignores = bool(int(status["SigIgn"], 16) >> (signal.SIGINT - 1) & 1)
            shown[title] = (Path(f"/proc/{pid}/comm").read_text().strip(), ignores)

    fit(room.task(before_step=SLOW), "bsp", 3, epochs=20, watcher=Watch(trained(1), look))
    assert modes == [0o700], "nobody else can reach the sockets"
    names = ["worker 0", "worker 1", "worker 2", "server 0", "scorer 0"]
    fork_server = shown.pop("covey: fork server")
    assert fork_server[0] == "covey: fork server"[:15], "Linux keeps 15 characters of it"
    assert shown == {f"covey: {name}": (f"covey: {name}", True) for name in names}


@pytest.mark.alone
def test_seconds_are_seconds_of_training(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("covey.checkpoint.directory.sync", lambda directory: time.sleep(0.5))
    task = room.task(before_score="time.sleep(0.5)", options="evaluate=score", batch_size=8, before_step=SLOW)
    result = fit(task, "local_sgd", 2, epochs=3, checkpoint=room.path / "kept", every="50ms")
    assert len(result.history) >= 2 and list(room.path.glob("kept/checkpoint-*"))
    assert result.seconds < 0.75, "scores and checkpoints of half a second and more do not count"


@pytest.mark.alone
def test_a_score_takes_nobodys_lead(room: Room) -> None:
    """Of two workers one is always in a long step when a score is due, which the other must not wait for. What else the
    machine does can only make a run longer, so the shortest of a few counts.
    """
    turns = "CALLS[0] == 1 and TURN.append(first('one')); time.sleep(0.3 if (CALLS[0] + TURN[0]) % 2 else 0.05)"
    task = room.task(before_step=turns, more="TURN = []", options="evaluate=score")
    alone, shortest = 5 * (0.3 + 0.05), math.inf
    for _ in range(3):
        scored = fit(task, "local_sgd(period=100)", 2, steps=10, scores=8)
        assert len(scored.history) >= 5
        shortest = min(shortest, scored.seconds)
        if shortest < 1.12 * alone:
            break
    assert alone < shortest < 1.12 * alone


def test_a_local_run_says_who_used_the_cores(room: Room) -> None:
    found = fit(room.task(), "bsp", steps=200).contention
    assert found is not None and found.cores == len(os.sched_getaffinity(0)) and found.cpu > 0
    assert found.delay is not None and 0 <= found.delay < 1 and found.others is not None


def test_threads(room: Room) -> None:
    counts = 'model(x); return {"threads": torch.get_num_threads()}'
    task = room.task(before_score=counts, options="evaluate=score")
    result = fit(task, "local_sgd", 1, epochs=1, threads=3)
    assert result.threads == 3 and result.history[-1]["threads"] == 3
    assert threads_each(2) == max(1, len(os.sched_getaffinity(0)) // 2)


@pytest.mark.parametrize("engine", ["local", "torchrun"])
def test_one_thread_is_one_in_convolutions_too(
    room: Room, engine: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of torch for ARM have threads of their own, which listen to nothing but the environment."""
    monkeypatch.delenv("OMP_NUM_THREADS")
    told = "print('threads', before, count(), os.environ.get('OMP_NUM_THREADS'))"
    parts = "convolve, image = nn.Conv2d(1, 16, 3, padding=1), torch.randn(64, 1, 28, 28)"
    count = "count = lambda: len(os.listdir('/proc/self/task'))"
    path = room.task(before_step=f"before = count(); convolve(image); CALLS[0] > 1 or {told}", more=f"{parts}; {count}")
    fit(path, "allreduce", 1, engine=engine, steps=2)
    out, err = capfd.readouterr()
    assert err == ""
    before, after, given = next(line.split()[1:] for line in out.splitlines() if line.startswith("threads"))
    assert (int(before), given) == (int(after), "1")


def test_a_codec_is_ready_before_the_first_step(room: Room) -> None:
    """Long before anything is exchanged, so that nothing is compiled or loaded on the run's clock."""
    seen = room.path / "seen"
    loaded = "str('covey.exchange.kernels.cpu' in sys.modules)"
    task = room.task(before_step=f"import sys; open({str(seen)!r}, 'w').write({loaded})")
    for strategy, ready in (("local_sgd(period=50) + onebit", "True"), ("local_sgd(period=50)", "False")):
        fit(task, strategy, 2, steps=1)
        assert seen.read_text() == ready, strategy
