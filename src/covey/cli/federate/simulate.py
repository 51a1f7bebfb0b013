"""covey federate simulate: train a task with a population of clients, in virtual time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from covey.cli import options
from covey.cli.errors import explained
from covey.cli.options import flag
from covey.cli.training import ShownRequest, importing, refuse_early, train
from covey.cli.typed_flags import decimal

CLIENTS, ROUNDS = "The clients", "The rounds"

FederatedStrategy = Annotated[
    str, flag("--strategy", "SPEC", "fedavg, fedsgd, fedprox, fedopt or fedbuff, with settings.", options.RUN)
]


@dataclass(frozen=True, kw_only=True)
class FederatedRoundFlags(options.FlagGroup):
    """How rounds are made up, and how many there are."""

    per_round: Annotated[int, flag("--per-round", "N", "The reports that make up a round.", ROUNDS, least=1)] = 10
    rounds: Annotated[int, flag("--rounds", "N", "End the run after so many rounds.", options.BUDGET, least=1)] = 20
    over: Annotated[
        float, flag("--over", "FACTOR", "How many times as many clients are chosen.", ROUNDS, parser=decimal)
    ] = 1.3
    least: Annotated[
        float, flag("--least", "SHARE", "The share of --per-round that is enough.", ROUNDS, parser=decimal)
    ] = 0.8
    selection: Annotated[str, flag("--selection", "TIME", "How long a round waits for clients.", ROUNDS)] = "60s"
    reporting: Annotated[str, flag("--reporting", "TIME", "How long a round waits for reports.", ROUNDS)] = "10m"
    overlap: Annotated[
        bool, flag("--overlap/--no-overlap", "", "Choose the next clients while a round waits for reports.", ROUNDS)
    ] = True


@dataclass(frozen=True, kw_only=True)
class FederatedModelFlags(options.FlagGroup):
    """When a run ends, how its model is scored, and where it is kept."""

    seed: options.Seed = 0
    until: options.Until = None
    score_every: Annotated[
        int, flag("--score-every", "ROUNDS", "Score the model after so many committed rounds.", options.BUDGET, least=1)
    ] = 1
    epsilon: Annotated[
        float | None,
        flag("--epsilon", "EPSILON", "What may be spent with '+ dp': finds the noise.", options.BUDGET, parser=decimal),
    ] = None
    save: Annotated[
        Path | None, flag("--save", "FILE", "Write the model to this safetensors file.", options.KEEP)
    ] = None


@dataclass(frozen=True, kw_only=True)
class PopulationFlags(options.FlagGroup):
    """Who the clients are."""

    clients: Annotated[int, flag("--clients", "N", "How many clients there are.", options.RUN, least=1)] = 100
    partition: Annotated[
        str, flag("--partition", "SPEC", "Which samples each has: even, 'dirichlet(alpha=0.3)', …", CLIENTS)
    ] = "even"
    availability: Annotated[
        str, flag("--availability", "WHEN", "always, 'daily(share=0.3, swing=4)', or a file.", CLIENTS)
    ] = "always"
    compute: Annotated[str, flag("--compute", "TIME", "Time of one batch, for the median client.", CLIENTS)] = "10ms"
    speed_spread: Annotated[
        float, flag("--speed-spread", "SIGMA", "Spread of the clients' speeds.", CLIENTS, parser=decimal)
    ] = 0.5
    bandwidth: Annotated[str, flag("--bandwidth", "RATE", "Download rate of the median client.", CLIENTS)] = "20mbit"
    uplink: Annotated[str, flag("--uplink", "RATE", "Upload rate of the median client.", CLIENTS)] = "5mbit"
    latency: Annotated[str, flag("--latency", "TIME", "One-way latency of a client's link.", CLIENTS)] = "50ms"
    link_spread: Annotated[
        float, flag("--link-spread", "SIGMA", "Spread of the clients' link rates.", CLIENTS, parser=decimal)
    ] = 0.5


@dataclass(frozen=True, kw_only=True)
class KeptRoundFlags(options.FlagGroup):
    """What to keep of a run between its rounds."""

    checkpoint: Annotated[
        Path | None, flag("--checkpoint", "DIR", "Write checkpoints to this folder, between rounds.", options.KEEP)
    ] = None
    every: Annotated[
        str | None, flag("--every", "TIME", "The virtual time between two checkpoints. (default: 60s)", options.KEEP)
    ] = None
    resume: Annotated[
        Path | None, flag("--resume", "DIR", "Continue from the checkpoint in this folder.", options.KEEP)
    ] = None

    def arguments(self) -> dict[str, Any]:
        return {**super().arguments(), "every": self.every or "60s"}


@options.grouped
def command(
    *,
    task: options.Task,
    strategy: FederatedStrategy = "fedavg",
    population: PopulationFlags,
    rounds: FederatedRoundFlags,
    model: FederatedModelFlags,
    timing_only: Annotated[bool, flag("--timing-only", "", "Simulate time and traffic only.", CLIENTS)] = False,
    keeping: KeptRoundFlags,
    log: options.Log = None,
    record: options.RecordFlags,
    output: options.OutputFlags,
) -> None:
    """Train a task with a population of clients, in virtual time.

    The real model and the real protocol run; speeds, links and availability of the clients are drawn from the seed.

    covey federate simulate examples/digits.py --clients 200 --per-round 20 --partition 'dirichlet(alpha=0.3)'
    """
    with explained(output.voice):
        request = ShownRequest(
            strategy=strategy, workers=population.clients, engine="simulated", until=model.until, output=output,
            files={"model": model.save, "checkpoint": keeping.checkpoint}, called="client",
        )  # fmt: skip
        refuse_early(request, keeping)
        with importing(output.voice):
            from covey.run import federate

        train(
            request,
            lambda watcher: federate(
                task, strategy, **population.arguments(), **rounds.arguments(), **model.arguments(),
                timing_only=timing_only, **keeping.arguments(), log=log or (), runs=record.folder,
                command=request.command, watcher=watcher,
            ),
        )  # fmt: skip
