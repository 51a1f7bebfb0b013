"""covey launch: run a script that has its own training loop on every worker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from covey.cli import options
from covey.cli.errors import explained
from covey.cli.models.flags import RecordAndModelFlags
from covey.cli.options import grouped
from covey.cli.training import ShownRequest, check_names, import_ahead, importing, load_plugins, refuse_early, train
from covey.engines.entries import only_hosts
from covey.errors import PlanError
from covey.spec.worker_range import parse_workers

Script = Annotated[Path, typer.Argument(metavar="SCRIPT", help="A Python file that calls covey.join.")]
Arguments = Annotated[list[str] | None, typer.Argument(metavar="ARGUMENTS", help="Arguments of the script.")]


class ScriptFirst(TyperCommand):
    """Reads covey's flags before SCRIPT, as torchrun does, or right after it when none stand before.

    What begins the script's own part is the first argument that is no flag of covey's, or `--`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and not args[0].startswith("-"):
            end = 1 + self._flags_at(args[1:])
            args = [*args[1:end], args[0], *args[end:]]
        return super().parse_args(ctx, args)

    def _flags_at(self, args: list[str]) -> int:
        """How many of these arguments, from the first on, are flags of covey's and their values."""
        known: list[Any] = [parameter for parameter in self.params if parameter.param_type_name == "option"]
        takes_value = {name: not option.is_flag for option in known for name in option.opts}
        at = 0
        while at < len(args) and (name := args[at].partition("=")[0]) in takes_value:
            at += 2 if takes_value[name] and "=" not in args[at] else 1
        return min(at, len(args))


@grouped
def command(
    *,
    script: Script,
    arguments: Arguments = None,
    team: options.TeamFlags,
    processes: options.ProcessFlags,
    steps: options.Steps = None,
    keeping: options.KeepFlags,
    network: options.HostFlags,
    log: options.Log = None,
    record: RecordAndModelFlags,
    profile: options.Profile = None,
    output: options.OutputFlags,
) -> None:
    """Run a script with its own training loop on every worker.

    covey.join in the script joins the run. Flags of covey come before SCRIPT, or right after it.

    covey launch train.py --workers 4 --strategy bsp -- --what-the-script-takes
    """
    request = ShownRequest(
        strategy=team.strategy, workers=team.workers, engine=processes.engine, until=None, output=output,
        profile=profile, files=keeping.files,
    )  # fmt: skip
    own = arguments or []
    own = own[1:] if own[:1] == ["--"] else own
    manner, guest = request.voice, only_hosts(processes.engine.partition("(")[0].strip())
    with explained(manner, guest=guest):
        if not script.is_file():
            raise PlanError(f"there is no file {script}; give the Python script that calls covey.join")
        kept_in = record.folder
        refuse_early(request, keeping, record.register, stall=processes.stall)
        check_names(team.strategy, team.plugin)
        import_ahead(processes.engine, parse_workers(team.workers).most, processes.threads)
        load_plugins(team.plugin, manner)
        with importing("quiet" if guest else manner):
            from covey.run import launch

        train(
            request,
            lambda watcher: launch(
                script, own, team.strategy, team.workers, servers=team.servers, steps=steps, command=request.command,
                watcher=watcher, log=log or (), runs=kept_in, profiled=profile is not None,
                **processes.arguments(), **keeping.arguments(), **network.arguments(), **record.models,
            ),
        )  # fmt: skip
