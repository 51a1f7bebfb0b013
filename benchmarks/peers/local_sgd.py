"""Local SGD as one writes it by hand: steps alone, then a mean over Gloo; scored right after that."""

from __future__ import annotations

from itertools import count

from torch import distributed
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from benchmarks.peers.ddp import PORT
from benchmarks.peers.seat import EVERY, Seat


def main() -> None:
    seat = Seat()
    period = int(seat.settings["period"])
    distributed.init_process_group("gloo", f"tcp://{seat.first}:{PORT}", rank=seat.rank, world_size=seat.size)
    distributed.barrier()  # connects them
    seat.ready()
    for step in count(1):
        seat.step()
        if step % period == 0:
            mean = parameters_to_vector(seat.model.parameters()).detach()
            distributed.all_reduce(mean)
            vector_to_parameters(mean.div_(seat.size), seat.model.parameters())
            if step % EVERY == 0 and not seat.goes_on(step, step * seat.batch):
                return


if __name__ == "__main__":
    main()
