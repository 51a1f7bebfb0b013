"""What the processes of a run have from their launcher, though another process forks them: environment, folder, files.

What is read while a process starts and loads its libraries cannot be handed over later: that is `fixed`.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module, invalidate_caches

from covey.engines.transport import handles as open_files
from covey.engines.transport.secretive import Secretive

# Python, libc and tools that hook into a start; numerical libraries; torch and its compilers; drivers of GPUs.
READ_EARLY = re.compile(
    rb"PYTHON(?!PATH$)|LD_|LC_|LANG|TZ$|HOME$|MALLOC_|GLIBC_|COV_|COVERAGE"
    rb"|[GK]?OMP_|KMP_|MKL_|OPENBLAS_|GOTO_|BLIS_|NVPL_|DNNL_|ONEDNN_|ARM_|TBB_|NUMPY_|NPY_|NUMBA_|LLVM|SYMPY_|MPMATH_"
    rb"|TORCH(?!INDUCTOR_CACHE_DIR$|ELASTIC_|_NCCL_ASYNC_ERROR_HANDLING$)"
    rb"|PYTORCH_|PT2_|ATEN_|C10_|AOT|INDUCTOR_|CUT(LASS|EDSL)|TRITON_|KINETO_|FX_|FAKE_"
    rb"|COMPILE_|PARTITIONER_|ENABLE_|DUMP_|LOG_|UNSAFE_|CI$|CC$|CXX$|PYZMQ_|ZMQ_"
    rb"|CU(DA|BLAS|DNN)|NV|NCCL_|GLOO_|UCX_|HIP_|HSA_|ROC|MIOPEN_|ZE_|SYCL_|XPU_"
)
SPARE = b"COVEY_SPARE"  # only room: for variables of later runs, where tools look for a process's environment
MOST_SPARE = 100_000  # bytes; Linux takes 128 KiB in one variable
NAMESPACES = ("net", "mnt", "ipc", "pid", "user", "uts")


class Inherited(Secretive, frozen=True, kw_only=True):
    """The part that can be handed to a process that runs already; its standard output and folder come as handles."""

    environment: dict[bytes, bytes]
    path: list[str]
    umask: int

    def take(self, out: int, err: int, folder: int) -> None:
        """(In the first process of a run) Be as if the launcher had started this process itself."""
        for theirs, number in ((out, 1), (err, 2)):
            os.dup2(theirs, number)
        sys.stdout.reconfigure(line_buffering=os.isatty(out))  # type: ignore[union-attr]
        os.fchdir(folder)
        open_files.close((out, err, folder))
        os.umask(self.umask)
        _replace_environment(self.environment)
        sys.path[:] = [os.getcwd(), *self.path]
        invalidate_caches()
        tempfile.tempdir = None
        import_module("numpy").random.seed()  # each run its own chance, as Python's `random` has after a fork


def environment(**changes: str) -> dict[bytes, bytes]:
    """That of this process with changes, for others that import from the same places."""
    own = {**changes, "PYTHONPATH": os.pathsep.join(_path())}
    return dict(os.environb) | {os.fsencode(name): os.fsencode(value) for name, value in own.items()}


def _path() -> list[str]:
    return [place for place in sys.path if place]


def inherited(environment: Mapping[bytes, bytes]) -> Inherited:
    """What a process that this one started now, with such an environment, would have."""
    with open("/proc/self/status") as file:
        (mask,) = (line.split()[1] for line in file if line.startswith("Umask:"))
    return Inherited(environment=dict(environment), path=_path(), umask=int(mask, 8))


@contextmanager
def files() -> Iterator[list[int]]:
    """Handles of the standard output, the standard error and the folder of this process."""
    found: list[int] = []
    try:
        for number in (1, 2):
            try:
                found.append(os.dup(number))
            except OSError:  # it is closed
                found.append(os.open(os.devnull, os.O_WRONLY))
        found.append(os.open(".", os.O_PATH | os.O_DIRECTORY))
        yield found
    finally:
        open_files.close(found)


def fixed(environment: Mapping[bytes, bytes]) -> tuple[object, ...]:
    """What a process cannot be given after its start; processes started under equal ones are interchangeable."""
    return (os.getsid(0), *fixed_in_any_session(environment))


def fixed_in_any_session(environment: Mapping[bytes, bytes]) -> tuple[object, ...]:
    """The same of processes whose sessions may differ; equal ones are written alike."""
    limits = [(name, resource.getrlimit(getattr(resource, name))) for name in dir(resource) if name[:7] == "RLIMIT_"]
    found: list[object] = [sys.executable, sorted(early(environment).items()), limits, sorted(os.sched_getaffinity(0))]
    found += [os.getpriority(os.PRIO_PROCESS, 0), os.getresuid(), os.getresgid(), sorted(os.getgroups())]
    for name in ("cgroup", "oom_score_adj"):
        with suppress(OSError), open(f"/proc/self/{name}") as file:
            found.append(file.read())
    for name in NAMESPACES:
        with suppress(OSError):
            found.append(os.readlink(f"/proc/self/ns/{name}"))
    return tuple(found)


def early(environment: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """The variables that are read while a process loads its libraries."""
    return {name: value for name, value in environment.items() if READ_EARLY.match(name)}


def in_order(environment: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """The same for a new process: what is fixed, then what later runs may have otherwise, then room for more."""
    ordered = dict(sorted(environment.items(), key=lambda item: not READ_EARLY.match(item[0])))
    return ordered | {SPARE: b" " * min(4096 + sum(map(len, environment.values())), MOST_SPARE)}


def _replace_environment(environment: Mapping[bytes, bytes]) -> None:
    """Also where `ps e` and the tools that look for all processes of a job read it: /proc/PID/environ."""
    with open("/proc/self/environ", "rb") as file:
        before = file.read().split(b"\0")
    with open("/proc/self/stat", "rb") as file:
        numbers = file.read().rpartition(b")")[2].split()
    start, stop = int(numbers[47]), int(numbers[48])  # env_start, env_end (proc(5), counted after the name)
    os.environ.clear()
    os.environb.update(environment)
    for entry in before:  # what libraries have read stays where they may look for it again
        if not READ_EARLY.match(entry):
            break
        start += len(entry) + 1
    shown = b"".join(b"%s=%s\0" % item for item in environment.items() if not READ_EARLY.match(item[0]))
    shown = shown[: shown[: max(stop - start, 0)].rfind(b"\0") + 1]
    ctypes.memset(start, 0, max(stop - start, 0))
    ctypes.memmove(start, shown, len(shown))
