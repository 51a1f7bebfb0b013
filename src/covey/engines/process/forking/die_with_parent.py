"""A program that ends when the process that started it does.

It is started as `python -m covey.engines.process.forking.die_with_parent SIGNAL PID PROGRAM…`.

Linux keeps PR_SET_PDEATHSIG through exec, so mpirun ends, too.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1


def leashed(command: Sequence[str], number: signal.Signals = signal.SIGKILL) -> list[str]:
    """A command for children of this process, which gets the signal when it is gone."""
    return [
        sys.executable,
        "-m",
        "covey.engines.process.forking.die_with_parent",
        str(int(number)),
        str(os.getpid()),
        *command,
    ]


def main(number: int, parent: int, command: Sequence[str]) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() == parent:  # else it was gone before it could be asked for
        os.execv(command[0], list(command))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
