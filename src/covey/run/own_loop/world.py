"""The world that started this process (torchrun, mpirun, srun): `covey.join` joins it, with one worker in each rank.

The user's loop stays in the rank's own process. Rank 0 starts the launcher beside itself; servers start beside the
ranks, and run the script up to `join`. A thread of each rank ends the rank when the run has failed.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

import msgspec
import torch

from covey.decoding import WireFormat
from covey.engines import launch_environment
from covey.engines.cluster import site
from covey.engines.cluster.rank_roles import RankRoles
from covey.engines.cluster.ranks import Channel, call_off, leader_address, names
from covey.engines.cluster.site_messages import SiteConfig
from covey.engines.cluster.site_messages import configs as config_format
from covey.engines.entries import ENGINES
from covey.engines.interrupt import ENDING
from covey.engines.launch_environment import LaunchEnvironment
from covey.engines.process.child_process import end, read, write
from covey.errors import CoveyError, PlanError
from covey.message import Address
from covey.run.options import Options, check
from covey.run.own_loop.joined_role import JoinedRole
from covey.run.own_loop.request import Loop, Script, loop_of
from covey.run.roles import works
from covey.spec import Spec

COMING = 7 * 86400.0  # seconds: what a script does before it joins may take its time
REMIND = 30.0  # seconds after which a rank says that it waits for others
LAST_WORDS = 10.0  # seconds that the launcher has to say why the run failed
LAUNCHER = "covey.run.own_loop.world_launcher"
INTERRUPT = b"!"


class RankRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What rank 0 wants of the launcher."""

    path: str
    module: str
    arguments: list[str]
    engine: str
    strategy: Spec
    hosts: list[str]  # of the ranks
    address: str  # at which they find rank 0's machine
    threads: int
    options: dict[str, str | int | bool | None]


briefs: WireFormat[RankRequest] = WireFormat("brief for the launcher", RankRequest)
_many: WireFormat[list[SiteConfig]] = WireFormat("list of configs of sites", list[SiteConfig])


def enter(strategy: str, given: Options) -> JoinedRole | None:
    """This process's place in the world that started it; None without a world, or alone in it."""
    found = launch_environment.world()
    if found is None or found[1].size == 1:
        refuse_half_worlds()
        return None
    script = script_here()
    engine = ENGINES[found[0]]
    engine.require(found[0])
    check(given, found[0], engine)
    loop = loop_of(script, strategy, found[1].size, given, torch.get_num_threads())  # every rank refuses alike
    if loop.spec.from_outside:
        raise PlanError(
            f"{loop.strategy.name} was registered by this program only, and its launcher could not look it up: use "
            "covey launch --plugin FILE, or a package with an entry point in covey.strategies"
        )
    return WorldRank(*found).joined(script, loop, given)


def refuse_half_worlds() -> None:
    """Others were started beside this process, and it cannot find them: it would train on its own."""
    group = torch.distributed.is_available() and torch.distributed.is_initialized()
    size = torch.distributed.get_world_size() if group else 1
    said = f"a torch.distributed group of {size} processes" if size > 1 else launch_environment.half_a_world()
    if said:
        raise PlanError(
            f"this process is one of several ({said}), but covey cannot find the others and would train it alone. "
            f"Start the script with:  torchrun --nproc-per-node {size if size > 1 else 2} "
            f"{' '.join(sys.argv)}  or:  covey launch {' '.join(sys.argv)}"
        )


def script_here() -> Script:
    """The program that this process runs, for the servers, which run it up to `join`."""
    main = sys.modules["__main__"]
    file, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    if file is None or not Path(file).is_file():
        raise PlanError("covey.join needs a script that its servers can run too: put this program into a file")
    arguments = tuple(sys.argv[1:])
    return Script(path=str(Path(file).resolve()), name=file, module=spec.name if spec else "", arguments=arguments)


