"""What run, simulate and launch do alike: refuse early, show the run, show what came of it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import typer

from covey import atomic_file
from covey.cli import json_file
from covey.cli.errors import FAILED, INTERRUPTED
from covey.cli.options import OutputFlags, Voice
from covey.errors import PlanError, SaveError
from covey.names import option
from covey.reminders import reminded
from covey.spec.worker_range import parse_workers
from covey.target import parse_target

if TYPE_CHECKING:
    from covey.observe.progress import Watcher
    from covey.observe.result import Result

ROLES = "covey.run.roles"  # what the processes of a run import


@dataclass(frozen=True, kw_only=True)
class ShownRequest:
    """What was asked for, as far as it is shown."""

    strategy: str
    workers: int | str
    engine: str
    until: str | None
    output: OutputFlags
    profile: Path | None = None
    files: Mapping[str, Path | None] = field(default_factory=dict)  # what the run will leave behind
    called: str = "worker"  # each of those who train

    @property
    def voice(self) -> Voice:
        return self.output.voice

    @property
    def command(self) -> str:
        """The command line, as it can be typed again."""
        return shlex.join(["covey", *sys.argv[1:]])

    @property
    def title(self) -> str:
        many = "" if str(self.workers) == "1" else "s"
        return f"{self.strategy} · {self.workers} {self.called}{many} · {self.engine}"


class KeptFlags(Protocol):
    """The flags that say where a run is kept, and how often."""

    @property
    def checkpoint(self) -> Path | None: ...
    @property
    def every(self) -> str | None: ...


def refuse_early(
    request: ShownRequest, keeping: KeptFlags | None = None, register: str | None = None, *, stall: str | None = None,
    faults: str | None = None, spot_trace: Path | None = None,
) -> None:
    """Refuse what can be seen to be wrong before torch is imported, which takes seconds."""
    from covey.simulate.faults import read_faults
    from covey.simulate.spot_trace import load_trace
    from covey.spec import parse, parse_call

    every = keeping.every if keeping else None
    json_file.check(request.output.json)
    json_file.check(request.profile, "--profile", "profile.json")
    if request.profile == request.output.json == json_file.OUTPUT:
        raise PlanError("--json - and --profile - are both to be the output: name a file for one of them")
    if save := request.files.get("model"):
        atomic_file.check(save, f"--save {save}", "model.safetensors", makes_folders=True)
    parse_workers(request.workers)
    parse(request.strategy)
    parse_call(request.engine)
    if request.until is not None:
        parse_target(request.until)
    if keeping and every is not None and keeping.checkpoint is None:
        raise PlanError(f"--every {every} says how often to write a checkpoint; say where with --checkpoint DIR")
    if register is not None:
        from covey.store.versions import check_name

        check_name(register, f"--register {register}")
    if faults is not None:
        read_faults(faults)
    if spot_trace is not None:
        load_trace(spot_trace)
    _check_duration("--every", None if every == "auto" else every)
    _check_duration("--stall", stall)


def _check_duration(flag: str, text: str | None) -> None:
    from covey.simulate.units import parse_duration

    try:
        if text is not None and not parse_duration(text):
            raise PlanError("0 is not an interval; write for example 30s")
    except PlanError as error:
        raise PlanError(f"{flag} {text}: {error}") from None


@contextmanager
def importing(manner: Voice, every: float = 5.0) -> Iterator[None]:
    """Say now and then what is being imported, which a busy machine may need long for."""
    what = "importing covey" if "torch" in sys.modules else "importing torch"
    from covey.engines.process.forking.uncollected import uncollected

    with uncollected(), reminded(None if manner == "quiet" else partial(typer.echo, err=True), what, every):
        yield


def import_ahead(engine: str, workers: int, threads: int | None) -> None:
    """Let the fork server of runs on this machine import torch while this process does so, too."""
    if engine.strip() != "local":
        return
    from covey.engines import machine
    from covey.engines.process.forking import ahead

    machine.check_processes()
    with suppress(OSError):  # the run will say what is wrong
        ahead.start_fork_server(ROLES, threads or machine.threads_each(workers))


def check_names(strategy: str, plugin: list[Path] | None) -> None:
    """Refuse a misspelt strategy or codec before torch is imported, unless a file may bring it."""
    from covey.cli.tables import completion
    from covey.spec import parse

    spec = parse(strategy)
    if not plugin:
        completion.check_names(spec)


def load_plugins(files: list[Path] | None, manner: Voice) -> None:
    """Import files of strategies and codecs; one that cannot be used is refused before anything starts."""
    if not files:
        return
    with importing(manner):
        from covey import registry
    for file in files:
        registry.load(file)


def train(request: ShownRequest, begin: Callable[[Watcher], Result]) -> None:
    """Run it in front of a person, keep the answer, and show it."""

    from covey.cli.progress.display import shown
    from covey.cli.tables.result import print_result

    files, unsaved = dict(request.files), None
    with shown(request.title, request.until, request.voice) as watcher:
        try:
            result = begin(watcher)
        except SaveError as error:
            result, files["model"], unsaved = error.result, None, error
    with (
        json_file.written(request.output.json, result.to_json) as files["result"],
        json_file.written(request.profile, partial(_profile, result), "--profile") as files["profile"],
    ):
        files["record"] = result.record
        files["model"] = None if result.uncommitted else files.get("model")
        files["version"] = Path(result.version) if result.version else None
        if (kept := files.get("checkpoint")) and not any(kept.glob("**/checkpoint-*")):
            files["checkpoint"] = None  # it ended before the first was due
        if request.voice != "quiet":
            # JSON that goes to the output must be the only thing there.
            taken = json_file.OUTPUT in (request.output.json, request.profile)
            console = json_file.console(json_file.OUTPUT if taken else None)
            until = result.settings.get("until", request.until)
            print_result(console, result, until, files, everything=request.voice == "verbose")
        if unsaved:
            raise unsaved
    if result.uncommitted:
        typer.echo(f"no round was committed, and no model is saved: {_advice(result)}", err=True)
        raise typer.Exit(FAILED)
    if result.stopped == "interrupted":
        raise typer.Exit(INTERRUPTED)


def _advice(result: Result) -> str:
    """What to try after a federated run without a committed round."""
    if result.participation and any(record.declined for record in result.participation.rounds):
        return (
            "clients declined its terms, as is said above; where fewer can open a sum than a client's --fewest, raise "
            f"secagg(threshold=…) or, without dp, {option('least')}, or let the client lower --fewest"
        )
    return (
        f"lower {option('per_round')} or {option('least')}, or give clients more time with {option('selection')} and "
        f"{option('reporting')}"
    )


def _profile(result: Result) -> str:
    from covey.report import perfetto

    assert result.recording is not None, "a profiled run has a recording"
    return perfetto.events(result.recording)
