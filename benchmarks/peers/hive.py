"""Hivemind with local updates: who has finished a batch goes on; at each of its epochs parameters are averaged.

Its waits are made short, for these hosts are near each other: its defaults are for the internet.
"""

from __future__ import annotations

import json
import os

import hivemind

from benchmarks.peers.seat import Seat


def main() -> None:
    seat = Seat()
    known = [] if seat.rank == 0 else json.loads(seat.find("first"))
    dht = hivemind.DHT(
        initial_peers=known, host_maddrs=[f"/ip4/{seat.address}/tcp/0"], start=True, use_relay=False,
        use_auto_relay=False,
    )  # fmt: skip
    if seat.rank == 0:
        seat.leave("first", json.dumps([str(address) for address in dht.get_visible_maddrs()]))
    target = int(seat.settings["period"]) * seat.batch
    optimizer = seat.optimizer = hivemind.Optimizer(
        dht=dht, run_id="race", params=list(seat.model.parameters()), optimizer=seat.task.optimizer,
        batch_size_per_step=seat.task.batch_size, target_batch_size=target, use_local_updates=True,
        delay_state_averaging=False, matchmaking_time=1.0, averaging_timeout=60.0,
        averager_opts={"request_timeout": 0.5},
        tracker_opts={"min_refresh_period": 0.1, "default_refresh_period": 0.3, "max_refresh_period": 1.0},
    )  # fmt: skip
    seat.ready()
    epoch = 0
    while True:
        seat.step()
        if optimizer.local_epoch > epoch:
            epoch = optimizer.local_epoch
            if not seat.goes_on(epoch, epoch * target):
                os._exit(0)  # its processes would take their time


if __name__ == "__main__":
    main()
