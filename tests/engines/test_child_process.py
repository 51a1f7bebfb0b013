"""A child dies with the process that forked it, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from covey.engines.process import liveness

PARENT = """
import socket, time
from covey.engines.process.child_process import forked_child
line, _ = socket.socketpair()
print(forked_child(line, "covey: child", lambda: time.sleep(60)), flush=True)
time.sleep(60)
"""


def until(true: object, seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():  # type: ignore[operator]
            return True
        time.sleep(0.01)
    return False


UNREAD = """
import os, socket, sys, time
from covey.engines.process.child_process import forked_child
line, _ = socket.socketpair()
reading, writing = os.pipe()
os.close(reading)
os.dup2(writing, 1)
sys.stdout = open(1, "w", closefd=False)
sibling = forked_child(line, "covey: sibling", lambda: time.sleep(60))
try:
    child = forked_child(line, "covey: child", lambda: print("what nobody reads"))
finally:
    if os.getppid() != int(sys.argv[1]):  # (in the child) nothing of this process is its business
        os.kill(sibling, 9)
_, status = os.waitpid(child, 0)
there, _ = os.waitpid(sibling, os.WNOHANG)
print(os.waitstatus_to_exitcode(status), there, file=sys.stderr)
os.kill(sibling, 9)
os._exit(0)
"""


def test_a_child_whose_output_nobody_reads_ends_and_does_nothing_else() -> None:
    """Its last lines are lost with the reader; what its parent would do at its own end is not done twice."""
    command = [sys.executable, "-c", UNREAD, str(os.getpid())]
    told = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=30, check=True).stderr
    assert told.splitlines()[-1] == "0 0"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_forked_child_dies_with_its_parent(number: signal.Signals) -> None:
    process = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        assert until(lambda: Path(f"/proc/{child}/comm").read_text().strip() == "covey: child"), "it was not named"
        process.send_signal(number)
        process.wait()
        assert until(lambda: liveness.state(child) in ("", "Z")), "it lives on"
    finally:
        process.kill()
        process.communicate()
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
