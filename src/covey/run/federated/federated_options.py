"""What was asked of a federated run, read: its strategy, its partition, its clients and its rounds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from covey.data.client_shares import PARTITIONS, ClientPartition
from covey.errors import PlanError
from covey.exchange.codec import Codec
from covey.exchange.codecs.by_name import CODECS, WRAPPERS
from covey.federated.private.private_settings import BESIDE
from covey.federated.reports.esgd import ESgd
from covey.federated.rounds import RoundTerms
from covey.federated.strategies import STRATEGIES, FederatedStrategy, written
from covey.names import option
from covey.run.option_parts import readable
from covey.simulate import parse_duration, parse_rate
from covey.simulate.availability import Always, Availability, Daily, load_availability
from covey.simulate.population import Population
from covey.spec import Call, SpecError, bind, parse, parse_call, unknown

ADDITIONS: dict[str, type[Any]] = {**BESIDE, "esgd": ESgd}
"""What a SPEC may add to a federated strategy, besides codecs."""


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
        for name, given in self.unusual("least", "overlap"):
            raise PlanError(f"{option(name, given)} belongs to rounds, and fedbuff has none: omit it")

    def check_by_chance(self) -> None:
        """Refuse what has no meaning where clients are drawn by chance."""
        for name, given in self.unusual("least", "over"):
            raise PlanError(f"{option(name, given)}: with dp each client is drawn by chance, and all count: omit it")

    def unusual(self, *names: str) -> list[tuple[str, object]]:
        """Those that were given, and what they are."""
        usual = RoundOptions()
        return [(name, getattr(self, name)) for name in names if getattr(self, name) != getattr(usual, name)]

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
    call, extra = spec.strategy, next((one for one in (spec.topology, spec.mesh) if one), None)
    if call.name not in STRATEGIES:
        raise unknown(text, call.at, "federated strategy", call.name, STRATEGIES)
    if extra is not None:
        raise SpecError(text, extra.at, f"{call.name} is federated, and takes neither a topology nor a mesh: omit it")
    settings = bind(call, STRATEGIES[call.name], "strategy", text)
    beside = read_beside(text, call.name, spec.codecs)
    try:
        strategy = settings.strategy()
        codec = next((codec_of(one) for name, one in beside.items() if name in CODECS), None)
        form = replace(strategy.form, esgd=beside.get("esgd"), codec=codec)
        strategy = replace(strategy, secure=beside.get("secagg"), noise=beside.get("dp"), form=form)
        strategy.check_beside()
    except PlanError as error:
        raise SpecError(text, call.at, str(error)) from None
    all_of = {call.name: settings, **beside}
    values = {name: getattr(one, name) for one in all_of.values() for name in one.__match_args__}
    return strategy, " + ".join(written(name, one) for name, one in all_of.items()), values


def read_beside(text: str, strategy: str, calls: Sequence[Call]) -> dict[str, Any]:
    """What a SPEC adds to a federated strategy, by name."""
    found: dict[str, Any] = {}
    known: dict[str, type[Any]] = {**ADDITIONS, **CODECS}
    for call in calls:
        if call.name in WRAPPERS:
            raise SpecError(text, call.at, f"{call.name} goes around codecs of workers, not of clients: omit it")
        if call.name not in known:
            raise unknown(text, call.at, f"addition to {strategy}", call.name, known)
        if call.name in found:
            raise SpecError(text, call.at, f"{call.name} is there twice; keep one")
        found[call.name] = bind(call, known[call.name], "addition", text)
    if len(codecs := [call for call in calls if call.name in CODECS]) > 1:
        raise SpecError(text, codecs[1].at, f"{codecs[0].name} and {codecs[1].name} do not combine; keep one")
    return found


def codec_of(settings: Any) -> Codec:
    """The codec of reports; refused where it would have to remember what it drops."""
    made: Codec = settings.codec()
    traits = made.traits
    if traits.feedback != "none" or traits.momentum != "none" or traits.measured or traits.exact_start:
        good = ", ".join(name for name in ("sketch", "qsgd", "terngrad", "natural", "int8", "fp16") if name in CODECS)
        raise PlanError(
            f"{made.name} remembers from step to step what it has dropped, and clients keep nothing between rounds: "
            f"use one that drops nothing on average, such as {good}"
        )
    return made


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
    kinds: dict[str, type[Any]] = {"always": Always, "daily": Daily}
    try:
        call = parse_call(text)
    except SpecError:
        if text.partition("(")[0].strip() in kinds:
            raise
        call = None
    if call is None or call.name not in kinds:
        raise PlanError(
            f"{option('availability', text)}: there is no such file; use always, 'daily(share=0.3, swing=4)', or a "
            "file of lines CLIENT,FROM,UNTIL"
        )
    made: Availability = bind(call, kinds[call.name], "availability", text)
    return made
