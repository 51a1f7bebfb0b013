"""The flags that several commands take, each with its words for the help page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from covey.engines import entries as engines

Voice = Literal["quiet", "normal", "verbose"]

RUN, BUDGET, KEEP, HOSTS, OUTPUT = "What to run", "When to stop", "What to keep", "Many hosts", "Output"


def flag(name: str, metavar: str, help: str, panel: str, least: int | None = None) -> Any:
    """An option as the help page shows it; one without a value has an empty metavar."""
    return typer.Option(name, metavar=metavar, help=help, rich_help_panel=panel, min=least)


Task = Annotated[str, typer.Argument(metavar="FILE[:NAME]", help="A Python file, and the name of its covey.Task.")]

Strategy = Annotated[
    str, flag("--strategy", "SPEC", "How the workers train together, such as bsp or 'ssp(bound=3)'.", RUN)
]
Plugins = Annotated[
    list[Path] | None, flag("--plugin", "FILE", "A file that registers strategies, codecs or engines of yours.", RUN)
]
Workers = Annotated[int, flag("--workers", "N", "How many workers train.", RUN, least=1)]
Servers = Annotated[
    int | None, flag("--servers", "K", "How many servers hold the parameters, where there are any.", RUN, least=1)
]
Engine = Annotated[
    str, flag("--engine", "ENGINE", f"Where it runs: {', '.join(engines.names())}, or one of yours.", RUN)
]
Seed = Annotated[int, flag("--seed", "SEED", "What all chance comes from.", RUN, least=0)]
Threads = Annotated[int | None, flag("--threads", "T", "Threads of torch in each role.", RUN, least=1)]
LinkRate = Annotated[str | None, flag("--link-rate", "RATE", "What each link may carry, such as 50mbit.", RUN)]
Stall = Annotated[
    str,
    flag(
        "--stall",
        "TIME",
        "After this time, report who waits for whom, and end the run if a process is unresponsive.",
        RUN,
    ),
]

Epochs = Annotated[
    int | None, flag("--epochs", "E", "End a worker after so many passes over its share.", BUDGET, least=1)
]
Steps = Annotated[int | None, flag("--steps", "S", "End a worker after so many steps of its own.", BUDGET, least=1)]
Until = Annotated[
    str | None, flag("--until", "TARGET", "End the run at 'accuracy>=0.9', or accuracy:0.9 unquoted.", BUDGET)
]
Scores = Annotated[int, flag("--scores", "N", "Score the model so often in a pass over the data.", BUDGET, least=1)]

Save = Annotated[Path | None, flag("--save", "FILE", "Save the trained weights as safetensors.", KEEP)]
Checkpoint = Annotated[Path | None, flag("--checkpoint", "DIR", "Keep the whole run here as it goes.", KEEP)]
Every = Annotated[str | None, flag("--every", "TIME", "How often to write a checkpoint, or auto. (usual: 60s)", KEEP)]
OnFailure = Annotated[
    Literal["stop", "restart", "continue"],
    flag("--on-failure", "WHAT", "When a process is lost: stop, restart from a checkpoint, or continue.", KEEP),
]
MaxFailures = Annotated[
    int | None,
    flag("--max-failures", "N", "How many failures in a row may pass without progress.", KEEP, least=1),
]
Log = Annotated[
    list[str] | None,
    flag("--log", "KIND:WHERE", "Also report to csv:FILE, tensorboard:DIR, mlflow:URI, …: see docs/loggers.md", KEEP),
]
Runs = Annotated[Path | None, flag("--runs", "DIR", "Record the run in this folder. (usual: runs)", KEEP)]
NoRecord = Annotated[bool, flag("--no-record", "", "Do not record the run.", KEEP)]
Profile = Annotated[
    Path | None, flag("--profile", "FILE", "What torch and the roles did at the beginning, for Perfetto.", KEEP)
]
Faults = Annotated[
    str | None, flag("--faults", "PLAN", "What goes wrong: 'kill worker 1@5s', or a file of such lines.", KEEP)
]
Resume = Annotated[Path | None, flag("--resume", "DIR", "Go on from the checkpoint in this folder.", KEEP)]

Hosts = Annotated[Path | None, flag("--hosts", "FILE", "A file of hosts, one a line, as mpirun takes it.", HOSTS)]
Place = Annotated[str, flag("--place", "WHERE", "Who lives where: servers:node0,workers:rest.", HOSTS)]
Interface = Annotated[str, flag("--interface", "NAME", "The network by which hosts meet, such as eth1.", HOSTS)]
Insecure = Annotated[bool, flag("--insecure", "", "Neither encrypt nor check who speaks between hosts.", HOSTS)]

Interactive = Annotated[bool, flag("--interactive", "", "Draw the report with Plotly, which adds 5 MB to it.", KEEP)]

Json = Annotated[Path | None, flag("--json", "FILE", "Write the answer as JSON ('-' for the output).", OUTPUT)]
Quiet = Annotated[bool, flag("--quiet", "", "Say nothing unless something fails.", OUTPUT)]
Verbose = Annotated[bool, flag("--verbose", "", "Say more: every role, every traceback.", OUTPUT)]


def voice(quiet: bool, verbose: bool) -> Voice:
    """How much to say; both flags together are refused."""
    if quiet and verbose:
        raise typer.BadParameter("--quiet and --verbose contradict each other; give one of them")
    return "quiet" if quiet else "verbose" if verbose else "normal"


def teller(manner: Voice) -> Callable[[str], None]:
    """Says on stderr what is being done, for commands that take a while; not where quiet was asked for."""
    return (lambda line: None) if manner == "quiet" else (lambda line: typer.echo(line, err=True))
