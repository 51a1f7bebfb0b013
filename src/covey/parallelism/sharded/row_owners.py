"""Which rows of each parameter does each member of a group own?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor, nn

from covey.errors import PlanError
from covey.message import Address
from covey.model.slots import TensorSlot, slots_of
from covey.parallelism.axis import SHARD
from covey.vector import Vector, chunk


def rows_of(tensor: Tensor) -> Tensor:
    """A tensor as rows; a single number is one."""
    return tensor if tensor.dim() else tensor.view(1)


class RowOwners:
    """Every parameter divided by rows, as evenly as they come: each row has one owner."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], members: int, axis: str = SHARD) -> None:
        self.members, self.axis = members, axis
        self.sizes = {name: len(rows_of(parameter)) for name, parameter in parameters.items()}
        self.rows: list[dict[str, tuple[int, int]]] = []  # of each member: from which row to which
        self.slots: list[list[TensorSlot]] = []  # where they lie in its flat vector
        for member in range(members):
            mine = {name: chunk(size, members, member) for name, size in self.sizes.items()}
            self.rows.append({name: ends for name, ends in mine.items() if ends[0] < ends[1]})
            self.slots.append(slots_of(self.cut(parameters, member)))
        self._named = [{slot.name: slot for slot in slots} for slots in self.slots]
        if not all(self.rows):
            raise PlanError(
                f"the largest parameter has {max(self.sizes.values(), default=0)} rows, which cannot be divided among "
                f"{members} workers: use fewer, or several replicas, as mesh(replica=2, zero=3)"
            )

    def peer(self, member: int) -> Address:
        """How the others call a member."""
        return Address(self.axis, member)

    def cut(self, tensors: Mapping[str, Tensor], member: int) -> dict[str, Tensor]:
        """The rows of a member, of those tensors that are given; views of them."""
        found = ((name, ends) for name, ends in self.rows[member].items() if name in tensors)
        return {name: rows_of(tensors[name])[first:stop] for name, (first, stop) in found}

    def nbytes(self, parameters: Mapping[str, nn.Parameter]) -> int:
        """Of the rows of the member that owns most."""
        sizes = {name: parameter.element_size() for name, parameter in parameters.items()}
        return max(sum((slot.stop - slot.start) * sizes[slot.name] for slot in slots) for slots in self.slots)

    def rows_in(self, flat: Vector, member: int) -> Vector:
        """What a member's flat vector has of these parameters, which are its first ones."""
        sizes = [0] * len(flat.parts)
        for slot in self.slots[member]:
            sizes[slot.part] = slot.stop
        return flat.cut(tuple((0, size) for size in sizes))

    def views(self, flat: Vector, member: int, names: Iterable[str] | None = None) -> dict[str, Tensor]:
        """A member's rows as they lie in its flat vector; of these parameters, in this order, or of all."""
        slots = self.slots[member] if names is None else self.slots_of(member, names)
        return {slot.name: slot.view(flat) for slot in slots}

    def slots_of(self, member: int, names: Iterable[str]) -> list[TensorSlot]:
        """Of those of these parameters of which this member owns rows, in this order."""
        slots = self._named[member]
        return [slots[name] for name in names if name in slots]
