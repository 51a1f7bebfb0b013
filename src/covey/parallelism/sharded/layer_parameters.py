"""Which parameters travel together: those of layers beside one another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from covey.model.slots import names_of, trainable


@dataclass(frozen=True, slots=True)
class LayerParameters:
    """A module and the trained parameters that it holds itself, by their names in the whole model."""

    module: nn.Module
    names: tuple[str, ...]
    path: str = ""  # of the module

    @property
    def parent(self) -> str:
        """The module that holds this one."""
        return self.path.rpartition(".")[0]


def layers_of(module: nn.Module) -> list[LayerParameters]:
    """Every module that holds parameters itself; a tied parameter is in several of them."""
    called, trained = names_of(module), trainable([module])
    found = []
    for path, inner in module.named_modules():
        own = [f"{path}.{key}" if path else key for key, _ in inner.named_parameters(recurse=False)]
        names = dict.fromkeys(called[name] for name in own if called[name] in trained)
        if names:
            found.append(LayerParameters(inner, tuple(names), path))
    return found


def bundles_of(layers: Sequence[LayerParameters], parameters: Mapping[str, nn.Parameter]) -> list[list[int]]:
    """Numbers of neighbouring layers of one module that together are no larger than the largest layer.

    They are brought together and let go at once: fewer messages, and no more memory than the largest layer needs.
    """
    sizes = [sum(parameters[name].nbytes for name in layer.names) for layer in layers]
    found: list[list[int]] = []
    most, room = max(sizes, default=0), 0
    for number, (layer, size) in enumerate(zip(layers, sizes, strict=True)):
        if number and size <= room and layer.parent == layers[number - 1].parent:
            found[-1].append(number)
            room -= size
        else:
            found.append([number])
            room = most - size
    return found
