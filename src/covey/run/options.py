"""Which engine reads which options of a run? An option is read or refused, never ignored."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from numbers import Integral
from typing import Any

from covey.engines.entries import ENGINES, Engine
from covey.engines.transport.cipher import CIPHERS, INSTALL, NEEDS
from covey.errors import PlanError
from covey.names import meant, option
from covey.run.leading.lead_options import LOCAL, LeadOptions
from covey.run.option_parts import (
    HOSTS,
    REAL,
    VIRTUAL,
    BudgetOptions,
    CheckpointOptions,
    CopyOptions,
    FaultOptions,
    Kind,
    OptionPart,
    OutputOptions,
    ProcessOptions,
    TrainingOptions,
    VirtualOptions,
    given_names,
    option_names,
)  # fmt: skip
from covey.run.registering.register_options import RegisterOptions, check_store
from covey.spec.worker_range import WorkerRange
from covey.task.arguments import check_kind, kinds

FOR: Mapping[frozenset[Kind], str] = {
    REAL: "real processes",
    HOSTS: f"engines with several hosts ({', '.join(ENGINES)})",
    VIRTUAL: "virtual time (the engine simulated, or covey simulate)",
    LOCAL: "processes of this machine (the engine local)",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkOptions(OptionPart):
    """Where roles live, and how hosts reach each other."""

    read_by = HOSTS

    hosts: str | os.PathLike[str] | None = None  # a file of hosts, for engines that take one
    place: str = ""
    interface: str = ""
    insecure: bool = False
    cipher: str = ""  # of tensors; none: that of CURVE

    def __post_init__(self) -> None:
        if self.cipher and self.cipher not in CIPHERS:
            raise PlanError(f"{option('cipher', self.cipher)}: there is {', '.join(CIPHERS)}; without it, CURVE's")
        if self.cipher and self.insecure:
            raise PlanError(
                f"{option('cipher', self.cipher)} encrypts, and {option('insecure', True)} does not: omit one of them"
            )

    def check(self) -> None:
        if self.cipher and find_spec(NEEDS) is None:
            raise PlanError(f"{option('cipher', self.cipher)} needs {NEEDS}: {INSTALL}")


@dataclass(frozen=True, kw_only=True, slots=True)
class DataOptions(OptionPart):
    """Who makes batches of the data."""

    preparers: int | None = None  # in place of the task's own number

    def __post_init__(self) -> None:
        given = self.preparers
        if given is not None and (isinstance(given, bool) or not isinstance(given, Integral) or given < 0):
            raise PlanError(f"{option('preparers', given)}: a whole number is needed, from 0 up")


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What else a person may ask of a run."""

    engine: str = "local"
    training: TrainingOptions = field(default_factory=TrainingOptions)
    copies: CopyOptions = field(default_factory=CopyOptions)
    budget: BudgetOptions = field(default_factory=BudgetOptions)
    processes: ProcessOptions = field(default_factory=ProcessOptions)
    network: NetworkOptions = field(default_factory=NetworkOptions)
    virtual: VirtualOptions = field(default_factory=VirtualOptions)
    checkpoints: CheckpointOptions = field(default_factory=CheckpointOptions)
    lead: LeadOptions = field(default_factory=LeadOptions)
    fault_plan: FaultOptions = field(default_factory=FaultOptions)
    data: DataOptions = field(default_factory=DataOptions)
    output: OutputOptions = field(default_factory=OutputOptions)
    models: RegisterOptions = field(default_factory=RegisterOptions)

    def __post_init__(self) -> None:
        if not self.engine.strip():
            raise PlanError(f"{option('engine', self.engine)}: name an engine, such as local or simulated")
        wanted = self.budget.until or self.budget.best or self.output.save or self.models.register
        if self.virtual.timing_only and wanted:
            raise PlanError(
                f"{option('timing_only', True)} trains nothing: use {option('steps')} or {option('epochs')}, without "
                f"{option('until')}, {option('best')}, {option('save')} and {option('register')}"
            )
        if self.virtual.timing_only and (self.checkpoints.checkpoint or self.checkpoints.resume):
            raise PlanError(
                f"{option('timing_only', True)} trains nothing that could be kept: omit {option('checkpoint')} and "
                f"{option('resume')}"
            )

    @property
    def parts(self) -> tuple[OptionPart, ...]:
        return tuple(getattr(self, part) for part in PARTS)

    def flat(self) -> dict[str, Any]:
        """Every option by its name."""
        found = {name: getattr(part, name) for part in self.parts for name in option_names(part)}
        return {"engine": self.engine, **found}

    def given(self) -> list[str]:
        """The names of options that differ from their defaults."""
        return ["engine"] * (self.engine != "local") + [name for part in self.parts for name in given_names(part)]


