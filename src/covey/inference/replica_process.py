"""The process of a replica: `python -m covey.inference.replica_process FD`, started by the front's process."""

from __future__ import annotations

import selectors
import socket
import sys
from random import Random

import msgspec
import torch

from covey.decoding import WireFormat
from covey.engines.service.role_loop import LoopRole, RoleLoop, closing
from covey.errors import CoveyError
from covey.inference.messages import FRONT
from covey.inference.replica import replica
from covey.inference.replica_link import MessageStream, encode
from covey.inference.served_model import ModelPlace, load
from covey.message import Address, stamped
from covey.observe.instruments import Instrument
from covey.program import Send

CHUNK = 1 << 20


class ReplicaConfig(msgspec.Struct, kw_only=True, frozen=True):
    """What a replica's process must know; its first line of input."""

    rank: int
    threads: int
    model: ModelPlace


configs: WireFormat[ReplicaConfig] = WireFormat("config of a replica", ReplicaConfig, "json", most=1 << 20)


def main(link: socket.socket, config: ReplicaConfig) -> None:
    """Answer batches until the front hangs up."""
    torch.set_num_threads(config.threads)
    who, stream = Address("replica", config.rank), MessageStream(FRONT)
    model = load(config.model)
    model(model.example())  # the first call of a model takes longer

    def send(role: LoopRole, effect: Send) -> None:
        link.sendall(encode(stamped(effect.body, role.address, copy=False)))

    with closing(RoleLoop(send, Instrument())) as loop, selectors.DefaultSelector() as ready:
        role = LoopRole(who, Random(config.rank))
        loop.begin(role, replica(role.node, model))
        ready.register(link, selectors.EVENT_READ)
        ready.register(loop.wakeup, selectors.EVENT_READ)
        while True:
            pause = loop.run()
            if any(key.fileobj is link for key, _ in ready.select(pause)):
                if not (data := link.recv(CHUNK)):
                    return
                for message in stream.feed(data):
                    loop.deliver(who, message)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        try:
            main(connection, configs.read(sys.stdin.buffer.readline(), "the front"))
        except (BrokenPipeError, ConnectionResetError):
            pass  # the front has ended
        except CoveyError as error:
            sys.exit(f"a replica could not go on: {error}")
