"""covey run: train a task on real processes."""

from __future__ import annotations

from covey.cli import options
from covey.cli.errors import explained
from covey.cli.models.flags import RecordAndModelFlags
from covey.cli.options import grouped, teller
from covey.cli.progress.page import Beside, page_beside
from covey.cli.training import ShownRequest, check_names, import_ahead, importing, load_plugins, refuse_early, train
from covey.engines.entries import only_hosts
from covey.engines.interrupt import forget_join_requests
from covey.spec.worker_range import parse_workers


@grouped
def command(
    *,
    task: options.Task,
    team: options.ChangingTeamFlags,
    processes: options.ProcessFlags,
    link_rate: options.LinkRate = None,
    budget: options.OneRunFlags,
    keeping: options.LedKeepFlags,
    changes: options.FaultFlags,
    network: options.HostFlags,
    log: options.Log = None,
    record: RecordAndModelFlags,
    page: Beside = False,
    profile: options.Profile = None,
    output: options.OutputFlags,
) -> None:
    """Train a task on processes of this machine, or of a cluster.

    covey run examples/digits.py --strategy 'easgd(period=4)' --workers 4 --until accuracy:0.95
    """
    request = ShownRequest(
        strategy=team.strategy, workers=team.workers, engine=processes.engine, until=budget.until, output=output,
        profile=profile, files=keeping.files,
    )  # fmt: skip
    manner, guest = request.voice, only_hosts(processes.engine.partition("(")[0].strip())
    with explained(manner, guest=guest):
        kept_in = record.folder
        refuse_early(request, keeping, record.register, stall=processes.stall, **changes.arguments())
        check_names(team.strategy, team.plugin)
        workers = parse_workers(team.workers)
        if workers.least:
            forget_join_requests()
        import_ahead(processes.engine, workers.most, processes.threads)
        load_plugins(team.plugin, manner)
        with importing("quiet" if guest else manner):
            from covey.run import fit

        with page_beside(page, kept_in, teller(manner)):
            train(
                request,
                lambda watcher: fit(
                    task, team.strategy, workers.asked, servers=team.servers,
                    replicas=team.replicas, preparers=team.preparers, link_rate=link_rate,
                    command=request.command, watcher=watcher, log=log or (), runs=kept_in,
                    profiled=profile is not None, **processes.arguments(), **changes.arguments(),
                    **budget.arguments(), **keeping.arguments(), **network.arguments(),
                    **record.models,
                ),
            )  # fmt: skip
