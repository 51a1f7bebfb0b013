"""covey simulate: train a task in virtual time, on a cluster that exists only as a description."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covey.cli import options
from covey.cli.errors import explained
from covey.cli.models.flags import RecordAndModelFlags
from covey.cli.options import Voice, flag
from covey.cli.training import ShownRequest, check_names, importing, load_plugins, refuse_early, train
from covey.errors import PlanError
from covey.spec.worker_range import parse_workers

if TYPE_CHECKING:
    from covey.check.fault_seeds import FaultCase
    from covey.simulate import Cluster

CLUSTER = "The cluster"

Faults = Annotated[
    str | None,
    flag(
        "--faults", "PLAN", "What goes wrong: 'kill worker 1@5s', a file of such lines, or seeds (0..99).", CLUSTER
    ),
]  # fmt: skip
SpotTrace = Annotated[
    Path | None, flag("--spot-trace --trace", "FILE", "Times at which workers' machines come and go.", CLUSTER)
]
TimingOnly = Annotated[bool, flag("--timing-only", "", "Simulate time and traffic only; train nothing.", CLUSTER)]


@dataclass(frozen=True, kw_only=True)
class ClusterFlags(options.FlagGroup):
    """A cluster that exists only as a description."""

    cluster: Annotated[
        Path | None, flag("--cluster", "FILE", "Read the cluster from a file like cluster.toml.", CLUSTER)
    ] = None
    bandwidth: Annotated[str | None, flag("--bandwidth", "RATE", "Of each link. (default: 1gbit)", CLUSTER)] = None
    latency: Annotated[str | None, flag("--latency", "TIME", "Of each link, one way. (default: 0.1ms)", CLUSTER)] = None
    compute: Annotated[str | None, flag("--compute", "TIME", "Time of one batch. (default: 10ms)", CLUSTER)] = None
    jitter: Annotated[str | None, flag("--jitter", "SHARE", "How much --compute varies, such as 0.3.", CLUSTER)] = None

    def described(self) -> Cluster | None:
        """The cluster of the file or of the other flags, if any were given; both at once are refused."""
        from covey.simulate import from_flags, load

        given = {name: value for name, value in self.arguments().items() if value is not None and value != []}
        file = given.pop("cluster", None)
        if file is None:
            return None if not given else from_flags(**given)
        if given:
            named = " and ".join(f"--{name}" for name in given)
            raise PlanError(f"--cluster {file} describes all of the cluster; omit {named}, or write it into the file")
        return load(file)


@dataclass(frozen=True, kw_only=True)
class UnevenClusterFlags(ClusterFlags):
    """A cluster with slow workers."""

    slow: Annotated[list[str] | None, flag("--slow", "WORKER:FACTOR", "A slow worker, such as 3:4x.", CLUSTER)] = None


@dataclass(frozen=True, kw_only=True)
class FailingClusterFlags(UnevenClusterFlags):
    """A cluster with slow workers, and with some that die."""

    kill: Annotated[
        list[str] | None, flag("--kill", "WORKER@TIME", "A worker that dies, such as 2@5s.", CLUSTER)
    ] = None


@dataclass(frozen=True, kw_only=True)
class SimulatedTeamFlags(options.FlagGroup):
    """Who trains, and how; a cluster may say how many workers there are."""

    strategy: options.Strategy = "bsp"
    plugin: options.Plugins = None
    workers: Annotated[
        str | None,
        flag("--workers", "N|MIN:MAX|auto:MAX", "How many train. (default: those of --cluster, else 2)", options.RUN),
    ] = None
    servers: options.Servers = None
    replicas: options.Replicas = 1
    preparers: options.Preparers = None
    seed: options.Seed = 0
    link_rate: options.LinkRate = None


@options.grouped
def command(
    *,
    task: options.Task,
    team: SimulatedTeamFlags,
    cluster: FailingClusterFlags,
    faults: Faults = None,
    spot_trace: SpotTrace = None,
    timing_only: TimingOnly = False,
    budget: options.OneRunFlags,
    keeping: options.KeepFlags,
    log: options.Log = None,
    record: RecordAndModelFlags,
    output: options.OutputFlags,
) -> None:
    """Train a task in virtual time, on an imagined cluster.

    The real model and the real strategy run; only time is charged by the description.

    covey simulate examples/digits.py --strategy 'ssp(bound=3)' --workers 8 --bandwidth 100mbit --slow 3:4x
    """
    manner, strategy = output.voice, team.strategy
    with explained(manner):
        imagined = cluster.described()
        asked = team.workers if team.workers is not None else (imagined.workers if imagined else None) or 2
        workers = parse_workers(asked)
        if imagined is not None:
            imagined.check(workers.most)
        request = ShownRequest(
            strategy=strategy, workers=asked, engine="simulated", until=budget.until, output=output,
            files=keeping.files,
        )  # fmt: skip
        kept_in = record.folder
        refuse_early(request, keeping, record.register, faults=faults, spot_trace=spot_trace)
        check_names(team.strategy, team.plugin)
        load_plugins(team.plugin, manner)
        with importing(manner):
            from covey.run import fit
            from covey.run.request import EPOCHS
            from covey.simulate import Cluster
            from covey.simulate.faults import parse_seeds

        if faults is not None and (seeds := parse_seeds(faults)) is not None:
            refuse_with_seeds(
                until=budget.until, timing_only=timing_only, save=keeping.save, checkpoint=keeping.checkpoint,
                every=keeping.every, resume=keeping.resume, json=output.json, link_rate=team.link_rate, log=log,
                runs=record.runs, scores=budget.scores - 1, max_failures=keeping.max_failures,
                on_failure=keeping.on_failure == "restart", best=budget.best, patience=budget.patience,
                score_every=budget.score_every, spot_trace=spot_trace, preparers=team.preparers, **record.models,
            )  # fmt: skip
            with importing(manner):
                from covey.check.fault_seeds import FaultCase
            epochs = budget.epochs or (None if budget.steps else EPOCHS)
            elastic = keeping.on_failure == "continue" or workers.least > 0 or team.replicas > 1
            world = imagined or Cluster()
            case = FaultCase(
                strategy, workers.most, task, budget.steps, epochs, team.servers, team.seed, world, elastic,
                request.command, least=workers.least, replicas=team.replicas,
            )  # fmt: skip
            return try_seeds(case, seeds, manner)
        train(
            request,
            lambda watcher: fit(
                task, strategy, workers.asked, servers=team.servers, replicas=team.replicas, engine="simulated",
                seed=team.seed, preparers=team.preparers,
                link_rate=team.link_rate, cluster=imagined, timing_only=timing_only, faults=faults,
                spot_trace=spot_trace, command=request.command, watcher=watcher, log=log or (), runs=kept_in,
                **budget.arguments(), **keeping.arguments(), **record.models,
            ),
        )  # fmt: skip


def try_seeds(case: FaultCase, seeds: range, manner: Voice) -> None:
    """Try each seed, say what broke, and end with code 1 if something did."""
    from covey.check.fault_seeds import tried

    broken, begin = 0, time.monotonic()
    for seed in seeds:
        finding = tried(case, seed)
        broken += bool(finding.broken)
        if finding.broken:
            typer.echo(str(finding))
        elif len(seeds) == 1 and manner != "quiet":
            typer.echo(f"seed {seed}: {finding.plan}; {finding.restarts} restarts, and every invariant holds")
    if manner != "quiet":
        minutes = (time.monotonic() - begin) / 60
        typer.echo(f"{len(seeds)} seeds, {broken} broken; {len(seeds) / minutes:.0f} a minute")
    if broken:
        raise typer.Exit(1)


def refuse_with_seeds(**given: object) -> None:
    """Refuse what a seed decides by itself: it does the run several times, with checkpoints of its own."""
    for name, value in given.items():
        if value:
            raise PlanError(
                f"--{name.replace('_', '-')} goes with one run, and a seed of --faults does several, each kept and "
                "restarted by itself: omit it, or write the faults themselves"
            )
