"""How messages travel in virtual time: windows and replacement on each link, then the network model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from itertools import count
from typing import Any

from covey.engines.virtual.agenda import Agenda
from covey.engines.virtual.link_faults import LinkFaults
from covey.engines.virtual.virtual_actor import WAIT, MessageInFlight, RoleProgram, VirtualActor, VirtualLink
from covey.engines.window import LEAST, fits, idle, weight
from covey.errors import PlanError
from covey.message import Address, Message, sizes, stamped
from covey.observe.instruments import Instrument
from covey.program import Send
from covey.simulate.network import Event, Network

Later = Callable[[MessageInFlight, Any], None]
"""What the agenda calls with a message when its time has come."""


class VirtualLinks:
    """All links of a run; a window is the bytes that may be under way or unread on each."""

    allowance: float | None = None  # bytes per second on each link
    faults: LinkFaults | None = None
    _before: Callable[[MessageInFlight], None] | None  # what a message has to pass before the network
    _crossed: Later  # what becomes of it when it has crossed the network
    _arrive: Later  # what becomes of it when it has come to its receiver

    def __init__(self, network: Network, window: int, agenda: Agenda, watch: Instrument) -> None:
        self._network, self._window, self._agenda, self._watch = network, window, agenda, watch
        self._actors: Mapping[Address, VirtualActor] = {}
        self._serial = count()
        self.full: dict[VirtualLink, None] = {}  # on which a sender waits for room
        self._orphans: dict[int, Message] = {}  # unread messages of earlier incarnations, by their identity
        self.hand_over: Later  # gives a message to its receiver
        self._admitted: Callable[[RoleProgram], None]

    def connect(
        self,
        actors: Mapping[Address, VirtualActor],
        arrived: Later,
        admitted: Callable[[RoleProgram], None],
    ) -> None:
        """Where messages go, and what to notify when one arrives or a waiting sender may continue."""
        self._actors, self.hand_over, self._admitted = actors, arrived, admitted
        self._choose_ways()
        for actor in actors.values():
            for message in actor.mailbox.waiting:  # as a checkpoint kept them
                sender = actors[message.sender]
                link = sender.links.get(actor.address) or self._link(sender, actor.address)
                link.unread += weight(message)

    def attach(self, faults: LinkFaults) -> None:
        """Let these faults strike."""
        self.faults, faults.hand_over = faults, self.hand_over
        self._choose_ways()

    def _choose_ways(self) -> None:
        """Messages pass only what this run has: without faults and an allowance, nothing but the network."""
        free = self.faults is None and self.allowance is None
        self._arrive = self.hand_over if self.faults is None else self._let_in
        self._before = None if free else self._let_out
        self._crossed = self._land if self.allowance is None else self._delivered

    @property
    def _land(self) -> Later:
        return self._arrive

    def send(self, thread: RoleProgram, effect: Send) -> object:
        """Take a message; WAIT when its sender has to wait for room."""
        sender = thread.actor
        link = sender.links.get(effect.to) or self._link(sender, effect.to)
        message = stamped(effect.body, sender.address, not effect.loan)
        newest = effect.keep == "latest"
        if newest and self._replaced(link, message):
            self._watch.noted(self._agenda.now, sender.address, "replaced", 1)
            return None
        counted, unread, carries = sizes(message)
        if link.inside:
            counted = 0
        load = unread if unread > LEAST else LEAST
        # as `window.waits` has it
        has_room = not carries or effect.paced or (not link.line and fits(link.counted(), load, self._window))
        if not has_room and effect.lossy:
            self._watch.noted(self._agenda.now, sender.address, "lost", 1)
            return None
        # The network carries also what does not count as exchange (headers are not modelled).
        flight = MessageInFlight(
            next(self._serial), sender.machine, link.receiver.machine, counted or unread, effect.priority,
            message=message, link=link, payload=counted, weight=load, carries=carries, lossy=effect.lossy,
        )  # fmt: skip
        if newest:
            link.latest[type(message)] = flight
        if has_room:
            self._leave(flight)
            return None
        link.line.append((thread, flight))
        self.full[link] = None
        thread.block(self._agenda.now, effect)
        return WAIT

    def room(self, sender: VirtualActor, to: Address) -> bool:
        """Whether a message would leave at once, whatever its size."""
        link = sender.links.get(to)
        return link is None or (not link.line and idle(link.counted(), self._window))

    def _leave(self, flight: MessageInFlight) -> None:
        link, agenda = flight.link, self._agenda
        flight.left_at = now = agenda.now
        link.under_way += flight.weight
        self._watch.sent(now, link.sender.address, link.receiver.address, flight.message, flight.payload)
        if self._before is not None:
            self._before(flight)
        # as `_depart` has it, without two calls for every message
        elif (arrival := link.arrival(now, flight.size)) is not None:
            heappush(agenda.due, (arrival, next(agenda.serial), self._crossed, flight, None))
        else:
            self._queue(flight)

    def _let_out(self, flight: MessageInFlight) -> None:
        """Let it depart, unless a fault takes it, or its link must not carry more for now."""
        link = flight.link
        if self.faults is not None and not self.faults.lets_out(flight):
            link.under_way -= flight.weight
        elif self.allowance is None or flight.src == flight.dst:
            self._depart(flight)
        else:
            heappush(link.held, (-flight.priority, flight.serial, flight))
            if not link.paced:
                self._pace(link)

    def _pace(self, link: VirtualLink, _: Any = None) -> None:
        """Let the next message leave, and hold the others until its last byte may have left."""
        link.paced = bool(link.held)
        if link.paced:
            assert self.allowance is not None
            flight = heappop(link.held)[2]
            flight.until = self._agenda.now + flight.size / self.allowance
            self._depart(flight)
            self._agenda.at(flight.until, self._pace, link)

    def _depart(self, flight: MessageInFlight, _: Any = None) -> None:
        if (arrival := flight.link.arrival(self._agenda.now, flight.size)) is not None:
            self._agenda.at(arrival, self._crossed, flight)
        else:
            self._queue(flight)

    def _queue(self, flight: MessageInFlight) -> None:
        """Let the network carry it beside others."""
        agenda = self._agenda
        for event in self._network.send(agenda.now, flight):
            if event.kind == "delivered":
                agenda.at(event.at, self._crossed, event.parcel)
            else:
                agenda.at(event.at, self._happen, event)

    def _happen(self, event: Event, _: Any) -> None:
        agenda = self._agenda
        for later in self._network.happen(agenda.now, event)[0]:
            if later.kind == "delivered":
                agenda.at(later.at, self._crossed, later.parcel)
            else:
                agenda.at(later.at, self._happen, later)

    def _delivered(self, flight: MessageInFlight, _: Any) -> None:
        """It has crossed the network; with an allowance it lands when the last of it may have left."""
        if flight.until > self._agenda.now:
            self._agenda.at(flight.until, self._delivered, flight)
        else:
            self._land(flight, None)

    def _let_in(self, flight: MessageInFlight, _: Any) -> None:
        """Let it arrive, unless faults hold it back or have doubled it."""
        assert self.faults is not None
        if self.faults.lets_in(flight):
            self.hand_over(flight, None)

    def dropped(self, flight: MessageInFlight) -> None:
        """It has come to nobody, or from an earlier incarnation of its sender."""
        flight.link.under_way -= flight.weight
        self.look(flight.link)

    def replaced(self, lost: VirtualActor) -> None:
        """A role was restarted: its new incarnation has links of its own, both ways."""
        for actor in self._actors.values():
            actor.links.pop(lost.address, None)
            for message in actor.mailbox.waiting:
                if message.sender == lost.address:
                    self._orphans[id(message)] = message

    def taken(self, actor: VirtualActor, message: Message) -> None:
        """A program has taken it, or none ever will."""
        if self._orphans and self._orphans.pop(id(message), None) is not None:
            return
        sender = self._actors.get(message.sender)
        link = sender.links.get(actor.address) if sender else None
        if link is not None:
            link.unread -= weight(message)
            if link.line:
                self.look(link)

    def awaited(self, actor: VirtualActor) -> None:
        """A program of this role waits for a message."""
        for link in self.full:
            if link.receiver is actor:
                self.look(link)

    def measured(self, who: Address, kind: str, value: float) -> None:
        """A role has measured something: whoever watches the links hears of it."""
        self._watch.measured(who, kind, value)

    def look(self, link: VirtualLink) -> None:
        """See, when all else of this moment is done, whether somebody who waits for room has it now."""
        if link.line:  # not here and now: the program that takes a message is in the middle of something
            self._agenda.at(self._agenda.now, self._admit, link)

    def _admit(self, link: VirtualLink, _: Any) -> None:
        """Let those go on for whose messages there is room."""
        while link.line and fits(link.counted(), link.line[0][1].weight, self._window):
            thread, waiting = link.line.pop(0)
            if not thread.done:
                self._leave(waiting)
                self._admitted(thread)
        if not link.line:
            self.full.pop(link, None)

    def _replaced(self, link: VirtualLink, message: Message) -> bool:
        """Put the newer message in the place of the older, which keeps its size on the wire and in the tallies."""
        older = link.latest.get(type(message))
        if older is None:
            return False
        in_line = any(older is item for _, item in link.line)
        held = any(older is item for _, _, item in link.held)
        if not in_line and not held and not self._network.waits(older):
            return False
        heavier = weight(message)
        if not in_line:
            link.under_way += heavier - older.weight
        older.message, older.weight = message, heavier
        return True

    def _link(self, sender: VirtualActor, to: Address) -> VirtualLink:
        if to not in self._actors:
            roles = ", ".join(map(str, self._actors))
            raise PlanError(f"{sender.name} sends to {to}, which is not a role of this run; its roles are {roles}")
        receiver = self._actors[to]
        link = VirtualLink(sender, receiver, self._network.arrivals(sender.machine, receiver.machine))
        sender.links[to] = link
        return link

    def moved(self) -> None:
        """Roles live on other machines than those on which their links found them."""
        for actor in self._actors.values():
            for link in actor.links.values():
                link.arrival = self._network.arrivals(actor.machine, link.receiver.machine)
