"""torchft's LocalSGD and DiLoCo: every host a replica group of one, scored right after averaging."""

from __future__ import annotations

from datetime import timedelta
from itertools import count
from typing import Any

import torch
from torch.distributed import TCPStore
from torchft import Manager, ProcessGroupGloo
from torchft.coordination import LighthouseServer
from torchft.local_sgd import DiLoCo, LocalSGD

from benchmarks.peers.seat import Seat

PATIENCE = timedelta(seconds=60)


def manager(seat: Seat, store: TCPStore) -> Manager:
    """Rank 0 keeps the lighthouse; nobody goes on without the others, and all begin with the same weights."""

    def load(state: dict[str, Any]) -> None:
        seat.model.load_state_dict(state["model"])
        seat.optimizer.load_state_dict(state["optimizer"])

    return Manager(
        pg=ProcessGroupGloo(timeout=PATIENCE), min_replica_size=seat.size, load_state_dict=load,
        state_dict=lambda: {"model": seat.model.state_dict(), "optimizer": seat.optimizer.state_dict()},
        replica_id=f"host_{seat.rank}", rank=0, world_size=1, store_addr=seat.address, store_port=store.port,
        lighthouse_addr=seat.find("lighthouse"), hostname=seat.address, use_async_quorum=False, timeout=PATIENCE,
        quorum_timeout=PATIENCE, init_sync=False,
    )  # fmt: skip


def main() -> None:
    seat = Seat()
    if seat.rank == 0:
        lighthouse = LighthouseServer(bind=f"{seat.address}:29510", min_replicas=seat.size, join_timeout_ms=100)
        seat.leave("lighthouse", f"http://{seat.address}:{lighthouse.address().rpartition(':')[2]}")
    store = TCPStore(seat.address, 0, is_master=True, wait_for_workers=False)  # its server ends with this object
    managed, period = manager(seat, store), int(seat.settings["period"])
    if seat.settings.get("outer"):
        outer = torch.optim.SGD(seat.model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        averaging = DiLoCo(managed, [seat.model], seat.optimizer, outer, sync_every=period)
    else:
        averaging = LocalSGD(managed, seat.model, seat.optimizer, sync_every=period)
    with averaging:
        seat.ready()
        for step in count(1):
            seat.step()
            if step % period == 0 and not seat.goes_on(step, step * seat.batch):
                return


if __name__ == "__main__":
    main()
