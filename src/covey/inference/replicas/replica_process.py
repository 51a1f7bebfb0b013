"""The process of a replica, which a fork server has forked."""

from __future__ import annotations

import selectors
import socket
from random import Random

import msgspec
import torch

from covey.engines.service.role_loop import LoopRole, RoleLoop, closing
from covey.inference.messages import FRONT
from covey.inference.replicas.replica import BatchTrial, replica
from covey.inference.served_model import ServedModel
from covey.message import Address, MessageStream, stamped, streamed
from covey.observe.instruments import Instrument
from covey.program import Send

CHUNK = 1 << 20


class ReplicaConfig(msgspec.Struct, kw_only=True, frozen=True):
    """What a replica's process must know."""

    rank: int
    threads: int
    trial: tuple[float, int]  # seconds that a batch may take which it measures, and the largest of them


def answer_batches(link: socket.socket, config: ReplicaConfig, model: ServedModel) -> None:
    """Answer batches until the front hangs up."""
    torch.set_num_threads(config.threads)
    who, stream = Address("replica", config.rank), MessageStream(FRONT)
    trial = BatchTrial(model.example(), *config.trial)

    def send(role: LoopRole, effect: Send) -> None:
        link.sendall(streamed(stamped(effect.body, role.address, copy=False)))

    with closing(RoleLoop(send, Instrument())) as loop, selectors.DefaultSelector() as ready:
        role = LoopRole(who, Random(config.rank))
        loop.begin(role, replica(role.node, model, trial))
        ready.register(link, selectors.EVENT_READ)
        ready.register(loop.wakeup, selectors.EVENT_READ)
        while True:
            pause = loop.run()
            if any(key.fileobj is link for key, _ in ready.select(pause)):
                if not (data := link.recv(CHUNK)):
                    return
                for message in stream.feed(data):
                    loop.deliver(who, message)
