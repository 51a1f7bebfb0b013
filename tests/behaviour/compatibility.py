"""Which strategy goes with which codec, graph, layout and optimizer: asked of the code itself.

`python -m tests.behaviour.compatibility` writes docs/compatibility.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from covey import catalog, topology
from covey.central.layouts import LAYOUTS
from covey.errors import PlanError
from covey.exchange.codec import CODECS
from covey.replica import MakeOptimizer

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
WORKERS = 4


class Layerwise(torch.optim.SGD):
    """Like LARS: the step of each whole parameter is scaled by its norm over its gradient's (You et al. 2017)."""

    elementwise = False

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        trust = parameter.norm() / (parameter.grad.norm() + 1e-8) if parameter.norm() > 0 else 1.0
                        parameter.add_(parameter.grad, alpha=-group["lr"] * float(trust))


OPTIMIZERS: Mapping[str, MakeOptimizer] = {
    "SGD": lambda pairs: torch.optim.SGD(pairs, lr=0.05),
    "SGD, momentum": lambda pairs: torch.optim.SGD(pairs, lr=0.05, momentum=0.9, weight_decay=1e-4),
    "AdamW, groups": lambda pairs: torch.optim.AdamW(grouped(pairs), lr=0.01),
    "layer-wise": lambda pairs: Layerwise(pairs, lr=0.01),
}


def grouped(pairs: Any) -> list[dict[str, Any]]:
    """Biases without decay, as people do."""
    listed = list(pairs)
    groups = [
        {"params": [(n, p) for n, p in listed if not n.endswith("bias")], "weight_decay": 0.01},
        {"params": [(n, p) for n, p in listed if n.endswith("bias")], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def refused(spec: str, workers: int = WORKERS) -> str:
    """Why a SPEC cannot work; empty when it can."""
    try:
        catalog.resolve(spec, workers)
    except PlanError as error:
        return str(error).rpartition("^ ")[2]
    return ""


def pairs() -> Iterator[tuple[str, str]]:
    """Every strategy with every codec, and over every graph and layout."""
    for name in catalog.names():
        for codec in CODECS:
            yield name, f"{name} + {codec}"
        for graph in (*topology.GRAPHS, *LAYOUTS):
            if graph != "matrix":  # needs a file of the user's
                yield name, f"{name} over {graph}"


def page() -> str:
    """The table, as documentation."""
    over = [graph for graph in (*topology.GRAPHS, *LAYOUTS) if graph != "matrix"]
    lines = [
        "# What goes with what", "",
        f"Asked of the code, for {WORKERS} workers; the rest is refused before anything starts, with the reason.",
        "Every strategy runs on both engines (`local`, `simulated`), and with SGD, momentum, AdamW with parameter",
        "groups and layer-wise optimizers, except that `bigdl` refuses layer-wise ones, and `hogwild` and `hogwild++`",
        "those with momentum. Every pair runs in `tests/behaviour/test_compatibility.py`.", "",
        "| strategy | codecs | over |", "|---|---|---|",
    ]  # fmt: skip
    for name in catalog.names():
        codecs = [codec for codec in CODECS if not refused(f"{name} + {codec}")]
        graphs = [graph for graph in over if not refused(f"{name} over {graph}")]
        lines.append(f"| `{name}` | {', '.join(codecs) or '-'} | {', '.join(graphs) or '-'} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
