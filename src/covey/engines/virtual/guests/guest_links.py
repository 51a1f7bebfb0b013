"""How messages reach guests, who may be gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from covey.engines.virtual.virtual_actor import RoleProgram, VirtualActor
from covey.engines.virtual.virtual_links import VirtualLinks
from covey.message import Address, Message
from covey.program import Send


class GuestLinks(VirtualLinks):
    """Links of which some lead to guests: what is sent to one that is gone comes to nobody, and its sender hears so."""

    gone: Callable[[VirtualActor, Address], bool]

    def send(self, thread: RoleProgram, effect: Send) -> object:
        return None if self.gone(thread.actor, effect.to) else super().send(thread, effect)

    def from_outside(self, message: Message) -> None:
        """This one comes from the engine: it counts in no window."""
        self._orphans[id(message)] = message

    def forget(self, guest: VirtualActor, others: Iterable[VirtualActor]) -> None:
        """A guest has gone: when it comes again, it has new links."""
        for actor in others:
            actor.links.pop(guest.address, None)
            actor.heard.pop(guest.address, None)
            for message in actor.mailbox.waiting:
                if message.sender == guest.address:
                    self.from_outside(message)
