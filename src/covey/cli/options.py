"""The flags that several commands take, each with its words for the help page, in groups that travel together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer

from covey.cli.tables import completion
from covey.cli.typed_flags import one_number, whole
from covey.engines import entries as engines
from covey.errors import PlanError

Voice = Literal["quiet", "normal", "verbose"]
Offered = Callable[[str], Iterator[str]]

RUN, BUDGET, KEEP, HOSTS, OUTPUT = "What to run", "When to stop", "What to keep", "Many hosts", "Output"


def flag(
    names: str, metavar: str, help: str, panel: str, least: int | None = None, offered: Offered | None = None,
    parser: Callable[[str], Any] | None = None,
) -> Any:  # fmt: skip
    """An option for the help page, with an empty metavar if it has no value; whole numbers have a `least` one."""
    return typer.Option(
        *names.split(), metavar=metavar, help=help, rich_help_panel=panel, autocompletion=offered,
        parser=parser if least is None else whole(least),
    )  # fmt: skip


Task = Annotated[str, typer.Argument(metavar="FILE[:NAME]", help="A Python file, and the name of its covey.Task.")]

_TOGETHER = "How the workers train together, such as bsp or 'ssp(bound=3)'."
Strategy = Annotated[str, flag("--strategy", "SPEC", _TOGETHER, RUN, offered=completion.specs)]
Plugins = Annotated[
    list[Path] | None, flag("--plugin", "FILE", "A file that registers strategies, codecs or engines of yours.", RUN)
]
Workers = Annotated[int, flag("--workers", "N", "How many workers train.", RUN, parser=one_number)]
WorkersOrRange = Annotated[
    str, flag("--workers", "N|MIN:MAX|auto:MAX", "How many workers train; in a range they come and go.", RUN)
]
Servers = Annotated[
    int | None, flag("--servers", "K", "How many servers hold the parameters, where there are any.", RUN, least=1)
]
Replicas = Annotated[
    int, flag("--replicas", "R", "How many copies of each server's parameters there are: 1 to 3.", RUN, least=1)
]
_WHERE = f"Where it runs: {', '.join(engines.names())}, or one of yours."
Preparers = Annotated[int | None, flag("--preparers", "K", "How many roles transform samples.", RUN, least=0)]
Engine = Annotated[str, flag("--engine", "ENGINE", _WHERE, RUN, offered=completion.engines)]
Seed = Annotated[int, flag("--seed", "SEED", "The seed of all random numbers.", RUN, least=0)]
Threads = Annotated[int | None, flag("--threads", "T", "Threads of torch in each role.", RUN, least=1)]
LinkRate = Annotated[str | None, flag("--link-rate", "RATE", "Limit each link to this rate, such as 50mbit.", RUN)]

Steps = Annotated[int | None, flag("--steps", "S", "End a worker after this many steps of its own.", BUDGET, least=1)]
Until = Annotated[
    str | None, flag("--until", "TARGET", "End the run at 'accuracy>=0.9', or accuracy:0.9 unquoted.", BUDGET)
]
Scores = Annotated[int, flag("--scores", "N", "How often to score the model in a pass over the data.", BUDGET, least=1)]
ScoreEvery = Annotated[
    str | None, flag("--score-every", "HOW OFTEN", "Score every '100 steps' of a worker instead, or every 30s.", BUDGET)
]
Best = Annotated[str | None, flag("--best", "METRIC", "Also keep the model with the best score of this metric.", KEEP)]
Patience = Annotated[
    int | None, flag("--patience", "N", "End the run after this many scores that are not better.", BUDGET, least=1)
]

Log = Annotated[
    list[str] | None,
    flag("--log", "KIND:WHERE", "Also report to csv:FILE, tensorboard:DIR, mlflow:URI, …: see docs/loggers.md", KEEP),
]
Profile = Annotated[
    Path | None, flag("--profile", "FILE", "Write what torch and the roles do in the first steps, for Perfetto.", KEEP)
]
Faults = Annotated[
    str | None, flag("--faults", "PLAN", "Inject faults: 'kill worker 1@5s', or a file of such lines.", KEEP)
]

SpotTrace = Annotated[
    Path | None, flag("--spot-trace --trace", "FILE", "Times at which workers' machines come and go.", KEEP)
]

Interactive = Annotated[bool, flag("--interactive", "", "Draw the report with Plotly, which adds 5 MB to it.", KEEP)]

Json = Annotated[Path | None, flag("--json", "FILE", "Write the answer as JSON ('-' for the output).", OUTPUT)]
Quiet = Annotated[bool, flag("--quiet", "", "Say nothing unless something fails.", OUTPUT)]
Verbose = Annotated[bool, flag("--verbose", "", "Say more: every role, every traceback.", OUTPUT)]


class FlagGroup:
    """Flags that belong together: one parameter of a command, whose fields are flags of the command line."""

    def arguments(self) -> dict[str, Any]:
        """What was given, by the names under which `covey.fit` takes it."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class TeamFlags(FlagGroup):
    """Who trains, and how."""

    strategy: Strategy = "bsp"
    plugin: Plugins = None
    workers: Workers = 2
    servers: Servers = None


