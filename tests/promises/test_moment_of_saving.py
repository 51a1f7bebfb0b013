"""A checkpoint is of the first await of a step: before it, a program may not move what a restart would move again.

But by what it takes from its mailbox: that is saved as well, and so not taken again.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
import torch

from covey.checkpoint.packing import pack
from covey.program import Effect, Memory, Node
from covey.vector import Vector
from tests.real.test_resume import ALL, COMPRESSED
from tests.worlds import mlp, run, sgd


class Watch:
    """What a program that has begun a step remembers, and whether that is still so at its first await."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kept: dict[int, list[Memory[Any]]] = {}
        self.begun: tuple[Node, object] | None = None
        self.moved: set[str] = set()
        training, remember, wait, receive = Node.training, Node.remember, Effect.__await__, Node.receive_nowait

        def begin(node: Node) -> bool:
            goes_on = training(node)
            self.begun = (node, self.state(node)) if goes_on else None
            return goes_on

        def keep(node: Node, name: str, value: Any) -> Memory[Any]:
            memory = remember(node, name, value)
            self.kept.setdefault(id(node), []).append(memory)
            return memory

        def take(node: Node, *what: Any, **of: Any) -> Any:
            message = receive(node, *what, **of)
            self.begun = None if message else self.begun
            return message

        def await_(effect: Effect[Any]) -> Generator[Effect[Any], Any, Any]:
            if self.begun:
                (node, before), self.begun = self.begun, None
                if self.state(node) != before:
                    self.moved.add(str(node.address))
            return wait(effect)

        monkeypatch.setattr(Node, "training", begin)
        monkeypatch.setattr(Node, "remember", keep)
        monkeypatch.setattr(Node, "receive_nowait", take)
        monkeypatch.setattr(Effect, "__await__", await_)

    def state(self, node: Node) -> object:
        tensors: dict[str, torch.Tensor] = {}
        replica: Vector = node.host.replica.model  # type: ignore[attr-defined]  # of a seat in virtual time
        tree = pack([replica, *(memory.value for memory in self.kept.get(id(node), []))], tensors)
        return repr(tree), {name: tensor.tolist() for name, tensor in tensors.items()}


SEATS = "crossbow"
"""Every step begins with its learner's model, whatever the replica held."""


@pytest.mark.parametrize("strategy", [*ALL, *(pytest.param(spec, marks=pytest.mark.full) for spec in COMPRESSED)])
def test_nothing_has_moved_when_a_checkpoint_is_taken(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(monkeypatch)
    run(mlp(sgd(momentum=0.0 if "hogwild" in strategy else 0.5)), strategy, 4, steps=9)
    assert not watch.moved or strategy.startswith(SEATS)
