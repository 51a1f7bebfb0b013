"""What was asked of a service, checked: nothing listens yet."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from covey.errors import PlanError
from covey.federated.local_training import refuse_settings
from covey.federated.private.private_settings import ClientPrivacy
from covey.federated.strategies import FederatedStrategy
from covey.names import option
from covey.observe.facts import RunFacts
from covey.run.federated.client_identities import MAKE_ONE, check_all_listed, read_identities
from covey.run.federated.enrolled_clients import EnrolledClients
from covey.run.federated.federated_options import RoundOptions, read_strategy
from covey.run.federated.federated_request import FederatedRequest, facts, refuse_private, round_terms
from covey.run.options import Options
from covey.run.registering.register_options import check_store
from covey.run.saving import check_save
from covey.scoring import target_of
from covey.simulate.population import Population
from covey.task import load_task

SERVED = "served"
"""What the result calls this engine."""


def service_request(
    task: str, strategy: str, clients: EnrolledClients, rounds: int, waits: RoundOptions, until: str | None,
    epsilon: float | None, given: Options,
) -> FederatedRequest:  # fmt: skip
    """Check everything that can be checked before anything starts."""
    chosen, text, settings = read_strategy(strategy)
    if not clients.welcome():
        raise PlanError(
            f"no client is enrolled in {clients.folder.folder}: add one with `covey federate keys add "
            f"{clients.folder.folder} NAME --samples N`"
        )
    terms = round_terms(chosen, waits, len(clients.welcome()))
    privacy = _noise(chosen, clients, waits.per_round, rounds, epsilon)
    check_save(given.output.save)
    given.models.check()
    check_store(given.models, given.output.runs)
    loaded = load_task(task)
    refuse_settings(loaded)
    refuse_private(chosen, loaded, False)
    told = {
        "clients": len(clients.welcome()), "rounds": rounds, "per_round": waits.per_round, "chosen": terms.goal,
        "enough": terms.enough, "selection": waits.selection, "reporting": waits.reporting, "until": until,
        "epsilon": epsilon,
    }  # fmt: skip
    return FederatedRequest(
        task=loaded, name=task, strategy=chosen, text=text,
        settings={**settings, **{key: value for key, value in told.items() if value is not None}},
        population=Population(clients=len(clients.welcome())), terms=terms,
        samples=clients,  # type: ignore[arg-type]  # only asked how many samples each client may have
        rounds=rounds, target=target_of(loaded, until) if until else None, options=given, privacy=privacy,
    )  # fmt: skip


def _noise(
    chosen: FederatedStrategy, clients: EnrolledClients, per_round: int, rounds: int, epsilon: float | None
) -> ClientPrivacy | None:
    """The noise for those who are enrolled now; each takes part by chance, whoever joins later too."""
    if chosen.noise is None:
        if epsilon is not None:
            raise PlanError(f"{option('epsilon', epsilon)} is a budget for noise: add '+ dp' to the strategy")
        return None
    sizes = [len(clients[client.rank]) for client in clients.welcome().values()]
    return chosen.noise.planned(sizes, per_round / len(sizes), rounds, epsilon)


def known_identities(
    chosen: FederatedStrategy, clients: EnrolledClients, file: str | Path | None
) -> Mapping[int, bytes]:
    """The identities of the clients of secure sums; those of nobody where there are none."""
    if chosen.secure is None:
        if file is not None:
            raise PlanError("--identities are for secure sums: add '+ secagg' to the strategy, or omit them")
        return {}
    if file is None:
        raise PlanError(f"secagg needs --identities, the list by which clients know each other: {MAKE_ONE}")
    listed = read_identities(Path(file))
    check_all_listed(clients.known.guests, listed)
    return {number: public for number, (_, public) in listed.items()}


def service_facts(asked: FederatedRequest) -> RunFacts:
    """What is known of a run before it starts."""
    return msgspec.structs.replace(facts(asked), engine=SERVED)


def going_on(done: int, rounds: int) -> str:
    """How a service goes on after so many rounds."""
    if done < rounds:
        return f"going on with round {done + 1} of {rounds}"
    return f"{done} rounds are over, and with them this run of {rounds}: a larger --rounds goes on"
