"""docs/compatibility.md: which strategy goes with which codec, graph, layout, mesh and optimizer, asked of the code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from covey import catalog, topology
from covey.central.layouts import LAYOUTS
from covey.errors import PlanError
from covey.exchange.codecs.by_name import CODECS
from covey.model.optimizers import MakeOptimizer

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
WORKERS = 4


class Lars(torch.optim.SGD):
    """Each whole parameter moves in proportion to its norm over its gradient's (You et al. 2017), with momentum."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        with torch.no_grad():
            for group in self.param_groups:
                for w in (w for w in group["params"] if w.grad is not None):
                    size, slope, decay = float(w.norm()), float(w.grad.norm()), group["weight_decay"]
                    trust = size / (slope + decay * size) if size > 0 and slope > 0 else 1.0
                    moved = self.state[w].setdefault("momentum_buffer", torch.zeros_like(w))
                    moved.mul_(group["momentum"]).add_(w.grad.add(w, alpha=decay), alpha=trust * group["lr"])
                    w.sub_(moved)


class Lamb(torch.optim.Optimizer):
    """Adam's direction, as long as each whole parameter's norm allows (You et al. 2020)."""

    def __init__(self, params: Any, lr: float, weight_decay: float = 0.01) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.999), "weight_decay": weight_decay})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        with torch.no_grad():
            for group in self.param_groups:
                for w in (w for w in group["params"] if w.grad is not None):
                    self._move(w, group)

    def _move(self, w: torch.Tensor, group: dict[str, Any]) -> None:
        state, (one, two) = self.state[w], group["betas"]
        if not state:
            state.update(step=torch.zeros(()), m=torch.zeros_like(w), v=torch.zeros_like(w))
        assert w.grad is not None
        state["step"] += 1
        state["m"].lerp_(w.grad, 1 - one)
        state["v"].lerp_(w.grad.square(), 1 - two)
        m, v = state["m"] / (1 - one ** float(state["step"])), state["v"] / (1 - two ** float(state["step"]))
        way = m / (v.sqrt() + 1e-6) + group["weight_decay"] * w
        size, length = float(w.norm()), float(way.norm())
        w.sub_(way, alpha=group["lr"] * (size / length if size > 0 and length > 0 else 1.0))


OPTIMIZERS: Mapping[str, MakeOptimizer] = {
    "SGD, momentum": lambda pairs: torch.optim.SGD(pairs, lr=0.05, momentum=0.9, weight_decay=1e-4),
    "Adam, groups": lambda pairs: torch.optim.Adam(grouped(pairs, 0.01)),
    "AdamW, groups": lambda pairs: torch.optim.AdamW(grouped(pairs, 0.01)),
    "LARS": lambda pairs: Lars(grouped(pairs, 0.01), momentum=0.9),
    "LAMB": lambda pairs: Lamb(pairs, lr=0.01),
}

REFUSES = {
    ("bigdl", "LARS"): "use an element-wise optimizer",
    ("bigdl", "LAMB"): "use an element-wise optimizer",
    ("one_weird_trick", "LARS"): "use an element-wise optimizer",
    ("one_weird_trick", "LAMB"): "use an element-wise optimizer",
    **{
        (name, optimizer): "SGD without momentum"
        for name in ("hogwild", "hogwild++")
        for optimizer in ("Adam, groups", "AdamW, groups", "LAMB")
    },
}
"""Optimizers that a strategy refuses, and what its reason says would work."""


def grouped(pairs: Any, lr: float) -> list[dict[str, Any]]:
    """Biases without decay and at twice the rate, as people do."""
    listed = list(pairs)
    groups = [
        {"params": [(n, p) for n, p in listed if not n.endswith("bias")], "weight_decay": 0.01, "lr": lr},
        {"params": [(n, p) for n, p in listed if n.endswith("bias")], "weight_decay": 0.0, "lr": 2 * lr},
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


CLIPS = {
    "each gradient": "each gradient", "each update": "each update",
    "each update of one server": "each update, with 1 server", "never": "-",
}  # fmt: skip


def page() -> str:
    """The tables, as documentation."""
    over = [graph for graph in (*topology.GRAPHS, *LAYOUTS) if graph != "matrix"]
    lines = [
        "# Compatibility", "",
        f"Generated for {WORKERS} workers. Other combinations are refused before anything starts, with the reason.",
        "Every strategy runs on both engines (`local`, `simulated`). Every pair of these tables runs in",
        "`tests/behaviour/test_compatibility.py`. The codecs: " + ", ".join(f"`{name}`" for name in CODECS) + ".", "",
        "| strategy | codecs | over | `with mesh` |", "|---|---|---|---|",
    ]  # fmt: skip
    for name in catalog.names():
        codecs = [codec for codec in CODECS if refused(f"{name} + {codec}")]
        graphs = [graph for graph in over if not refused(f"{name} over {graph}")]
        cuts = "-" if refused(f"{name} with mesh(stage=2)") else "yes"
        lines.append(f"| `{name}` | {_all_but(codecs)} | {', '.join(graphs) or '-'} | {cuts} |")
    return "\n".join([*lines, *training()]) + "\n"


def _all_but(codecs: list[str]) -> str:
    if len(codecs) == len(CODECS):
        return "-"
    return f"all but {', '.join(codecs)}" if codecs else "all"


def training() -> list[str]:
    """What a task may ask for: optimizers, clipping, batch-norm."""
    lines = [
        "", "## Task features", "",
        f"Optimizers tried: {'; '.join(OPTIMIZERS)}; each with a schedule of the learning rate.",
        "Groups differ in rate and weight decay; LARS and LAMB look at whole parameters.", "",
        "`clip_norm` clips each worker's own gradient, or that of an update by its norm over all servers.",
        "`nn.BatchNorm`, with each worker's own statistics, works wherever no part of a batch is a single sample;",
        "`nn.SyncBatchNorm` works where all workers take each step together, at equal weights.", "",
        "| strategy | refuses | `clip_norm` | `nn.SyncBatchNorm` |", "|---|---|---|---|",
    ]  # fmt: skip
    for name in catalog.names():
        strategy = catalog.resolve(name, WORKERS)
        refuses = [optimizer for other, optimizer in REFUSES if other == name]
        synchronized = any(role.one_batch for role in strategy.layout(WORKERS, None))
        clips = CLIPS[strategy.terms.clips]
        lines.append(f"| `{name}` | {'; '.join(refuses) or '-'} | {clips} | {'yes' if synchronized else '-'} |")
    return lines
