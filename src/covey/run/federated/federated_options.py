"""What was asked of a federated run, read: its strategy, its partition, its clients and its rounds."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from covey.data.client_shares import PARTITIONS, ClientPartition
from covey.errors import PlanError
from covey.federated.rounds import RoundTerms
from covey.federated.strategies import STRATEGIES, FederatedStrategy, written
from covey.names import option
from covey.run.option_parts import readable
from covey.simulate import parse_duration, parse_rate
from covey.simulate.availability import Always, Availability, Daily, load_availability
from covey.simulate.population import Population
from covey.spec import SpecError, bind, parse, parse_call, unknown


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundOptions:
    """How rounds are made up, and how long they wait."""

    per_round: int = 10
    over: float = 1.3
    least: float = 0.8
    selection: str = "60s"
    reporting: str = "10m"
    overlap: bool = True

    def check_without_rounds(self) -> None:
        """Refuse what has no meaning for fedbuff, which has updates instead of rounds."""
        usual = RoundOptions()
        for name in ("least", "overlap"):
            if (given := getattr(self, name)) != getattr(usual, name):
                raise PlanError(f"{option(name, given)} belongs to rounds, and fedbuff has none: omit it")

    def terms(self, clients: int) -> RoundTerms:
        for name in ("selection", "reporting"):
            readable(name, getattr(self, name), parse_duration)
        return RoundTerms.of(
            clients, self.per_round, self.over, self.least, parse_duration(self.selection),
            parse_duration(self.reporting), self.overlap,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class PopulationOptions:
    """How clients differ, as typed."""

    clients: int = 100
    availability: str | os.PathLike[str] = "always"
    compute: str = "10ms"
    speed_spread: float = 0.5
    bandwidth: str = "20mbit"
    uplink: str = "5mbit"
    latency: str = "50ms"
    link_spread: float = 0.5

    def population(self, seed: int) -> Population:
        for name, read in (
            ("compute", parse_duration), ("latency", parse_duration), ("bandwidth", parse_rate), ("uplink", parse_rate),
        ):  # fmt: skip
            readable(name, getattr(self, name), read)
        return Population(
            clients=self.clients, seed=seed, availability=read_availability(self.availability),
            compute=parse_duration(self.compute), speed_spread=self.speed_spread, down=parse_rate(self.bandwidth),
            up=parse_rate(self.uplink), latency=parse_duration(self.latency), link_spread=self.link_spread,
        )  # fmt: skip


def read_strategy(text: str) -> tuple[FederatedStrategy, str, dict[str, Any]]:
    """The strategy that a SPEC names, its full text, and its settings."""
    spec = parse(text)
    call, extra = spec.strategy, next((one for one in (*spec.codecs, spec.topology, spec.mesh) if one), None)
    if call.name not in STRATEGIES:
        raise unknown(text, call.at, "federated strategy", call.name, STRATEGIES)
    if extra is not None:
        why = f"{call.name} is federated, and takes neither codecs, nor a topology, nor a mesh: omit it"
        raise SpecError(text, extra.at, why)
    settings = bind(call, STRATEGIES[call.name], "strategy", text)
    try:
        strategy = settings.strategy()
    except PlanError as error:
        raise SpecError(text, call.at, str(error)) from None
    return strategy, written(call.name, settings), {name: getattr(settings, name) for name in settings.__match_args__}


def read_partition(text: str) -> ClientPartition:
    """How the data is divided among clients."""
    call = parse_call(text)
    if call.name not in PARTITIONS:
        raise unknown(text, call.at, "partition", call.name, PARTITIONS)
    try:
        made: ClientPartition = bind(call, PARTITIONS[call.name], "partition", text)
    except SpecError:
        raise
    except PlanError as error:
        raise PlanError(f"{option('partition', text)}: {error}") from None
    return made


def read_availability(given: str | os.PathLike[str]) -> Availability:
    """When clients may take part: always, daily(...), or a file."""
    text = os.fspath(given)
    if os.path.exists(text):
        return load_availability(text)
    call = parse_call(text)
    kinds: dict[str, type[Any]] = {"always": Always, "daily": Daily}
    if call.name not in kinds:
        raise PlanError(
            f"{option('availability', text)}: there is no such file; use always, 'daily(share=0.3, swing=4)', or a "
            "file of lines CLIENT,FROM,UNTIL"
        )
    made: Availability = bind(call, kinds[call.name], "availability", text)
    return made