@dataclass(frozen=True, kw_only=True)
class ChangingTeamFlags(TeamFlags):
    """The same, where workers may come and go, and servers may have copies."""

    workers: WorkersOrRange = "2"  # type: ignore[assignment]  # a flag of its own
    replicas: Replicas = 1
    preparers: Preparers = None


@dataclass(frozen=True, kw_only=True)
class ProcessFlags(FlagGroup):
    """Where processes run."""

    engine: Engine = "local"
    seed: Seed = 0
    threads: Threads = None
    stall: Annotated[
        str,
        flag(
            "--stall", "TIME",
            "After this time, report who waits for whom, and end the run if a process is unresponsive.", RUN,
        ),
    ] = "30s"  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class BudgetFlags(FlagGroup):
    """How long to train, and how often to score."""

    epochs: Annotated[
        int | None, flag("--epochs", "E", "End a worker after this many passes over its share.", BUDGET, least=1)
    ] = None
    steps: Steps = None
    until: Until = None
    scores: Scores = 1


@dataclass(frozen=True, kw_only=True)
class OneRunFlags(BudgetFlags):
    """The same for one run, which may also be judged by its best score."""

    score_every: ScoreEvery = None
    best: Best = None
    patience: Patience = None


@dataclass(frozen=True, kw_only=True)
class KeepFlags(FlagGroup):
    """What to keep of a run, and what to do when it fails."""

    save: Annotated[Path | None, flag("--save", "FILE", "Save the trained weights as safetensors.", KEEP)] = None
    checkpoint: Annotated[Path | None, flag("--checkpoint", "DIR", "Write checkpoints to this folder.", KEEP)] = None
    every: Annotated[
        str | None, flag("--every", "TIME", "How often to write a checkpoint, or auto. (default: 60s)", KEEP)
    ] = None
    resume: Annotated[Path | None, flag("--resume", "DIR", "Continue from the checkpoint in this folder.", KEEP)] = None
    on_failure: Annotated[
        Literal["stop", "restart", "continue"],
        flag("--on-failure", "WHAT", "When a process is lost: stop, restart from a checkpoint, or continue.", KEEP),
    ] = "stop"
    max_failures: Annotated[
        int | None, flag("--max-failures", "N", "How many failures in a row without progress to allow.", KEEP, least=1)
    ] = None

    @property
    def files(self) -> dict[str, Path | None]:
        """What the run will leave behind."""
        return {"model": self.save, "checkpoint": self.checkpoint}

    def arguments(self) -> dict[str, Any]:
        return {**super().arguments(), "every": self.every or "60s"}


@dataclass(frozen=True, kw_only=True)
class LedKeepFlags(KeepFlags):
    """The same, where several launchers may have the run, one at a time."""

    keeper: Annotated[
        str, flag("--keeper", "WHERE", "Where launchers agree who leads: file, or etcd:HOST:PORT/NAME.", KEEP)
    ] = "file"
    standby: Annotated[
        bool, flag("--standby", "", "Wait while another launcher leads, and take over when it dies.", KEEP)
    ] = False


