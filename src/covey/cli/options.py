"""The flags that several commands take, each with its words for the help page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

Voice = Literal["quiet", "normal", "verbose"]

_RUN, _BUDGET, _KEEP, _OUTPUT = "What to run", "When to stop", "What to keep", "Output"


def _option(flag: str, metavar: str, help: str, panel: str, least: int | None = None) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(flag, metavar=metavar, help=help, rich_help_panel=panel, min=least)
    return option


Task = Annotated[str, typer.Argument(metavar="FILE[:NAME]", help="A Python file, and the name of its covey.Task.")]

Strategy = Annotated[
    str, _option("--strategy", "SPEC", "How the workers train together, such as bsp or 'ssp(bound=3)'.", _RUN)
]
Workers = Annotated[int, _option("--workers", "N", "How many workers train.", _RUN, least=1)]
Servers = Annotated[
    int | None, _option("--servers", "K", "How many servers hold the parameters, where there are any.", _RUN, least=1)
]
Engine = Annotated[str, _option("--engine", "ENGINE", "Where it runs: local or simulated.", _RUN)]
Seed = Annotated[int, _option("--seed", "SEED", "What all chance comes from.", _RUN, least=0)]
Threads = Annotated[int | None, _option("--threads", "T", "Threads of torch in each role.", _RUN, least=1)]
Stall = Annotated[str, _option("--stall", "TIME", "Report who waits for whom after waiting so long.", _RUN)]

Epochs = Annotated[
    int | None, _option("--epochs", "E", "End a worker after so many passes over its share.", _BUDGET, least=1)
]
Steps = Annotated[int | None, _option("--steps", "S", "End a worker after so many steps of its own.", _BUDGET, least=1)]
Until = Annotated[
    str | None, _option("--until", "TARGET", "End the run at 'accuracy>=0.9', or accuracy:0.9 unquoted.", _BUDGET)
]

Save = Annotated[Path | None, _option("--save", "FILE", "Save the trained weights as safetensors.", _KEEP)]
Checkpoint = Annotated[Path | None, _option("--checkpoint", "DIR", "Keep the whole run here as it goes.", _KEEP)]
Every = Annotated[str | None, _option("--every", "TIME", "How often to write the checkpoint. (usual: 60s)", _KEEP)]
Resume = Annotated[Path | None, _option("--resume", "DIR", "Go on from the checkpoint in this folder.", _KEEP)]

Json = Annotated[Path | None, _option("--json", "FILE", "Write the answer as JSON ('-' for the output).", _OUTPUT)]
Quiet = Annotated[bool, _option("--quiet", "", "Say nothing unless something fails.", _OUTPUT)]
Verbose = Annotated[bool, _option("--verbose", "", "Say more: every role, every traceback.", _OUTPUT)]


def voice(quiet: bool, verbose: bool) -> Voice:
    """How much to say; both flags together are refused."""
    if quiet and verbose:
        raise typer.BadParameter("--quiet and --verbose contradict each other; give one of them")
    return "quiet" if quiet else "verbose" if verbose else "normal"
