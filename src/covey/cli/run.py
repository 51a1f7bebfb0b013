"""covey run: train a task on real processes."""

from __future__ import annotations

from covey.cli import options
from covey.cli.errors import explained
from covey.cli.options import teller, voice
from covey.cli.progress.page import Beside, page_beside
from covey.cli.training import ShownRequest, importing, load_plugins, refuse_early, runs_of, train
from covey.engines.entries import only_hosts


def command(
    task: options.Task,
    strategy: options.Strategy = "bsp",
    plugin: options.Plugins = None,
    workers: options.Workers = 2,
    servers: options.Servers = None,
    engine: options.Engine = "local",
    seed: options.Seed = 0,
    threads: options.Threads = None,
    stall: options.Stall = "30s",
    link_rate: options.LinkRate = None,
    epochs: options.Epochs = None,
    steps: options.Steps = None,
    until: options.Until = None,
    scores: options.Scores = 1,
    save: options.Save = None,
    checkpoint: options.Checkpoint = None,
    every: options.Every = None,
    resume: options.Resume = None,
    on_failure: options.OnFailure = "stop",
    max_failures: options.MaxFailures = None,
    faults: options.Faults = None,
    hosts: options.Hosts = None,
    place: options.Place = "",
    interface: options.Interface = "",
    insecure: options.Insecure = False,
    log: options.Log = None,
    runs: options.Runs = None,
    no_record: options.NoRecord = False,
    page: Beside = False,
    profile: options.Profile = None,
    json: options.Json = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Train a task on processes of this machine, or of a cluster.

    covey run examples/digits.py --strategy 'easgd(period=4)' --workers 4 --until accuracy:0.95
    """
    request = ShownRequest(
        strategy=strategy, workers=workers, engine=engine, until=until, json=json, voice=voice(quiet, verbose),
        profile=profile, files={"model": save, "checkpoint": checkpoint},
    )  # fmt: skip
    guest = only_hosts(engine.partition("(")[0].strip())
    with explained(request.voice, guest=guest):
        kept_in = runs_of(runs, no_record)
        refuse_early(request, checkpoint=checkpoint, every=every, stall=stall, faults=faults)
        load_plugins(plugin, request.voice)
        with importing("quiet" if guest else request.voice):
            from covey.run import fit

        with page_beside(page, kept_in, teller(request.voice)):
            train(
                request,
                lambda watcher: fit(
                    task, strategy, workers, servers=servers, engine=engine, epochs=epochs, steps=steps, until=until,
                    seed=seed, scores=scores, threads=threads, save=save, checkpoint=checkpoint, every=every or "60s",
                    resume=resume, stall=stall, link_rate=link_rate, hosts=hosts, place=place, interface=interface,
                    insecure=insecure, on_failure=on_failure, max_failures=max_failures, faults=faults,
                    command=request.command, watcher=watcher, log=log or (), runs=kept_in,
                    profiled=profile is not None,
                ),
            )  # fmt: skip
