"""What was asked of a federated run, checked: nothing has started yet."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from covey.data.client_shares import divided
from covey.data.shards import Shards
from covey.engines import machine
from covey.errors import PlanError, UnknownMetric
from covey.federated.local_training import refuse_settings
from covey.federated.private.private_settings import ClientPrivacy
from covey.federated.rounds import RoundTerms
from covey.federated.strategies import FederatedStrategy
from covey.model import build
from covey.names import option
from covey.observe.facts import RunFacts
from covey.run.federated.federated_options import PopulationOptions, RoundOptions, read_partition, read_strategy
from covey.run.options import Options
from covey.run.saving import check_save
from covey.scoring import target_of
from covey.simulate.population import Population
from covey.target import Target, parse_target
from covey.task import Task, load_task
from covey.task.adjusted import at_rate
from covey.task.data import check_data


@dataclass(frozen=True, kw_only=True, slots=True)
class FederatedRequest:
    """A federated run that was found possible."""

    task: Task
    name: str
    strategy: FederatedStrategy
    text: str  # the strategy with all its settings
    settings: Mapping[str, Any]
    population: Population
    terms: RoundTerms
    samples: list[Tensor]  # of every client
    rounds: int
    target: Target | None
    options: Options
    privacy: ClientPrivacy | None = None  # noise, and what may be spent


def federated_request(
    task: Task | str, strategy: str, partition: str, crowd: PopulationOptions, waits: RoundOptions, rounds: int,
    until: str | None, epsilon: float | None, given: Options,
) -> FederatedRequest:  # fmt: skip
    """Check everything that can be checked before anything starts."""
    chosen, text, settings = read_strategy(strategy)
    division = read_partition(partition)
    seed = given.training.seed
    population, terms = crowd.population(seed), round_terms(chosen, waits, crowd.clients)
    if epsilon is not None and not chosen.noise:
        raise PlanError(f"{option('epsilon', epsilon)} is a budget for noise: add '+ dp' to the strategy")
    if until is not None:
        parse_target(until)
    check_save(given.output.save)
    name = task if isinstance(task, str) else ""
    task = load_task(task) if isinstance(task, str) else task
    refuse_settings(task)
    target = target_of(task, until) if until else None
    if target and task.evaluate is None and target.metric != "loss":
        raise UnknownMetric(f"{option('until', target)}: the task has no evaluate=…, so only the loss can be a target")
    if given.virtual.timing_only and (until or given.output.save):
        raise PlanError(f"{option('timing_only', True)} trains nothing: omit {option('until')} and {option('save')}")
    refuse_private(chosen, task, given.virtual.timing_only)
    if task.dataset is None:
        raise PlanError(f"the task has no data: give data=…, which {option('partition')} divides among the clients")
    data = build.data_of(task)
    if given.virtual.timing_only and crowd.clients > check_data(data):  # as if each had one batch
        samples = [torch.arange(task.batch_size)] * crowd.clients
    else:
        samples = divided(division, data, crowd.clients, seed)
        _check_batches(task, chosen, samples, seed)
    asked = {
        "clients": crowd.clients, "rounds": rounds, "partition": partition, "per_round": waits.per_round,
        "chosen": terms.goal, "enough": terms.enough, "epsilon": epsilon,
        "selection": waits.selection, "reporting": waits.reporting,
        "availability": os.fspath(crowd.availability), "until": until,
    }  # fmt: skip
    sizes = [len(numbers) for numbers in samples] if chosen.noise else []
    rate = waits.per_round / crowd.clients
    privacy = chosen.noise.planned(sizes, rate, rounds, epsilon) if chosen.noise else None
    return FederatedRequest(
        task=at_rate(task, given.training.rate), name=name, strategy=chosen, text=text,
        settings={**settings, **{key: value for key, value in asked.items() if value is not None}},
        population=population, terms=terms, samples=samples, rounds=rounds, target=target, options=given,
        privacy=privacy,
    )  # fmt: skip


def _check_batches(task: Task, chosen: FederatedStrategy, samples: Sequence[Tensor], seed: int) -> None:
    """Refuse a batch-norm that would be given one sample in the middle of the run."""
    usual = task.batch_size
    lone = next((one for one, has in enumerate(samples) if chosen.local.computes_one(len(has), usual)), None)
    if lone is None:
        return
    deal = Shards(check_data(build.data_of(task)), 1, usual, seed)
    if build.refuses_one(task, deal, samples[lone][:1]):
        raise PlanError(
            f"batch-norm needs 2 samples, and client {lone}, which has {len(samples[lone])}, would compute a batch of "
            "1: choose another batch_size or partition, or nn.GroupNorm"
        )


def round_terms(chosen: FederatedStrategy, waits: RoundOptions, clients: int) -> RoundTerms:
    """What a round needs, and how long it waits; refused where the strategy cannot do with it."""
    terms = waits.terms(clients)
    chosen.aggregation.check(terms)
    if chosen.buffer:
        waits.check_without_rounds()
    if chosen.secure:
        chosen.secure.check(waits.per_round if chosen.noise else terms.goal)
    if not chosen.noise:
        return terms
    waits.check_by_chance()
    return replace(terms, target=clients, goal=clients, enough=1)  # whoever is drawn counts


def refuse_private(chosen: FederatedStrategy, task: Task, timing_only: bool) -> None:
    """Refuse what secure sums and noise cannot do with."""
    if timing_only and (chosen.secure or chosen.noise):
        raise PlanError(f"{option('timing_only', True)} has no numbers to hide: omit secagg and dp")
    if timing_only and chosen.form.words:
        raise PlanError(f"{option('timing_only', True)} has no numbers to code: omit {chosen.form.words[0]}")
    if chosen.noise and build.has_float_buffers(task):
        raise PlanError(
            "dp: the model has float buffers, such as the means of batch normalization, which noise does not cover: "
            "use GroupNorm or LayerNorm"
        )


def facts(asked: FederatedRequest) -> RunFacts:
    """What is known of a run before it starts."""
    taxonomy, given = asked.strategy.taxonomy, asked.options
    return RunFacts(
        task=asked.name or "a task of this process", strategy=asked.text,
        taxonomy={key: getattr(taxonomy, key) for key in taxonomy.__slots__}, engine="simulated",
        workers=asked.population.clients, servers=0, threads=1, seed=given.training.seed,
        command=given.output.command, settings=dict(asked.settings), machine=machine.describe(),
        versions=machine.versions(),
    )  # fmt: skip
