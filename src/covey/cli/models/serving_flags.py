"""The flags of covey serve, and what their words mean."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from covey.cli import json_file, options
from covey.cli.options import FlagGroup, flag
from covey.errors import PlanError

PROMISE, EDGE, PLAN, CHOICE = "What is promised", "Where to listen", "A plan", "Several versions"


@dataclass(frozen=True, kw_only=True)
class PromiseFlags(FlagGroup):
    """Times and limits."""

    slo: Annotated[
        str, flag("--slo", "pNN:TIME", "The share of requests that should be answered in this time.", PROMISE)
    ] = "p99:50ms"
    deadline: Annotated[str, flag("--deadline", "TIME", "Answer with 504 after this time.", PROMISE)] = "10s"
    queue: Annotated[int, flag("--queue", "N", "Requests that may wait; others get 429.", PROMISE, least=1)] = 1024
    cache: Annotated[int, flag("--cache", "N", "Answers to keep for equal inputs.", PROMISE, least=0)] = 0
    largest: Annotated[int, flag("--largest-batch", "N", "The most requests of a batch.", PROMISE, least=1)] = 256
    body: Annotated[str, flag("--body", "SIZE", "The largest request.", PROMISE)] = "1MB"


@dataclass(frozen=True, kw_only=True)
class EdgeFlags(FlagGroup):
    """The address."""

    host: Annotated[
        str, flag("--host", "ADDRESS", "Where to listen; others than 127.0.0.1 need TLS and a token.", EDGE)
    ] = "127.0.0.1"
    port: Annotated[int, flag("--port", "PORT", "Which port; 0 takes a free one.", EDGE, least=0)] = 8480
    tls_certificate: Annotated[Path | None, flag("--tls-certificate", "FILE", "The certificate, as PEM.", EDGE)] = None
    tls_key: Annotated[Path | None, flag("--tls-key", "FILE", "Its key, as PEM.", EDGE)] = None

    def check(self) -> None:
        """Refuse what contradicts itself."""
        if self.port > 65535:
            raise PlanError(f"--port {self.port}: the highest port is 65535")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise PlanError("TLS needs both: --tls-certificate FILE and --tls-key FILE")
        for name, file in (("certificate", self.tls_certificate), ("key", self.tls_key)):
            if file is not None and not file.is_file():
                raise PlanError(f"--tls-{name} {file}: there is no such file")


@dataclass(frozen=True, kw_only=True)
class PlanFlags(FlagGroup):
    """What to find out instead of serving."""

    plan: Annotated[
        Path | None, flag("--plan", "FILE", "Serve nothing: find the cheapest set-up for these arrivals.", PLAN)
    ] = None
    prices: Annotated[Path | None, flag("--prices", "FILE", "Kinds of machines, as TOML, for --plan.", PLAN)] = None
    json: Annotated[Path | None, flag("--json", "FILE", "Write the answer of --plan as JSON.", PLAN)] = None

    def check(self) -> None:
        """Refuse what contradicts itself."""
        json_file.check(self.json)
        if (self.plan is None) != (self.prices is None) or (self.json and self.plan is None):
            raise PlanError(
                "a plan needs both: --plan FILE, with times of requests, and --prices FILE; --json is for it"
            )


@dataclass(frozen=True, kw_only=True)
class VersionFlags(FlagGroup):
    """Other versions of the model."""

    canary: Annotated[
        str | None, flag("--canary", "NAME=SHARE", "Try a new version, such as digits:4=5%, and promote it.", CHOICE)
    ] = None
    enough: Annotated[
        int, flag("--canary-requests", "N", "Answers of it after which it may be promoted.", CHOICE, least=1)
    ] = 1000
    also: Annotated[
        str | None, flag("--also", "NAME,…", "Serve these versions, too; feedback says which is better.", CHOICE)
    ] = None
    select: Annotated[
        str | None, flag("--select", "exp3|exp4", "One version answers, or all vote. (default: exp3)", CHOICE)
    ] = None

    @property
    def named(self) -> list[str]:
        """The other versions, as they were given."""
        canary = [self.canary.rpartition("=")[0] or self.canary] if self.canary else []
        return [name.strip() for name in (self.also or "").split(",") if name.strip()] + canary

    def check(self) -> None:
        """Refuse what contradicts itself."""
        if self.canary and self.also:
            raise PlanError("--canary tries one new version, and --also has several judged by feedback: give one")
        if self.select and not self.also:
            raise PlanError("--select is for several versions: name the others, with --also NAME")
        if self.select not in (None, "exp3", "exp4"):
            raise PlanError(f"--select {self.select}: write exp3 (one version answers) or exp4 (all vote)")


@dataclass(frozen=True, kw_only=True)
class ReplicaFlags(FlagGroup):
    """The processes that compute."""

    replicas: Annotated[
        str, flag("--replicas", "N|N:N", "Processes that compute, or the fewest and the most of them.", options.RUN)
    ] = "1"
    stages: Annotated[
        int, flag("--stages", "N", "Cut the model: each replica is a row of N processes.", options.RUN, least=1)
    ] = 1
    threads: options.Threads = None
    engine: Annotated[str, flag("--engine", "NAME", "Where replicas run: local, ray or lab.", options.RUN)] = "local"


def replica_range(text: str) -> tuple[int, int]:
    """The fewest and the most of `2` or `1:8`."""
    found = re.fullmatch(r"([1-9][0-9]{0,3})(?::([1-9][0-9]{0,3}))?", text.strip())
    least, most = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
    if least > most:
        raise PlanError(f"--replicas {text}: write a number, or the fewest and the most, such as 1:8")
    return least, most


def objective(text: str) -> tuple[float, float]:
    """The share and the seconds of `p99:50ms`."""
    from covey.simulate.units import parse_duration

    found = re.fullmatch(r"p([0-9]{1,2}(?:\.[0-9]{1,3})?):(.+)", text.strip())
    if not found or float(found[1]) <= 0:
        raise PlanError(f"--slo {text}: write a percentile and a time, such as p99:50ms or p99.9:1s")
    return float(found[1]) / 100, parse_duration(found[2])
