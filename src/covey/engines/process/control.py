"""Control messages between a launcher and its roles: typed, small, never counted as traffic."""

from __future__ import annotations

from typing import Literal

import msgspec

from covey.decoding import WireFormat
from covey.message import Address
from covey.observe.recording import RoleOps, RoleTimeline
from covey.observe.tally import Tally
from covey.observe.usage import Use
from covey.settings import SettingsUpdate

How = Literal["any", "all", "mean", "sum"]


class ControlMessage(msgspec.Struct, frozen=True, tag=True):
    """A message of the control line: those above `Endpoints` go from a role to its launcher, the others back."""


class Bound(ControlMessage, frozen=True):
    """The role listens at this endpoint."""

    endpoint: str


class Doing(ControlMessage, frozen=True):
    """What the role does before it is ready."""

    what: str


class RoleReady(ControlMessage, frozen=True):
    """The role is built; roles with the same fingerprint start from the same weights."""

    fingerprint: str
    parameters: int
    done: int = 0  # steps, where it goes on from a checkpoint


class Started(ControlMessage, frozen=True):
    """The role's program has begun."""


class MemoryShort(ControlMessage, frozen=True):
    """The role can share no more memory with the others of its host, and sends through sockets instead."""

    why: str


class Report(ControlMessage, frozen=True):
    """How it goes: the tally so far, and what the role waits for, if it does."""

    step: int
    tally: Tally
    waiting: str = ""
    since: float = 0.0  # seconds of training that it has waited, or computed
    given: int = 0  # batches that were differentiated
    use: Use | None = None  # now and then
    frames: int = 0  # that have come from other roles so far


class Settled(ControlMessage, frozen=True):
    """The settings of a loop's optimizer are known for all steps before this one; how they changed since the last."""

    reached: int
    changes: list[SettingsUpdate]


class NextStep(ControlMessage, frozen=True):
    """The step that would begin next; the role waits there for an answer. None: it will begin no more."""

    step: int | None
    rests: bool = False  # it has no batch, and waits until there is one


class HeldAt(ControlMessage, frozen=True):
    """The role waits before this step, or will never begin it."""

    step: int


class Frozen(ControlMessage, frozen=True):
    """No compute runs, and none will begin; where a step was named, none of that step or a later one."""


class MessageCounts(ControlMessage, frozen=True):
    """Messages sent and received in all; busy: something still moves."""

    sent: int
    received: int
    busy: bool


class Copied(ControlMessage, frozen=True):
    """The role has copied its state, and writes the copy; it may go on."""


class Saved(ControlMessage, frozen=True):
    """The copy is written, or why not."""

    why: str = ""
    seconds: float = 0.0  # of CPU time


class RoleEnded(ControlMessage, frozen=True):
    """The role's program is through."""

    tally: Tally
    lane: RoleTimeline | None = None  # of a run that is traced


class Profiled(ControlMessage, frozen=True):
    """What torch did in the role; told after its end."""

    ops: RoleOps


class ProgramRaised(ControlMessage, frozen=True):
    """The role's code raised."""

    error: str
    traceback: str
    refusal: str = ""  # the kind of error, where it is covey that says no


class Left(ControlMessage, frozen=True):
    """The worker's own loop is over, after these numbers of steps and votes."""

    steps: int
    votes: int


class Vote(ControlMessage, frozen=True):
    """What a worker's own loop has to say in the vote of this number, and waits to hear from all."""

    number: int
    about: str  # what the loop called, as people read it
    how: How
    value: float
    steps: int  # that the loop has taken


class SampleOrder(ControlMessage, frozen=True):
    """In which order a worker's loader goes through its samples in this pass, as a fingerprint."""

    number: int
    fingerprint: str


class Notice(ControlMessage, frozen=True):
    """Something that the person who started the run should read."""

    text: str


class Refused(ControlMessage, frozen=True):
    """What the role has refused since it last said so: each reason, and how often."""

    counts: dict[str, int]


class Installed(ControlMessage, frozen=True):
    """The role hears only this incarnation of another, and reads its memory from byte `floor` on; whether it ended."""

    who: Address
    incarnation: int
    floor: int
    ended: bool


class Resumed(ControlMessage, frozen=True):
    """A worker that was restarted goes on after this number of its samples; `who`: so many count of one that went."""

    samples: int
    who: Address | None = None


class Scored(ControlMessage, frozen=True):
    """What the model is worth."""

    metrics: dict[str, float]


class Endpoints(ControlMessage, frozen=True):
    """The endpoint of every role, by name."""

    endpoints: dict[str, str]


class Go(ControlMessage, frozen=True):
    """All roles are ready: train. To one that was restarted: with what it should know of the incarnation before."""

    step: int = 0  # in which that was last seen
    ended: list[Address] = []  # whose programs are through
    seconds: float = 0.0  # of training so far
    free: int = 0  # nobody reads what it left below this byte of its memory


class Install(ControlMessage, frozen=True):
    """A role was restarted, or is gone (`empty`): speak to this incarnation, at this endpoint, and to no other."""

    who: Address
    incarnation: int
    endpoint: str
    empty: bool = False


class Undo(ControlMessage, frozen=True):
    """Undo the discarded steps, and say when you are ready for the real ones."""


class Freeze(ControlMessage, frozen=True):
    """Begin no compute until thawed; from this step on, if one is named. The `score` is for a scheduler."""

    step: int | None = None
    score: float | None = None


class Thaw(ControlMessage, frozen=True):
    """Go on, each when its work has waited for so long."""

    pause: float = 0.0


class Skip(ControlMessage, frozen=True):
    """The given seconds, which have just passed, were not training: all processes were stopped."""

    seconds: float


class AskNextStep(ControlMessage, frozen=True):
    """Say which step would begin next, and hold there."""


class Hold(ControlMessage, frozen=True):
    """Go on, and hold before this step."""

    step: int


class Release(ControlMessage, frozen=True):
    """Go on; or else say goodbye without another step."""

    train: bool = True


class Stop(ControlMessage, frozen=True):
    """Go on, and train no more from this step on."""

    step: int


class CountMessages(ControlMessage, frozen=True):
    """Say how many messages you have sent and received."""


class TakeSnapshot(ControlMessage, frozen=True):
    """Send your part of the scored model to the scorer."""


class Save(ControlMessage, frozen=True):
    """Copy your state, say so, and write the copy into this directory."""

    directory: str


class Score(ControlMessage, frozen=True):
    """(To the scorer) assemble this many parts, evaluate, and write the model if a file is named."""

    parts: int
    evaluate: bool
    file: str = ""
    absent: list[Address] = []  # lost: parts of these are not among them


class VoteResult(ControlMessage, frozen=True):
    """How a vote has ended."""

    number: int
    value: float


class Quit(ControlMessage, frozen=True):
    """End the process."""


Upward = (
    Bound | RoleReady | Started | MemoryShort | Report | Settled | NextStep | HeldAt | Frozen | MessageCounts | Copied
    | Saved | RoleEnded | Profiled | ProgramRaised | Refused | Scored | Left | Vote | SampleOrder | Notice | Doing
    | Installed | Resumed
)  # fmt: skip
Downward = (
    Endpoints | Go | Install | Undo | Freeze | Thaw | Skip | AskNextStep | Hold | Release | Stop | CountMessages
    | TakeSnapshot | Save | Score | VoteResult | Quit
)  # fmt: skip
upward: WireFormat[Upward] = WireFormat("message of a role", Upward)
downward: WireFormat[Downward] = WireFormat("control message to a role", Downward)
