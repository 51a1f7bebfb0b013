"""The scripts of examples/loops as they were before they knew of covey, and how they are run."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, SequentialSampler

from covey.run.own_loop.loading import Loader, SampleShare, Sizes
from covey.run.own_loop.position import Pass, Position

LOOPS = Path(__file__).parents[2] / "examples" / "loops"
MODELS = {
    "imagenet": ["model"],
    "gpt": ["model"],
    "gan": ["generator", "discriminator"],
    "early_stopping": ["model"],
    "fine_tune": ["model"],
}
BATCH = {"gpt": 4}
ADDED, WAS = re.compile(r"  # added(: .*)?$"), re.compile(r"^( *)(?!#).*  # was: (.*)$")


def plain(name: str) -> tuple[str, int]:
    """The script as it was before it knew of covey, and how many of its lines were changed."""
    kept: list[str] = []
    lines = (LOOPS / f"{name}.py").read_text().splitlines()
    changed, inside = 0, False
    for line in lines:
        if ADDED.search(line):
            inside = inside or line.startswith("with covey.join(")
            changed += not line.startswith("with covey.join(")
        elif found := WAS.match(line):
            changed += 1
            kept.append((found[1] + found[2]).removeprefix("    " if inside else ""))
        elif line != "import covey":
            kept.append(line.removeprefix("    ") if inside else line)
    return "\n".join(kept), changed


class Alone:
    """A worker whose loaders read in the order of a run."""

    rank, workers, seed, epoch = 0, 1, 0, 0

    def _begin_pass(self) -> Pass:
        self.epoch += 1
        return Pass(Position(), 0, self.epoch - 1)

    def _reads(self, order: int, fingerprint: str, loader: Any = None) -> None:
        pass

    def _pulled(self, sizes: Sizes) -> bool:
        return True


def doubled(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> dict[str, Tensor]:
    """Where the plain script ends with the doubled batch."""
    script = folder / f"plain_{name}.py"
    script.write_text(plain(name)[0])
    return weights(name, play(script, monkeypatch, *arguments, "--batch-size", str(2 * batch(name))))


def batch(name: str) -> int:
    return BATCH.get(name, 8)


def play(script: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> dict[str, Any]:
    """Run a plain script, whose shuffled loaders are given the order that those of a run have."""
    reader, iterate = Alone(), DataLoader.__iter__

    def in_order(loader: DataLoader[Any]) -> Iterator[Any]:
        if isinstance(loader.batch_sampler, SampleShare) or isinstance(loader.sampler, SequentialSampler):
            return iterate(loader)
        return iter(Loader(reader, loader))

    monkeypatch.setattr(DataLoader, "__iter__", in_order)
    monkeypatch.setattr(sys, "argv", [str(script), *arguments])
    dtype = torch.get_default_dtype()
    try:
        return runpy.run_path(str(script), run_name="__main__")
    finally:
        torch.set_default_dtype(dtype)
        monkeypatch.undo()


def weights(name: str, found: dict[str, Any]) -> dict[str, Tensor]:
    """Of all its models, as a run of several names them."""
    models = [(f"{place}." if len(MODELS[name]) > 1 else "", found[one]) for place, one in enumerate(MODELS[name])]
    return {before + key: value for before, model in models for key, value in model.state_dict().items()}


def apart(mine: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    assert mine.keys() == theirs.keys()
    return max(float((mine[key].double() - theirs[key].double()).abs().max()) for key in mine)