class WorldRank:
    """This process in a world of several."""

    def __init__(self, engine: str, place: LaunchEnvironment) -> None:
        self.engine, self.place = engine, place
        self.me = Address("worker", place.rank)
        self.channel: Channel = ENGINES[engine].ranks().channel(place, COMING)
        self.launcher: subprocess.Popen[bytes] | None = None
        self.line: socket.socket | None = None  # to the launcher
        self.over = False

    def joined(self, script: Script, loop: Loop, given: Options) -> JoinedRole:
        """Meet the others, and take the place that the launcher gives."""
        with reminded(f"rank {self.place.rank} waits for the other ranks to call covey.join"):
            config = self._lead(script, loop.spec, given) if self.place.leads else self._take()
        self.roles = RankRoles(config, self.me)
        self.site = threading.Thread(target=self._host, args=(config,), name="site", daemon=True)
        self.site.start()
        atexit.register(self._quit)
        job = self.roles.jobs.get()
        self._hear_signals()
        work = works.read(job.work, "the launcher")
        mine = loop.strategy.text
        if work.text != mine:
            self._end(f"rank 0 asked for {work.text}, rank {self.place.rank} for {mine}: join with the same")
        return JoinedRole(work, loop.strategy, self.me, self.leave)

    def _lead(self, script: Script, strategy: Spec, given: Options) -> SiteConfig:
        """(Rank 0) Start the launcher, and hand out the configs that it writes."""
        present = self.channel.gather(COMING)
        brief = RankRequest(
            path=script.path, module=script.module, arguments=list(script.arguments), engine=self.engine,
            strategy=strategy, hosts=names(present), address=leader_address(present), threads=torch.get_num_threads(),
            options=plain(given),
        )  # fmt: skip
        self.line, theirs = socket.socketpair()
        path = os.pathsep.join(path for path in sys.path if path)
        with theirs:
            self.launcher = subprocess.Popen(
                [sys.executable, "-m", LAUNCHER, str(theirs.fileno()), " " * 32],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": path},
                process_group=0,
            )  # fmt: skip
        try:
            write(self.line, msgspec.msgpack.encode(brief))
            configs = _many.read(read(self.line), "the launcher")
        except (SystemExit, OSError):  # it has said why
            call_off(self.channel, self.place.size)
            raise SystemExit(self.launcher.wait() or 1) from None
        self.channel.hand_out([msgspec.msgpack.encode(config) for config in configs[1:]])
        return configs[0]

    def _take(self) -> SiteConfig:
        data = self.channel.take()
        if not data:
            self._end("rank 0 has refused the run, or is gone")
        return config_format.read(data, "rank 0")

    # -- beside the user's loop --------------------------------------------------------------------------------------

    def _host(self, config: SiteConfig) -> None:
        """(A thread) Be a site until the run is over; if it failed, so has this rank."""
        try:
            with self.roles:
                end = site.host_in(self.roles, config)
            why = "" if end.well else end.why or "the run has failed"
        except (CoveyError, OSError) as error:
            why = f"rank 0, which leads the run, is gone ({error})"
        if why:
            self._end(why)
        self.over = True

    def _end(self, why: str) -> NoReturn:
        """The run has failed: rank 0's launcher reports why, and every rank ends with its name."""
        if self.launcher:
            with suppress(subprocess.TimeoutExpired):
                self.launcher.wait(LAST_WORDS)
        if not self.place.leads:
            print(f"covey: rank {self.place.rank} ends: {why}", file=sys.stderr)
        end(1)

    def _hear_signals(self) -> None:
        """The first signal asks the run to end well, as in `covey run`, if it reaches rank 0; the next is as usual."""
        if threading.current_thread() is not threading.main_thread():
            return
        self.before = {number: signal.getsignal(number) for number in ENDING}
        self.before = {n: old for n, old in self.before.items() if old in (signal.SIG_DFL, signal.default_int_handler)}

        def heard(number: int, frame: FrameType | None) -> None:
            self._restore_signals()
            if self.line:
                with suppress(OSError):
                    self.line.send(INTERRUPT)

        for number in self.before:
            signal.signal(number, heard)

    def _restore_signals(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number, old in getattr(self, "before", {}).items():
                signal.signal(number, old)

    def leave(self) -> None:
        """(The user's thread) The role is over: wait for the others, and go on with what follows the loop."""
        self.roles.leave()
        self.site.join()
        if self.launcher and self.launcher.wait():
            self._end("the launcher failed")
        self.channel.close(True)
        self._restore_signals()

    def _quit(self) -> None:
        """(As the process ends) If the run is not over, this rank has left it."""
        if not self.over:
            self.roles.leave("ended before the run was over")
            self.site.join(LAST_WORDS)
            os._exit(1)


@contextmanager
def reminded(line: str) -> Iterator[None]:
    """Say this if what is inside takes long."""
    timer = threading.Timer(REMIND, lambda: print(f"covey: {line}", file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def plain(given: Options) -> dict[str, str | int | bool | None]:
    """What `covey.join` can ask for, as it travels to the launcher."""
    named = given.flat()
    paths = {name: os.path.abspath(named[name]) for name in ("checkpoint", "resume") if named[name]}
    return {name: named[name] for name in given.given()} | paths
