"""What a person asks of a run on real processes, and how it went."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from covey.checkpoint import CheckpointDirectory, RunRecord
from covey.engines.interrupt import Interrupt
from covey.engines.process.clock import LostAttempt
from covey.engines.process.control import Profiled
from covey.engines.process.launcher.empty_seats import Renewal
from covey.message import Address
from covey.observe.contention import Contention
from covey.observe.progress import Watcher
from covey.observe.result import Stopped
from covey.observe.tally import Tally
from covey.observe.usage import Row


@dataclass(kw_only=True, slots=True)
class RunWishes:
    """What the person asked for besides training."""

    score: bool = True
    before: str = "importing torch"  # what roles do until they say something
    first: bool = False  # score the initial weights, too
    warm: bool = False  # roles do discarded steps before the clock starts
    model: Path | None = None  # where the final model goes
    checkpoints: CheckpointDirectory | None = None
    keep_every: float | None = 60.0  # seconds; None: as often as it costs little
    run: RunRecord | None = None  # what a checkpoint says of this run
    alike: str = "task.model must draw them from torch's generator (seeded by covey) and nothing else"
    stall: float = 30.0
    budget: int | None = None
    profiled: bool = False  # roles tell what torch did
    renewal: Renewal | None = None  # lost workers are restarted
    lost: LostAttempt | None = None  # of this run; the clock goes on from there
    watcher: Watcher | None = None
    interrupt: Interrupt = field(default_factory=Interrupt)
    lead: Callable[[], None] = lambda: None  # raises as soon as another launcher may have the run


@dataclass(slots=True)
class ProcessOutcome:
    """How a run went."""

    seconds: float
    stopped: Stopped
    tallies: list[Tally]
    usage: list[Row]
    refused: list[str]  # what was, and how often
    contention: Contention | None = None  # None where it was not measured
    profiles: Mapping[Address, Profiled] = field(default_factory=dict)  # what torch did in each role, if that was asked