@dataclass(frozen=True, kw_only=True)
class FaultFlags(FlagGroup):
    """What goes wrong, and which machines come and go."""

    faults: Faults = None
    spot_trace: SpotTrace = None


@dataclass(frozen=True, kw_only=True)
class HostFlags(FlagGroup):
    """How hosts are found, and how they reach each other."""

    hosts: Annotated[Path | None, flag("--hosts", "FILE", "A file of hosts, one a line, as for mpirun.", HOSTS)] = None
    place: Annotated[str, flag("--place", "WHERE", "Roles on hosts: servers:node0,workers:rest.", HOSTS)] = ""
    interface: Annotated[str, flag("--interface", "NAME", "The network interface to use, such as eth1.", HOSTS)] = ""
    insecure: Annotated[
        bool, flag("--insecure", "", "Neither encrypt nor authenticate links between hosts.", HOSTS)
    ] = False
    cipher: Annotated[str, flag("--cipher", "NAME", "Encrypt tensors between hosts faster: aes-256-gcm.", HOSTS)] = ""


@dataclass(frozen=True, kw_only=True)
class RecordFlags(FlagGroup):
    """Where the run is recorded."""

    runs: Annotated[Path | None, flag("--runs", "DIR", "Record the run in this folder. (default: runs)", KEEP)] = None
    no_record: Annotated[bool, flag("--no-record", "", "Do not record the run.", KEEP)] = False

    @property
    def folder(self) -> Path | Literal[False] | None:
        """The same, as `covey.fit` takes it."""
        if self.runs is not None and self.no_record:
            raise PlanError(f"--runs {self.runs} records the run, --no-record does not: give one of them")
        if self.runs is not None and self.runs.exists() and not self.runs.is_dir():
            raise PlanError(f"--runs {self.runs} is a file: name a folder, or use --no-record")
        return False if self.no_record else self.runs


class Voiced(FlagGroup):
    """Flags that say how much to say."""

    quiet: bool
    verbose: bool

    @property
    def voice(self) -> Voice:
        """The same in a word; both flags together are refused."""
        if self.quiet and self.verbose:
            raise typer.BadParameter("--quiet and --verbose contradict each other; give one of them")
        return "quiet" if self.quiet else "verbose" if self.verbose else "normal"


@dataclass(frozen=True, kw_only=True)
class VoiceFlags(Voiced):
    """How much to say."""

    quiet: Quiet = False
    verbose: Verbose = False


@dataclass(frozen=True, kw_only=True)
class OutputFlags(Voiced):
    """Where the answer goes, and how much to say."""

    json: Json = None
    quiet: Quiet = False
    verbose: Verbose = False


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take groups of flags; typer sees each flag as a parameter of its own, in the order of the help."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    flags: list[Parameter] = []
    for name, given in signature(command).parameters.items():
        if name in groups:
            flags += [_flag_of(name, kind, default) for name, kind, default in _flags_in(groups[name])]
        else:
            flags.append(_flag_of(name, hints[name], given.default))

    @wraps(command)
    def called(**given: Any) -> None:
        parts = {name: kind(**{one.name: given.pop(one.name) for one in fields(kind)}) for name, kind in groups.items()}
        command(**given, **parts)

    called.__signature__ = Signature(flags)  # type: ignore[attr-defined]
    called.__annotations__ = {flag.name: flag.annotation for flag in flags}
    return called


def _flags_in(group: Any) -> list[tuple[str, Any, Any]]:
    kinds = get_type_hints(group, include_extras=True)
    return [(field.name, kinds[field.name], field.default) for field in fields(group)]


def _flag_of(name: str, kind: Any, default: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def teller(manner: Voice) -> Callable[[str], None]:
    """Says on stderr what is being done, for commands that take a while; not where quiet was asked for."""
    return (lambda line: None) if manner == "quiet" else (lambda line: typer.echo(line, err=True))
