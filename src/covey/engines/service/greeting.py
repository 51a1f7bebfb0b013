"""What a guest and a service say to each other before any program of theirs does."""

from __future__ import annotations

from covey.message import Message


class Hello(Message):
    """(Guest to service, first of all) What I have: the covey, the task by the hash of its file, and samples."""

    wire_name = "service.hello"

    covey: str
    task: str
    samples: int = 0

    counted = False


class Welcome(Message):
    """(To a guest) Come in: your name here, and the strategy and seed of the run."""

    wire_name = "service.welcome"

    name: str
    strategy: str
    seed: int

    counted = False


class NotWelcome(Message):
    """(To a guest) You cannot take part, and coming again would not change that."""

    wire_name = "service.not_welcome"

    why: str

    counted = False


class RunOver(Message):
    """(To a guest) The run has ended: nobody needs to come again. (Back, from a guest amid a visit) I have heard it."""

    wire_name = "service.over"

    counted = False
