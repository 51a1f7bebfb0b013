"""Random states inside a model (dropout): their seeds, and how they continue on another role."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


def seed_of(seed: int, rank: int, step: int, part: int | None = None) -> int:
    """Chance belongs to the batch, or to a part of it: wherever, whenever it is computed."""
    whole = (seed * 1_000_003 + rank) * 1_000_003 + step
    return whole if part is None else (whole * 1_000_003 + part) % (1 << 63)


def seed_torch(seed: int) -> None:
    """Do what `torch.manual_seed` does, without the 0.4 ms or more in which it formats the stack for absent devices."""
    torch.default_generator.manual_seed(seed)
    match _accelerator():
        case "":
            pass
        case "cuda":
            torch.cuda.manual_seed_all(seed)
        case _:
            torch.manual_seed(seed)


@cache
def _accelerator() -> str:
    """The kind of this machine's; nothing where there is none."""
    found = torch.accelerator.current_accelerator(check_available=True)
    return found.type if found else ""


class Chance:
    """The state of what a model's layers draw from, which can go on in another process."""

    def __init__(self, device: torch.device) -> None:
        self.device = device if device.type == "cuda" else None

    def state(self) -> Tensor:
        here = torch.get_rng_state()
        return torch.cat([torch.cuda.get_rng_state(self.device), here]) if self.device else here

    def restore(self, state: Tensor) -> None:
        if self.device:
            there = len(torch.cuda.get_rng_state(self.device))
            torch.cuda.set_rng_state(state[:there].clone(), self.device)
            state = state[there:]
        torch.set_rng_state(state.clone())
