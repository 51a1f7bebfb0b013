"""One visit of a guest to a service: its program, driven in real time over a link."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from covey.engines.service.dialled_link import DialledLink, ServiceEnded
from covey.engines.service.role_loop import LoopRole, RoleLoop, closing
from covey.errors import WireError
from covey.observe.instruments import Instrument
from covey.program import Effect, Node, Send

UNREAD = 16  # messages of a service that may lie unread
LOOK = 0.2  # seconds after which one looks again whether a person wants the end

Visit = Callable[[Node], Coroutine[Effect[Any], Any, float]]
"""The program of a visit, which gives the seconds until the next one."""


def pay_visit(link: DialledLink, visit: Visit, asked: Callable[[], bool], watch: Instrument | None = None) -> float:
    """Perform a visit; the seconds until the next one. Whoever has `asked` for the end gets it at once.

    LinkLost ends it, and so does ServiceEnded; what the guest has computed by then is of no use to anybody.
    """

    def send(role: LoopRole, effect: Send) -> None:
        link.send(effect.to, effect.body, effect.loan)

    with closing(RoleLoop(send, watch or Instrument())) as loop:
        # its own chance, and nobody else's: a service that knew it could tell when its guests come
        role = LoopRole(link.me, Random())
        loop.begin(role, visit(role.node))
        while not role.ended and not asked():
            pause = loop.run()
            if role.ended:
                break
            for message in link.poll(LOOK if pause is None else min(pause, LOOK), loop.wakeup):
                loop.deliver(link.me, message)
            if len(role.mailbox.waiting) > UNREAD:
                raise WireError(f"the service sent {len(role.mailbox.waiting)} messages that nobody had asked for")
            if link.over:
                link.say_goodbye()
                raise ServiceEnded("the run is over")
    return float(role.result) if role.result is not None else 0.0
