"""The process of a replica, or of one of its stages, which a fork server has forked."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from random import Random
from typing import Any

import msgspec
import torch

from covey.engines.service.role_loop import LoopRole, RoleLoop, closing
from covey.inference.cut_model import cut_at
from covey.inference.messages import FRONT
from covey.inference.replicas.replica import BatchTrial, replica
from covey.inference.replicas.stage import StagePlace, first_stage, last_stage, middle_stage
from covey.inference.served_model import ServedModel
from covey.message import Address, MessageStream, stamped, streamed
from covey.observe.instruments import Instrument
from covey.program import Effect, Node, Send

CHUNK = 1 << 20


class ReplicaConfig(msgspec.Struct, kw_only=True, frozen=True):
    """What a replica's process must know."""

    rank: int
    threads: int
    trial: tuple[float, int]  # seconds that a batch may take which it measures, and the largest of them
    after: tuple[int, ...] = ()  # layers after which the model is cut

    @property
    def stages(self) -> int:
        """Its processes."""
        return len(self.after) + 1


Program = Callable[[Node], Coroutine[Effect[Any], Any, None]]


def answer_batches(link: socket.socket, config: ReplicaConfig, model: ServedModel) -> None:
    """Answer batches until the front hangs up."""
    torch.set_num_threads(config.threads)
    trial = BatchTrial(model.example(), *config.trial)
    drive(link, link, FRONT, config.rank, lambda node: replica(node, model, trial))


def compute_stage(
    takes: socket.socket, gives: socket.socket, config: ReplicaConfig, number: int, model: ServedModel
) -> None:  # fmt: skip
    """Compute a stage of every batch until whoever sends them hangs up."""
    torch.set_num_threads(config.threads)
    rank, example = config.rank, model.example()
    place, cut = StagePlace(rank, number, config.stages), cut_at(model, config.after)
    part = partial(cut.part, number)
    if number == 0:
        return drive(takes, gives, FRONT, rank, lambda node: first_stage(node, place, part, example))
    before = Address("replica", rank)  # all stages speak for their replica
    if place.last:
        trial = BatchTrial(example, *config.trial)
        return drive(takes, gives, before, rank, lambda node: last_stage(node, part, cut, trial))
    return drive(takes, gives, before, rank, lambda node: middle_stage(node, place, part))


def drive(takes: socket.socket, gives: socket.socket, peer: Address, rank: int, program: Program) -> None:
    """Run a program that speaks for a replica, with one link for what it gets from a peer and one for what it sends."""
    who, stream = Address("replica", rank), MessageStream(peer)

    def send(role: LoopRole, effect: Send) -> None:
        gives.sendall(streamed(stamped(effect.body, role.address, copy=False)))

    with closing(RoleLoop(send, Instrument())) as loop, selectors.DefaultSelector() as ready:
        role = LoopRole(who, Random(rank))
        loop.begin(role, program(role.node))
        ready.register(takes, selectors.EVENT_READ)
        ready.register(loop.wakeup, selectors.EVENT_READ)
        while True:
            pause = loop.run()
            if any(key.fileobj is takes for key, _ in ready.select(pause)):
                if not (data := takes.recv(CHUNK)):
                    return
                for message in stream.feed(data):
                    loop.deliver(who, message)
