"""Which parameters travel together: those of one layer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from covey.model.slots import names_of, trainable


@dataclass(frozen=True, slots=True)
class LayerParameters:
    """A module and the trained parameters that it holds itself, by their names in the whole model."""

    module: nn.Module
    names: tuple[str, ...]


def layers_of(module: nn.Module) -> list[LayerParameters]:
    """Every module that holds parameters itself; a tied parameter is in several of them."""
    called, trained = names_of(module), trainable([module])
    found = []
    for path, inner in module.named_modules():
        own = [f"{path}.{key}" if path else key for key, _ in inner.named_parameters(recurse=False)]
        names = dict.fromkeys(called[name] for name in own if called[name] in trained)
        if names:
            found.append(LayerParameters(inner, tuple(names)))
    return found
