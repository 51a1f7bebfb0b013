"""Ctrl-C at any moment: once ends well, twice ends at once; SIGTERM and SIGHUP do the same; nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.real.harness import GONE_WITHIN, SLOW, Room, Watch, finish, fit, interrupt, trained
from tests.warm import Command

SCRIPT = """
import covey
result = covey.fit({task!r}, {strategy!r}, 2, steps=100_000, threads=1, {options})
print("stopped:", result.stopped, result.samples > 0, bool(result.weights))
"""

SLOW_STATE = """
class Slow(torch.optim.SGD):
    def state_dict(self):
        (HERE / "saving").touch()
        time.sleep(0.5)
        return super().state_dict()
"""

MOMENTS = {
    "training": {"before_step": f"(HERE / 'training').touch(); {SLOW}"},
    "scoring": {"before_score": "(HERE / 'scoring').touch(); time.sleep(0.5)", "options": "evaluate=score"},
    "saving": {"more": SLOW_STATE, "optimizer": "Slow(params, lr=0.1)", "before_step": SLOW},
}


def begin(room: Room, strategy: str, moment: str, options: str = "") -> Command:
    """A script in the middle of what the moment says."""
    task = room.task(**MOMENTS[moment])
    process = room.start(room.script(SCRIPT.format(task=task, strategy=strategy, options=options)))
    room.appears(moment)
    return process


def press(process: subprocess.Popen[str] | Command, number: int = signal.SIGINT) -> None:
    """What a terminal does: the signal goes to the whole group."""
    os.killpg(process.pid, number)


QUICK = [("bsp", "training"), ("easgd", "scoring"), ("allreduce", "saving")]
STRATEGIES = ("bsp", "ssp", "asynchronous", "allreduce", "local_sgd", "easgd", "gosgd", "dpsgd")
REST = [(name, moment) for name in STRATEGIES for moment in MOMENTS if (name, moment) not in QUICK]


@pytest.mark.parametrize(
    ("strategy", "moment"), [*QUICK, *(pytest.param(*case, marks=pytest.mark.full) for case in REST)]
)
def test_once_ends_well(room: Room, strategy: str, moment: str) -> None:
    process = begin(room, strategy, moment, f"checkpoint={str(room.path / 'kept')!r}, every='200ms'")
    press(process)
    code, out, err = finish(process)
    assert (code, out, err) == (0, "stopped: interrupted True True\n", "")
    assert (room.path / "kept" / "latest").exists(), "an interrupted run is kept where it stopped"
    room.wait_empty()


def test_while_it_starts_there_is_nothing_to_end_well(room: Room) -> None:
    process = room.start_cold(room.script(SCRIPT.format(task=room.task(), strategy="bsp", options="")))
    room.appears("tmp/covey-*")
    pressed = time.monotonic()
    press(process)
    code, _, err = finish(process)
    assert time.monotonic() - pressed < GONE_WITHIN
    assert code == -signal.SIGINT and err.rstrip().endswith("KeyboardInterrupt")
    room.wait_empty()


def test_twice_ends_at_once(room: Room) -> None:
    task = room.task(before_step="(HERE / 'training').touch(); time.sleep(1000)")
    process = room.start(room.script(SCRIPT.format(task=task, strategy="bsp", options="")))
    room.appears("training")
    press(process)
    time.sleep(0.3)
    assert process.poll() is None, "the first one waits for the step"
    pressed = time.monotonic()
    press(process)
    code, _, err = finish(process)
    assert time.monotonic() - pressed < GONE_WITHIN
    assert code == -signal.SIGINT and err.rstrip().endswith("KeyboardInterrupt")
    room.wait_empty()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_on_the_command_line(room: Room, number: int) -> None:
    task = room.task(before_step=f"(HERE / 'training').touch(); {SLOW}")
    asked = ["--strategy", "gosgd", "--steps", "100000", "--checkpoint", "kept", "--every", "1h"]
    process = room.start("-m", "covey", "run", task, *asked)
    room.appears("training")
    if number == signal.SIGTERM:
        process.terminate()  # to the launcher alone
    else:
        press(process)
    code, out, err = finish(process)
    assert code == 130 and "Traceback" not in err
    assert "interrupted" in (out + err).lower()
    assert (room.path / "kept" / "latest").exists(), "it is saved once more"
    room.wait_empty()


def test_the_handlers_are_given_back(room: Room) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    result = fit(room.task(before_step=SLOW), "dpsgd", 2, steps=10_000, watcher=Watch(trained(1), interrupt))
    assert result.stopped == "interrupted"
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


LOOP = """
import time, torch, covey
from pathlib import Path
model = torch.nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = (torch.randn(64, 6), torch.randint(0, 3, (64,)))
with covey.join(model, optimizer) as member:
    for epoch in range(100_000):
        for x, y in member.shard(data, 4):
            Path(__file__).with_name("training").touch()
            time.sleep(0.01)
            torch.nn.functional.cross_entropy(model(x), y).backward()
            member.step()
"""


def test_a_loop_of_ones_own_ends_well(room: Room) -> None:
    script = room.script(LOOP)
    process = room.start("-m", "covey", "launch", script, "--workers", "2")
    room.appears("training")
    press(process)
    code, _, err = finish(process)
    assert code == 130 and "Traceback" not in err
    room.wait_empty()


@pytest.mark.full
def test_what_the_script_does_afterwards_can_be_interrupted(room: Room) -> None:
    after = "Path(__file__).with_name('after').touch()\ntime.sleep(1000)\n"
    script = room.script(LOOP.replace("100_000", "1") + after)
    process = room.start("-m", "covey", "launch", script, "--workers", "2", "--save", Path("model.safetensors"))
    room.appears("after")
    press(process)
    code, _, err = finish(process)
    assert code == 130 and "Traceback" not in err
    assert (room.path / "model.safetensors").exists(), "the training was over"
    room.wait_empty()
