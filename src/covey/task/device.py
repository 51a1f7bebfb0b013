"""On which device does a role of a task compute, and how does a batch come there?"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from covey.errors import PlanError

AUTO = "auto"


def check_device(name: Any) -> None:
    """Refuse what names no device with numbers."""
    if name is None or name == AUTO:
        return
    try:
        kind = torch.device(name).type if isinstance(name, str) else ""
    except RuntimeError:
        kind = ""
    if kind in ("", "meta"):
        raise PlanError(f"Task: device must be 'auto', 'cpu', 'cuda' or one such as 'cuda:1', not {name!r}")


def device_of(name: str, rank: int) -> torch.device:
    """The device of a role: without a number, roles share those of their machine by rank. Refused where none is."""
    if name == AUTO:
        found = torch.accelerator.current_accelerator(check_available=True)
        name = found.type if found else "cpu"
    device = torch.device(name)
    if device.type == "cpu":
        return device
    there = torch.accelerator.current_accelerator(check_available=True)
    count = torch.accelerator.device_count() if there and there.type == device.type else 0
    if not count:
        raise PlanError(f"Task: device={name!r}, and torch {torch.__version__} finds none here: use device='auto'")
    if device.index is None:
        return torch.device(device.type, rank % count)
    if device.index >= count:
        raise PlanError(
            f"Task: device={name!r}, and this machine has {device.type}:0 to {count - 1}: without a number, "
            f"device={device.type!r}, roles share them by their ranks"
        )
    return device


def placed(batch: Any, device: torch.device) -> Any:
    """The batch with all its tensors on the device; what has a method `to` of its own is asked."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if type(batch) is dict:
        return {name: placed(value, device) for name, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(placed(value, device) for value in batch))
    if type(batch) in (tuple, list):
        return type(batch)(placed(value, device) for value in batch)
    return batch.to(device) if callable(getattr(batch, "to", None)) else batch
