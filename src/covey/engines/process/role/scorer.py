"""The scorer: puts the roles' snapshots together, evaluates the model and writes it, while training stands still."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from covey.engines.process import control
from covey.engines.process.control_lines import RoleLine
from covey.engines.process.role.command_handlers import installed
from covey.engines.process.snapshot_parts import SnapshotPart, snapshot
from covey.engines.transport.zmq import ZmqTransport
from covey.message import Message
from covey.model.scored import Snapshot

LISTEN = 0.1  # seconds after which it looks around though nothing rang: what does nothing at all is taken for stopped


class Scorer:
    """Waits for orders and for snapshots, and answers with metrics."""

    def __init__(
        self, links: ZmqTransport, line: RoleLine,
        assemble: Callable[[Sequence[Snapshot]], None], evaluate: Callable[[], Mapping[str, float]],
        write: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.links, self.line = links, line
        self.assemble, self.evaluate, self.write = assemble, evaluate, write
        self.parts: list[SnapshotPart] = []
        self.order: control.Score | None = None

    def run(self) -> None:
        while True:
            messages, others = self.links.poll(LISTEN, (self.line.socket,))
            self.line.confess()
            self.parts += [message for message in messages if isinstance(message, SnapshotPart)]
            messages.clear()  # what is scored is let go
            for word in self.line.heard() if others else ():
                if isinstance(word, control.Quit):
                    return
                if isinstance(word, control.Score) and (self.order or not word.absent):  # else it was answered
                    self.order = word
                    self.parts = [part for part in self.parts if part.sender not in word.absent]
                if isinstance(word, control.Install):
                    self.links.renew(word.who, word.incarnation, word.endpoint, [])
                    self.line.tell(installed(self.links, word, ended=False))
            if self.order and len(self.parts) >= self.order.parts:
                self.obey(self.order)

    def obey(self, order: control.Score) -> None:
        parts: list[Message] = sorted(self.parts, key=lambda part: part.sender)
        self.parts, self.order = [], None
        self.assemble([snapshot(part) for part in parts if isinstance(part, SnapshotPart)])
        metrics = dict(self.evaluate()) if order.evaluate else {}
        if order.file:
            self.write(order.file)
        self.line.tell(control.Scored(metrics))
