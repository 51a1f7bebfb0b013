"""covey federate serve: train a task with clients that dial in from their own machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from covey.cli import options
from covey.cli.errors import explained
from covey.cli.federate.simulate import FederatedModelFlags, FederatedRoundFlags, FederatedStrategy
from covey.cli.models.flags import RecordAndModelFlags
from covey.cli.options import flag
from covey.cli.training import ShownRequest, importing, refuse_early, train

PORT = "The port"


@options.grouped
def command(
    *,
    task: options.Task,
    strategy: FederatedStrategy = "fedavg",
    keys: Annotated[Path, flag("--keys", "FOLDER", "Where clients are enrolled: `covey federate keys add`.", PORT)],
    listen: Annotated[str, flag("--listen", "[HOST]:PORT", "Where clients dial in.", PORT)] = ":7070",
    identities: Annotated[
        Path | None, flag("--identities", "FILE", "By which the clients of secure sums know each other.", PORT)
    ] = None,
    rounds: FederatedRoundFlags,
    model: FederatedModelFlags,
    checkpoint: Annotated[
        Path | None,
        flag("--checkpoint", "DIR", "Keep the service here between rounds; go on from what is there.", options.KEEP),
    ] = None,
    log: options.Log = None,
    record: RecordAndModelFlags,
    output: options.OutputFlags,
) -> None:
    """Train a task with clients that dial in from their own machines.

    Clients prove a key that was enrolled for them; they send numbers, and no code travels.

    covey federate serve examples/digits.py --keys keys --listen :7070 --per-round 3
    """
    with explained(output.voice):
        from covey.engines.service.guest_keys import KeyFolder

        KeyFolder(keys).service()
        clients = sum(not one.revoked for one in KeyFolder(keys).guests().guests)
        request = ShownRequest(
            strategy=strategy, workers=max(1, clients), engine="served", until=model.until, output=output,
            files={"model": model.save, "checkpoint": checkpoint}, called="client",
        )  # fmt: skip
        refuse_early(request, register=record.register)
        with importing(output.voice):
            from covey.run.federated.federated_options import RoundOptions
            from covey.run.federated.serving import serve

        given = rounds.arguments()
        count = given.pop("rounds")

        def listens(endpoint: str) -> None:
            if output.voice != "quiet":
                typer.echo(f"listening at {endpoint.removeprefix('tcp://')}", err=True)

        train(
            request,
            lambda watcher: serve(
                task, strategy, listen=listen, keys=keys, rounds=count, waits=RoundOptions(**given),
                **model.arguments(), checkpoint=checkpoint, identities=identities, command=request.command,
                watcher=watcher, log=log or (), runs=record.folder, listens=listens, **record.models,
            ),
        )  # fmt: skip
