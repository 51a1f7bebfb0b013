"""PyTorch's DistributedDataParallel over Gloo, as it is or with one of its own hooks."""

from __future__ import annotations

from itertools import count

from torch import distributed
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from benchmarks.peers.seat import EVERY, Seat

PORT = 29500
WARM = 2  # steps before PowerSGD begins: the fewest that it allows with its error feedback


def main() -> None:
    seat = Seat()
    distributed.init_process_group("gloo", f"tcp://{seat.first}:{PORT}", rank=seat.rank, world_size=seat.size)
    # The default is two buckets, whose sums PowerSGD may begin in another order on each host; 25 MB make one of them.
    model = DistributedDataParallel(seat.model, bucket_cap_mb=25 if "rank" in seat.settings else None)
    if seat.settings.get("hook") == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if rank := seat.settings.get("rank"):
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=WARM)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    every = int(seat.settings.get("every", EVERY))
    seat.ready()
    for step in count(1):
        seat.step(model)
        if step % every == 0 and not seat.goes_on(step, step * seat.batch):
            return


if __name__ == "__main__":
    main()
