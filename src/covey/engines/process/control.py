"""What a launcher and its roles say to each other besides the exchange: typed, small, never counted as traffic."""

from __future__ import annotations

from typing import Literal

import msgspec

from covey.decoding import WireFormat
from covey.observe.recording import Lane
from covey.observe.tally import Tally
from covey.observe.usage import Use
from covey.settings import Changed

How = Literal["any", "all", "mean", "sum"]


class Word(msgspec.Struct, frozen=True, tag=True):
    """Something said on the control line."""


# -- from a role to its launcher


class Bound(Word, frozen=True):
    """The role hears at this endpoint."""

    endpoint: str


class Doing(Word, frozen=True):
    """What the role does before it is ready."""

    what: str


class Ready(Word, frozen=True):
    """The role is built; roles with the same fingerprint start from the same weights."""

    fingerprint: str
    parameters: int


class Cramped(Word, frozen=True):
    """The role can share no more memory with the others of its host, and sends through sockets instead."""

    why: str


class Report(Word, frozen=True):
    """How it goes: the tally so far, and what the role waits for, if it does."""

    step: int
    tally: Tally
    waiting: str = ""
    since: float = 0.0  # seconds of training that it has waited, or computed
    given: int = 0  # batches that were differentiated
    use: Use | None = None  # now and then


class Settled(Word, frozen=True):
    """The settings of a loop's optimizer are known for all steps before this one; how they changed since the last."""

    reached: int
    changes: list[Changed]


class At(Word, frozen=True):
    """The step that would begin next; the role goes no further until told. None: it will begin no more."""

    step: int | None


class Held(Word, frozen=True):
    """The role waits before this step, or will never begin it."""

    step: int


class Frozen(Word, frozen=True):
    """No compute runs, and none will begin."""


class Counts(Word, frozen=True):
    """Messages sent and received in all; busy: something still moves."""

    sent: int
    received: int
    busy: bool


class Saved(Word, frozen=True):
    """The role's state is on disk, or why not."""

    why: str = ""


class Ended(Word, frozen=True):
    """The role's program is through."""

    tally: Tally
    lane: Lane | None = None  # of a run that is traced


class Failed(Word, frozen=True):
    """The role's code raised."""

    error: str
    traceback: str
    refusal: str = ""  # the kind of error, where it is covey that says no


class Left(Word, frozen=True):
    """The worker's own loop is over, after so many steps and so many votes."""

    steps: int
    votes: int


class Vote(Word, frozen=True):
    """What a worker's own loop has to say in the vote of this number, and waits to hear from all."""

    number: int
    about: str  # what the loop called, as people read it
    how: How
    value: float
    steps: int  # that the loop has taken


class Order(Word, frozen=True):
    """In which order a worker's loader goes through its samples in this pass, as a fingerprint."""

    number: int
    fingerprint: str


class Advice(Word, frozen=True):
    """Something that the person who started the run should read."""

    text: str


class Refused(Word, frozen=True):
    """What the role has refused since it last said so: each reason, and how often."""

    counts: dict[str, int]


class Scored(Word, frozen=True):
    """What the model is worth."""

    metrics: dict[str, float]


# -- from the launcher to a role


class Book(Word, frozen=True):
    """Where everybody hears, by name."""

    endpoints: dict[str, str]


class Go(Word, frozen=True):
    """Everybody is ready: train."""


class Freeze(Word, frozen=True):
    """Begin no compute until thawed."""


class Thaw(Word, frozen=True):
    """Go on, each when its work has waited for so long."""

    pause: float = 0.0


class Skip(Word, frozen=True):
    """So many seconds that have just passed were no training: everybody was stopped."""

    seconds: float


class Where(Word, frozen=True):
    """Say which step would begin next, and hold there."""


class Hold(Word, frozen=True):
    """Go on, and hold before this step."""

    step: int


class Release(Word, frozen=True):
    """Go on; or else say goodbye without another step."""

    train: bool = True


class Stop(Word, frozen=True):
    """Go on, and train no more from this step on."""

    step: int


class Probe(Word, frozen=True):
    """Say how many messages you have sent and received."""


class Shoot(Word, frozen=True):
    """Send your part of the scored model to the scorer."""


class Save(Word, frozen=True):
    """Write your state into this directory."""

    directory: str


class Score(Word, frozen=True):
    """(To the scorer) put so many parts together, evaluate, and write the model if a file is named."""

    parts: int
    evaluate: bool
    file: str = ""


class Verdict(Word, frozen=True):
    """How a vote has ended."""

    number: int
    value: float


class Quit(Word, frozen=True):
    """End the process."""


Upward = (
    Bound | Ready | Cramped | Report | Settled | At | Held | Frozen | Counts | Saved | Ended | Failed | Refused | Scored
    | Left | Vote | Order | Advice | Doing
)  # fmt: skip
Downward = (
    Book | Go | Freeze | Thaw | Skip | Where | Hold | Release | Stop | Probe | Shoot | Save | Score | Verdict | Quit
)  # fmt: skip

upward: WireFormat[Upward] = WireFormat("word up the control line", Upward)
downward: WireFormat[Downward] = WireFormat("word down the control line", Downward)
