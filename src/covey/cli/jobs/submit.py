"""covey jobs submit: add a job to a queue, or hand it to SLURM or Kubernetes."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from covey.cli import json_file, options
from covey.cli.errors import explained
from covey.cli.jobs.queue import Folder, folder_of
from covey.cli.options import flag
from covey.cli.typed_flags import typed
from covey.errors import PlanError

ELSEWHERE = "Another scheduler"


def command(
    context: typer.Context,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="-- run FILE …", help="A covey command, without covey.")
    ] = None,
    jobs: Folder = None,
    stages: Annotated[
        str, flag("--stages", "STAGES", "Workers by stages, for --policy flexps: '1@30%, 4'.", options.RUN)
    ] = "",
    to: Annotated[
        Literal["slurm", "kubernetes"] | None, flag("--to", "SCHEDULER", "slurm or kubernetes, not a queue.", ELSEWHERE)
    ] = None,
    image: Annotated[str, flag("--image", "IMAGE", "A container image with covey, for kubernetes.", ELSEWHERE)] = "",
    claim: Annotated[
        str, flag("--claim", "NAME", "The volume claim with the task, where checkpoints stay.", ELSEWHERE)
    ] = "covey",
    dry_run: Annotated[bool, flag("--dry-run", "", "Print what would be submitted.", ELSEWHERE)] = False,
) -> None:
    """Add a job to a queue: a covey command that runs when its turn comes.

    covey jobs submit -- run examples/digits.py --strategy bsp --workers 1:4 --epochs 20
    """
    with explained("normal"):
        console = json_file.console(None)
        _refuse_unread(context, to)
        if to is not None:
            _elsewhere(list(words or ()), to, image, claim, dry_run)
            return
        from covey.jobs.job_folder import JobFolder

        folder = JobFolder(folder_of(jobs))
        check_command(list(words or ()), context.find_root().command)
        name = folder.submit(list(words or ()), stages=stages)
        waits = "" if folder.is_served() else f": it waits for covey jobs serve --jobs {folder.path}"
        console.print(f"submitted {name}{waits}", markup=False, soft_wrap=True)


def _refuse_unread(context: typer.Context, to: str | None) -> None:
    """Refuse flags of another place than the one to which the job goes."""
    if to is None and (unread := typed(context, ["image", "claim", "dry_run"])):
        raise PlanError(f"a job in a queue needs no {unread}: add --to slurm or --to kubernetes, or omit it")
    if to is not None and (unread := typed(context, ["jobs", "stages"])):
        raise PlanError(f"--to {to} uses no queue of covey: omit it, or {unread}")
    if to == "slurm" and (unread := typed(context, ["image", "claim"])):
        raise PlanError(f"--to slurm uses neither a container image nor a volume claim: omit {unread}")


def check_command(words: list[str], covey: Any) -> None:
    """Refuse a job now that would fail when its turn comes: for an option that is none, or a file that is missing."""
    from covey.jobs.job_command import COMMANDS
    from covey.names import task_file

    words = words[1:] if words[:1] == ["covey"] else words
    if not words or words[0] not in COMMANDS:
        return  # the queue says what is wrong
    try:
        given = covey.commands[words[0]].make_context(f"covey {words[0]}", words[1:]).params
    except typer.Exit:
        raise PlanError(f"covey {shlex.join(words)} shows help, so it is no job") from None
    except Exception as error:
        told = getattr(error, "format_message", None)  # by its method: some versions of typer have a click of their own
        if told is None:
            raise
        raise PlanError(f"covey {words[0]}: {told()}") from None
    named = given.get("task") or given.get("script")
    if named is not None and not (file := task_file(str(named))).exists():
        raise PlanError(f"there is no file {file} in {Path.cwd()}, where the job would run")


def _elsewhere(words: list[str], to: Literal["slurm", "kubernetes"], image: str, claim: str, dry_run: bool) -> None:
    from covey.jobs.schedulers import kubernetes_manifest, slurm_script, submitted

    if to == "slurm":
        text = slurm_script(words, Path.cwd())
    elif not image:
        raise PlanError("--to kubernetes needs --image IMAGE: a container image in which covey is installed")
    else:
        text = kubernetes_manifest(words, image, claim)
    if dry_run:
        typer.echo(text, nl=False)
    else:
        typer.echo(submitted(to, text))
