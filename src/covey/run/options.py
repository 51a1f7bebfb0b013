"""What else may a person ask of a run, and which engine reads it? An option is read or refused, never ignored."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from covey.engines.entries import ENGINES, Engine
from covey.errors import PlanError
from covey.names import meant
from covey.observe.instruments import Instrument
from covey.observe.progress import Watcher
from covey.simulate import Cluster

Kind = Literal["local", "cluster", "simulated"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What else a person may ask of a run."""

    servers: int | None = None
    engine: str = "local"
    epochs: int | None = None
    steps: int | None = None
    until: str | None = None
    scores: int = 1  # of the model, in a pass over the data
    seed: int = 0
    rate: float = 1.0  # a factor on the task's learning rate
    threads: int | None = None
    save: str | os.PathLike[str] | None = None
    checkpoint: str | os.PathLike[str] | None = None
    every: str = "60s"
    resume: str | os.PathLike[str] | None = None
    stall: str = "30s"
    hosts: str | os.PathLike[str] | None = None  # a file of hosts, for engines that take one
    place: str = ""
    interface: str = ""
    insecure: bool = False
    link_rate: str | None = None  # of each link, such as 50mbit
    cluster: Cluster | None = None
    timing_only: bool = False
    traced: bool = False  # keep a recording of what each role did when
    command: str = ""
    watcher: Watcher | None = None
    instruments: Sequence[Instrument] = ()

    def __post_init__(self) -> None:
        if self.epochs is not None and self.steps is not None:
            raise PlanError("give --epochs or --steps, not both: each says when a worker ends")
        for name in ("epochs", "steps", "scores", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise PlanError(f"--{name} {value}: at least 1 is needed")
        if not 0 < self.rate < math.inf:
            raise PlanError(f"rate {self.rate}: the factor on the task's learning rate must be more than 0")
        if self.timing_only and (self.until or self.save):
            raise PlanError("--timing-only trains nothing: use --steps or --epochs, without --until and --save")

    def given(self) -> list[str]:
        """The options that are not as they are by default anything."""
        values = {field.name: (getattr(self, field.name), field.default) for field in fields(self)}
        return [name for name, (value, usual) in values.items() if (value or None) != (usual or None)]


ALL: frozenset[Kind] = frozenset({"local", "cluster", "simulated"})
REAL: frozenset[Kind] = frozenset({"local", "cluster"})
HOSTS: frozenset[Kind] = frozenset({"cluster"})
VIRTUAL: frozenset[Kind] = frozenset({"simulated"})

READ: Mapping[str, frozenset[Kind]] = {
    "servers": ALL, "engine": ALL, "epochs": ALL, "steps": ALL, "until": ALL, "scores": ALL, "seed": ALL, "rate": ALL,
    "save": ALL, "link_rate": ALL, "traced": ALL, "command": ALL, "watcher": ALL,
    "threads": REAL, "checkpoint": REAL, "every": REAL, "resume": REAL, "stall": REAL,
    "hosts": HOSTS, "place": HOSTS, "interface": HOSTS, "insecure": HOSTS,
    "cluster": VIRTUAL, "timing_only": VIRTUAL, "instruments": VIRTUAL,
}  # fmt: skip
"""Which kinds of engines read an option of a task's run; the others refuse it."""

FOR: Mapping[frozenset[Kind], str] = {
    REAL: "real processes",
    HOSTS: f"engines with several hosts ({', '.join(ENGINES)})",
    VIRTUAL: "virtual time (--engine simulated, or covey simulate)",
}


def check(given: Options, name: str, engine: Engine | type[Engine] | None) -> None:
    """Refuse what the engine of this name does not read; `engine` is that of a cluster."""
    kind: Kind = "cluster" if engine else "simulated" if name == "simulated" else "local"
    refused = engine.refuses if engine else {}
    for option in given.given():
        if kind not in READ[option]:
            raise PlanError(f"--{option.replace('_', '-')} is for {FOR[READ[option]]}, not for {name}")
        if option in refused:
            raise PlanError(f"--{option.replace('_', '-')} is not for {name}, {refused[option]}")
    if "every" in given.given() and given.checkpoint is None:
        raise PlanError(f"--every {given.every} says how often to write a checkpoint; say where with --checkpoint DIR")


def options(given: dict[str, Any]) -> Options:
    """The options by name, where they come as a table; one that does not exist is told what does."""
    known = [field.name for field in fields(Options)]
    for name in given:
        if name not in known:
            raise PlanError(f"there is no option {name!r}{meant(name, known)}")
    return Options(**given)
