"""torch.distributed: gloo for what lies in the memory of the CPU, NCCL for GPUs, each role being a process of it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor

from covey.engines.process.contacts import Contacts
from covey.engines.process.role.native_sums import Group
from covey.errors import PlanError
from covey.message import Address

PATIENCE = timedelta(minutes=30)  # a peer may compute as long as it likes; the launcher notices one that is gone


class C10dCollectives:
    """Process groups by members, made when they first sum."""

    def __init__(self, me: Address, contacts: Contacts, host: str, port: str) -> None:
        self.me = me
        self.store = dist.TCPStore(host, int(port), is_master=False, timeout=PATIENCE)  # type: ignore[attr-defined]
        self.address = contacts.book[str(me)].removeprefix("tcp://").rpartition(":")[0].strip("[]")
        self.made: dict[tuple[Group, str], Any] = {}

    def joins(self, group: Group) -> bool:
        return True

    def sum(self, parts: list[Tensor], group: Group) -> None:
        for part in parts:
            try:
                self._among(group, part.device.type).allreduce([part]).wait()
            except dist.DistBackendError as error:
                if "Duplicate GPU" not in str(error):
                    raise
                raise PlanError(
                    f"native=true: NCCL wants a GPU for each worker, and {self.me} shares its own with another; "
                    "use fewer workers, or omit native"
                ) from None

    def _among(self, group: Group, device: str) -> Any:
        if (group, device) not in self.made:
            name = f"{device} of " + ", ".join(map(str, group))
            store = dist.PrefixStore(name, self.store)  # type: ignore[attr-defined]
            make = self._nccl if device == "cuda" else self._gloo
            self.made[group, device] = make(store, group.index(self.me), len(group))
        return self.made[group, device]

    def _gloo(self, store: Any, rank: int, size: int) -> Any:
        gloo: Any = dist.ProcessGroupGloo
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname=self.address)]  # else it hears where the host's name points
        options._timeout = PATIENCE
        return gloo(store, rank, size, options)

    def _nccl(self, store: Any, rank: int, size: int) -> Any:
        nccl: Any = dist.ProcessGroupNCCL
        options = nccl.Options()
        options._timeout = PATIENCE
        return nccl(store, rank, size, options)


collectives = C10dCollectives  # found by this name in every module of this room
