"""What do workers that train alone have in common? What came of their last average, where each of them went on."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from torch import Tensor

from covey.decentral.averaging.optimizer_state import Momentum
from covey.model.replica import Replica
from covey.program import Node
from covey.servers.standing import remembered
from covey.vector import Vector


class MeanModel:
    """The model after the last average, which a worker that is restarted begins with; kept only where one can be."""

    counts = alike = lends = False

    def __init__(self, node: Node, replica: Replica, momentum: Momentum) -> None:
        self.replica, self.momentum, self.elastic = replica, momentum, node.incarnation.elastic
        self._kept = remembered(node, "mean", dict[str, Any]())
        if not self._kept.value:  # the run begins
            self.keep()

    def keep(self) -> None:
        """An average is done."""
        if self.elastic:
            self._kept.value = {"model": self.replica.model.clone(), "others": _cloned(self.replica)}
            if self.momentum == "average":
                self._kept.value["optimizer"] = deepcopy(self.replica.optimizer.state_dict())

    def give(self) -> dict[str, Any]:
        return self._kept.value

    def take(self, state: dict[str, Any], restarted: bool) -> None:
        """One that was only late keeps its optimizer's state as far as it is its own."""
        self.replica.model.copy_(state["model"])
        if restarted:
            self.replica.layout.set_others(state["others"])
        if self.momentum == "average":
            self.replica.optimizer.load_state_dict(state["optimizer"])
        elif self.momentum == "reset":
            self.replica.optimizer.state.clear()
        self.keep()

    def settle(self) -> None:
        """What follows from the mean is kept with it."""


class BlockState:
    """The block that all begin alike: the outer model, its momentum, and where the next block starts."""

    counts, alike, lends = False, True, False

    def __init__(self, node: Node, replica: Replica, block: dict[str, Vector], momentum: Momentum) -> None:
        self.replica, self.block, self.momentum, self.elastic = replica, block, momentum, node.incarnation.elastic
        self._others = remembered(node, "counters", dict[str, Tensor]())
        if not self._others.value:  # the run begins
            self.keep()

    def keep(self) -> None:
        """A block is over."""
        if self.elastic:
            self._others.value = _cloned(self.replica)

    def give(self) -> dict[str, Any]:
        return {"block": self.block, "others": self._others.value}

    def take(self, state: dict[str, Any], restarted: bool) -> None:
        for name, vector in self.block.items():
            vector.copy_(state["block"][name])
        self.replica.flat.copy_(self.block["start"])
        self.replica.buffers.copy_(self.block["buffers"])
        if restarted:
            self.replica.layout.set_others(state["others"])
        if self.momentum == "reset":
            self.replica.optimizer.state.clear()
        self.keep()

    def settle(self) -> None:
        """What follows from the mean is kept with it."""


def _cloned(replica: Replica) -> dict[str, Tensor]:
    """Buffers that are no floats, such as counters of batches."""
    return {name: buffer.clone() for name, buffer in replica.layout.others().items()}