GO_ON = "local, simulated, lab and ray"  # where lost workers are replaced
PARTS: Mapping[str, type[OptionPart]] = {
    "training": TrainingOptions, "copies": CopyOptions,
    "budget": BudgetOptions, "processes": ProcessOptions, "network": NetworkOptions,
    "virtual": VirtualOptions, "checkpoints": CheckpointOptions, "lead": LeadOptions, "fault_plan": FaultOptions,
    "data": DataOptions,
    "output": OutputOptions, "models": RegisterOptions,
}  # fmt: skip


def options(given: Mapping[str, Any]) -> Options:
    """Options by name, each in its part; one that does not exist is refused."""
    known = {name: part for part, kind in PARTS.items() for name in option_names(kind)}
    parts: dict[str, dict[str, Any]] = {part: {} for part in PARTS}
    for name, value in given.items():
        if name not in known and name != "engine":
            raise PlanError(f"there is no option {name!r}{meant(name, ['engine', *known])}")
        if name in known:
            check_kind(option(name), value, kinds(PARTS[known[name]])[name])
            parts[known[name]][name] = value
    engine = {"engine": given["engine"]} if "engine" in given else {}
    return Options(**engine, **{part: PARTS[part](**values) for part, values in parts.items()})  # type: ignore[arg-type]


def check(
    given: Options, name: str, engine: Engine | type[Engine] | None, workers: WorkerRange | None = None
) -> None:  # fmt: skip
    """Refuse what the engine of this name does not read; `engine` is that of a cluster."""
    kind: Kind = "cluster" if engine else "simulated" if name == "simulated" else "local"
    refused = engine.refuses if engine else {}
    if engine and given.checkpoints.on_failure == "continue":
        _check_going_on(name, engine, workers, given.copies)
    for planned in given_names(given.fault_plan) if engine and not engine.goes_on else ():
        raise PlanError(f"{option(planned)} is for the engines {GO_ON}, not for {name}")
    for part in given.parts:
        for given_name in given_names(part):
            if kind not in part.read_by:
                raise PlanError(f"{option(given_name)} is for {FOR[part.read_by]}, not for {name}")
            if given_name in refused:
                raise PlanError(f"{option(given_name)} is not for {name}, {refused[given_name]}")
    for part in given.parts:
        part.check()
    check_store(given.models, given.output.runs)
    for name in given_names(given.lead) if given.checkpoints.checkpoint is None else ():
        raise PlanError(
            f"{option(name, getattr(given.lead, name))} needs {option('checkpoint', 'DIR')}: a second launcher goes on "
            "from the newest checkpoint"
        )


def _check_going_on(
    name: str, engine: Engine | type[Engine], workers: WorkerRange | None, copies: CopyOptions
) -> None:
    """Refuse engines whose lost hosts cannot come back while a run goes on, with what protects a run there."""
    if engine.goes_on:
        return
    restart = f"{option('on_failure', 'restart')} with {option('checkpoint', 'DIR')}"
    if "on_failure" in engine.refuses:
        restart += " on the engine ray or lab"
    if workers and workers.least:
        raise PlanError(
            f"{option('workers', workers)}: a range of workers is for the engines {GO_ON}, not for {name}: "
            f"use {option('workers', workers.most)}, and against lost machines {restart}"
        )
    asked = option("on_failure", "continue") if copies.replicas == 1 else option("replicas", copies.replicas)
    raise PlanError(f"{asked} is for the engines {GO_ON}, not for {name}: use {restart}")
