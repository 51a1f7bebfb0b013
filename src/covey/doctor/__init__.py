"""What is this machine?  What is installed, what it has, whether its processes can talk, and the fix for the rest."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from covey.doctor.finding import Finding
from covey.engines.entries import ENGINES
from covey.engines.entries.trouble import Trouble
from covey.engines.machine import cores
from covey.errors import PlanError
from covey.version import __version__

DEPENDENCIES: Mapping[str, str] = {
    "torch": "2.11", "pyzmq": "27", "msgspec": "0.19", "numpy": "1.26", "numba": "0.68", "safetensors": "0.5",
    "cloudpickle": "3", "rich": "13", "typer": "0.15", "plotly": "6",
}  # fmt: skip
PR_SET_PDEATHSIG = 1
FILES = 1024  # what Linux gives by default, enough for some hundred roles
PATIENCE = 20.0  # seconds for a child to start and answer

_CHILD = """
import sys, zmq
socket = zmq.Context().socket(zmq.PAIR)
socket.connect(sys.argv[1])
socket.send(b"hello")
assert socket.recv() == b"welcome"
"""


def examine() -> Iterator[Finding]:
    """Every check of the table, one after the other; none keeps the next from being made."""
    for name, (essential, check) in checks().items():
        try:
            yield Finding(name, "ok", check(), essential=essential)
        except Trouble as trouble:
            yield Finding(name, trouble.state, trouble.found, trouble.fix, essential)
        except PlanError as error:
            found, _, fix = str(error).partition(": ")
            yield Finding(name, "failed", found, fix, essential)
        except ImportError as error:
            yield Finding(name, "failed", str(error), "install it: see the line dependencies", essential)
        except Exception as error:
            fix = "covey did not expect this; please report it"
            yield Finding(name, "failed", f"{type(error).__name__}: {error}", fix, essential)


def checks() -> dict[str, tuple[bool, Callable[[], str]]]:
    """The checks of this machine, then one for each engine: covey's own, and those of installed packages."""
    with suppress(ImportError, OSError):  # torch is missing or broken, which its own line says
        from covey import catalog

        catalog.search()
    return {**CHECKS, **{name: (OPTIONAL, kind.check) for name, kind in ENGINES.items()}}


def python() -> str:
    return f"{platform.python_version()} at {sys.executable}"


def covey() -> str:
    return f"{__version__} at {Path(__file__).parents[1]}"


def dependencies() -> str:
    lacking = [f"{name}>={least}" for name, least in DEPENDENCIES.items() if _release(name) < _numbers(least)]
    if lacking:
        wanted = " ".join(f"'{one}'" for one in lacking)
        raise Trouble(f"missing or too old: {', '.join(lacking)}", f"pip install {wanted}", "missing")
    return ", ".join(f"{name} {version(name)}" for name in DEPENDENCIES if name != "torch")


def pytorch() -> str:
    if find_spec("torch") is None:
        raise Trouble("not installed", "pip install torch", "missing")
    import torch

    total = float(torch.ones(8).sum())
    if total != 8.0:
        raise Trouble(f"{torch.__version__} adds wrongly: {total} is not 8", "pip install --force-reinstall torch")
    return f"{torch.__version__}, {torch.get_num_threads()} threads, {_gpus()}"


def _gpus() -> str:
    import torch

    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return f"{len(names)} CUDA devices ({', '.join(names)})" if names else "no CUDA device (CPU only)"


def machine() -> str:
    here = cores()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    quota = _quota()
    granted = f"{here} cores" if quota is None or quota >= here else f"{here} cores (but a quota of {quota:g})"
    return f"{granted}, {memory / 2**30:.1f} GiB of memory, {platform.system()} {platform.release()}"


def _quota() -> float | None:
    """How many cores a container may use; None when it is not limited."""
    try:
        granted, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if granted == "max" else int(granted) / int(period)


def sockets() -> str:
    """Whether a socket file can be made in the folder for temporary files."""
    import zmq

    with tempfile.TemporaryDirectory(prefix="covey-") as folder, zmq.Context() as context:
        try:
            with context.socket(zmq.PAIR) as socket:
                socket.bind(f"ipc://{folder}/doctor")
        except zmq.ZMQError as error:
            fix = "set TMPDIR to a short path on a local disk, such as TMPDIR=/tmp"
            raise Trouble(f"no socket can be made in {folder}: {error}", fix) from error
    return f"can be made in {tempfile.gettempdir()}"


