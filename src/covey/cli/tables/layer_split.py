"""Divided layers as a table on the output, and as JSON: by what each is divided, and what stays whole."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import nn

from covey.parallelism.plan.mesh import Mesh
from covey.parallelism.tensor.split_plan import SplitPlan
from covey.simulate.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSplits:
    """A plan, beside the model that it divides."""

    task: str
    mesh: Mesh
    model: nn.Module
    plan: SplitPlan

    @property
    def command(self) -> str:
        """What runs it."""
        return f"covey run {self.task} --strategy 'allreduce with {self.mesh}' --workers {self.mesh.tensors}"

    def layers(self) -> list[dict[str, Any]]:
        """By what each divided layer is divided, into how many units, and the bytes of its weights."""
        found = []
        for name, kind in self.plan.kinds.items():
            layer = self.model.get_submodule(name)
            weight = layer.get_parameter("weight")
            called = next(key for key, one in self.model.named_parameters() if one is weight)
            size = sum(p.numel() * p.element_size() for p in layer.parameters(recurse=False))
            blocks = [list(block) for block in self.plan.layouts[called].blocks]
            found.append({"name": name, "kind": kind, "blocks": blocks, "bytes": size})
        return found

    def bytes(self) -> tuple[int, int]:
        """Of all parameters, and of those that are divided."""
        sizes = {name: p.numel() * p.element_size() for name, p in self.model.named_parameters()}
        return sum(sizes.values()), sum(size for name, size in sizes.items() if name in self.plan.layouts)

    def to_json(self) -> str:
        """`covey.split/1`."""
        whole, divided = self.bytes()
        facts = {
            "schema": "covey.split/1", "task": self.task, "tensor": self.mesh.tensors, "split": self.mesh.split,
            "layers": self.layers(), "bytes": whole, "divided": divided, "exchanges": self.plan.turns,
            "notes": self.plan.notes, "command": self.command,
        }  # fmt: skip
        return json.dumps(facts, indent=1) + "\n"


def print_splits(console: Console, found: LayerSplits) -> None:
    """Print the divided layers, what a worker has of the model, and what stays whole."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("layer", overflow="fold")
    for column in ("divided by", "units", "weights"):
        table.add_column(column, justify="right", no_wrap=True)
    for layer in found.layers():
        units = " + ".join(str(units) if size == 1 else f"{units} x {size}" for units, size in layer["blocks"])
        table.add_row(layer["name"], layer["kind"], units, format_bytes(layer["bytes"]))
    whole, divided = found.bytes()
    members = found.mesh.tensors
    facts = Table.grid(padding=(0, 2, 0, 0))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    each = format_bytes(whole - divided + divided / members)
    facts.add_row("weights", Text(f"{each} on each of {members} workers; the whole model has {format_bytes(whole)}"))
    facts.add_row("exchanges", Text(f"{found.plan.turns} in a step, forward and backward"))
    for note in found.plan.notes:
        facts.add_row("note", Text(note))
    facts.add_row("run", Text(found.command))
    for part in (table, "", facts):
        console.print(part)