def processes() -> str:
    """Whether two processes can talk over ZeroMQ; a child is really started."""
    import zmq

    folder = tempfile.TemporaryDirectory(prefix="covey-")
    with folder as path, zmq.Context() as context, context.socket(zmq.PAIR) as socket:
        socket.linger = 0
        socket.bind(f"ipc://{path}/doctor")
        command = [sys.executable, "-c", _CHILD, f"ipc://{path}/doctor"]
        with subprocess.Popen(command, stderr=subprocess.PIPE) as child:
            try:
                if not socket.poll(int(PATIENCE * 1000)):
                    raise Trouble(f"a child did not answer within {PATIENCE:g} s", _last_words(child))
                assert socket.recv() == b"hello", "the child says hello"
                socket.send(b"welcome")
                child.wait(PATIENCE)
            finally:
                child.kill()
    return "two can talk over ZeroMQ"


def _last_words(child: subprocess.Popen[bytes]) -> str:
    child.kill()
    assert child.stderr is not None, "its errors were asked for"
    words = child.stderr.read().decode(errors="replace").strip().splitlines()
    return f"the child said: {words[-1]}" if words else "allow local sockets (a sandbox or a firewall forbids them)"


def fork() -> str:
    """Whether a role can be forked, and will die with its launcher."""
    if not sys.platform.startswith("linux"):
        fix = "the local engine needs Linux; on other systems use covey simulate"
        raise Trouble(f"no prctl on {platform.system()}", fix)
    libc = ctypes.CDLL(None, use_errno=True)
    child = os.fork()
    if child == 0:
        os._exit(0 if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0 else 1)
    _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        raise Trouble("prctl is refused", "allow prctl(PR_SET_PDEATHSIG) in the sandbox or seccomp profile")
    return "fork works, and roles die with their launcher"


def shared_memory() -> str:
    try:
        disk = os.statvfs("/dev/shm")
    except OSError as error:
        raise Trouble(f"no /dev/shm ({error.strerror})", "mount -t tmpfs tmpfs /dev/shm", "missing") from error
    free, size = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
    found = f"{free / 2**20:,.0f} of {size / 2**20:,.0f} MiB free in /dev/shm"
    if free < 64 << 20:
        raise Trouble(found, "DataLoader workers need more: docker run --shm-size=1g, or remove old files there")
    return found


def open_files() -> str:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < FILES:
        raise Trouble(f"at most {soft} at once", f"ulimit -n {FILES if hard < 0 else min(hard, 4 * FILES)}")
    return "as many as wanted" if soft == resource.RLIM_INFINITY else f"{soft:,} at once"


def digits() -> str:
    if find_spec("sklearn") is None:
        raise Trouble("scikit-learn is not installed", "pip install 'covey[data]'", "missing")
    return f"in scikit-learn {version('scikit-learn')}"


def fashion() -> str:
    from covey.data.fashion import available

    if not available():
        fix = "downloaded when first used; or apt-get install dataset-fashion-mnist"
        raise Trouble("Fashion-MNIST is not on this machine", fix, "missing")
    return "Fashion-MNIST is on this machine"


def _release(name: str) -> tuple[int, ...]:
    """An installed package's version; nothing is older than a missing one."""
    try:
        return _numbers(version(name))
    except PackageNotFoundError:
        return ()


def _numbers(release: str) -> tuple[int, ...]:
    match = re.match(r"[0-9]+(?:\.[0-9]+)*", release)
    return tuple(map(int, match[0].split("."))) if match else ()


ESSENTIAL, OPTIONAL = True, False

CHECKS: Mapping[str, tuple[bool, Callable[[], str]]] = {
    "python":        (ESSENTIAL, python),
    "covey":         (ESSENTIAL, covey),
    "dependencies":  (ESSENTIAL, dependencies),
    "torch":         (ESSENTIAL, pytorch),
    "machine":       (ESSENTIAL, machine),
    "sockets":       (ESSENTIAL, sockets),
    "processes":     (ESSENTIAL, processes),
    "fork":          (ESSENTIAL, fork),
    "shared memory": (OPTIONAL, shared_memory),
    "open files":    (OPTIONAL, open_files),
    "digits":        (OPTIONAL, digits),
    "fashion":       (OPTIONAL, fashion),
}  # fmt: skip
