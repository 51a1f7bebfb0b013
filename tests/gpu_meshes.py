"""What divided models must keep on a GPU, by hand: `PYTHONPATH=src:. python -m tests.gpu_meshes [cuda] [part]...`.

All members share one card. `chance`: weights after 20 steps in double precision are those of whole models on the card,
with dropout and batch-norm. `processor`: without chance, those of whole models on the processor. The GPU is kept behind
in both, so that a missing wait between streams shows as a wrong number. `words`: a transformer of a usual size whose
layers are divided ends, with the uncut one's weights. `memory`: what the allocator has given at most is what the table
of docs/models.md says. A run that does not end is named and ended. With `cpu` it only tries itself.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import covey
from covey import Task
from tests.gpu_runs import AT_ONCE, Weights, trained
from tests.on_gpu import DEVICE, TEXT, sgd, step, text, transformer
from tests.parallelism.models import Transformer, cnn
from tests.parallelism.split_models import Translator, mlp

DRAWS, MEMORY = os.environ.get("ON_GPU_CHANCE", "1") == "1", os.environ.get("ON_GPU_MEMORY", "")
STEPS = int(os.environ.get("ON_GPU_STEPS", "20"))
BEHIND = 20_000_000  # cycles that the GPU is behind when a backward begins: about 10 ms
PAIRS = [  # meshes and models
    ("shard=2, zero=1", "images"), ("shard=2, zero=2", "tied"), ("shard=2, zero=3", "gpt"), ("shard=2", "images"),
    ("shard=3, zero=3", "tied"), ("tensor=2", "gpt"), ("tensor=2", "images"), ("tensor=2", "translator"),
    ("tensor=3", "translator"), ("expert=2", "routed"), ("stage=2, cut=1", "perceptron"), ("replica=2, shard=2", "gpt"),
    ("shard=2, tensor=2", "tied"), ("shard=2, tensor=2, zero=1", "images"), ("stage=2, tensor=2", "gpt"),
    ("expert=2, tensor=2", "routed"), ("stage=2, shard=2, cut=1", "perceptron"),
]  # fmt: skip
PLAIN = [
    ("shard=2, zero=1", "gpt"), ("shard=2, zero=2", "gpt"), ("shard=2, zero=3", "gpt"), ("shard=2, zero=3", "images"),
    ("tensor=2", "gpt"), ("tensor=2", "translator"), ("expert=2", "routed"), ("shard=2, tensor=2", "images"),
]  # fmt: skip
TABLE = {"none": 16.0, "zero=1": 16.0, "zero=2": 12.0, "zero=3": 8.0}  # bytes per parameter: fp32, Adam, two members


class Routed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 16), nn.Linear(16, 3)
        self.experts, self.drop = covey.nn.Experts(lambda: nn.Linear(16, 16), experts=4, top=2), nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.flatten(1))
        found: Tensor = self.last(self.drop(x + self.experts(x)))
        return found


def made(make: Callable[[], nn.Module]) -> nn.Module:
    """In double precision, and without chance where none is wanted."""
    model = make().double()
    for module in model.modules():
        if not DRAWS and isinstance(module, nn.Dropout):
            module.p = 0.0
        if not DRAWS and hasattr(module, "rate"):
            module.rate = 0.0  # of the attention that is written out
    return model


def loss(scores: Tensor, target: Tensor) -> Tensor:
    found = F.cross_entropy(scores.flatten(0, -2), target.flatten())
    if scores.is_cuda:
        torch.cuda._sleep(BEHIND)
    return found


def task(make: Callable[[], nn.Module], data: tuple[Tensor, ...]) -> Task:
    return Task(
        model=lambda: made(make), data=data, loss=loss, optimizer=sgd, batch_size=6,
        device=DEVICE if DEVICE != "cpu" else None,
    )  # fmt: skip


CHANCE = torch.Generator().manual_seed(4)
WORDS = torch.randint(0, 11, (240, 5), generator=CHANCE), torch.randint(0, 11, (240, 5), generator=CHANCE)
IMAGES = torch.randn(240, 1, 8, 8, dtype=torch.float64, generator=CHANCE), torch.randint(0, 3, (240,), generator=CHANCE)
gpt, tied = task(Transformer, WORDS), task(lambda: Transformer(tied=True), WORDS)
translator, routed = task(Translator, WORDS), task(Routed, IMAGES)
images, perceptron = task(cnn, IMAGES), task(mlp, IMAGES)


def told(model: nn.Module, batch: tuple[Tensor]) -> Tensor:
    """A step that writes down what the allocator has given since the last one, at most, and gives now."""
    if DEVICE != "cpu" and MEMORY:
        torch.cuda.synchronize()
        most, now = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        with open(f"{MEMORY}/{os.getpid()}", "a") as file:
            print(json.dumps([most, now]), file=file)
    return step(model, batch)


lean = Task(
    model=transformer, data=(TEXT,), step=told, batch_size=4,
    optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-4, fused=True),
)  # fmt: skip
divided = replace(text, batch_size=8)


def ended(which: str, spec: str, workers: int, steps: int, **settings: str) -> Weights:
    return trained(__file__, which, spec, workers, steps, **settings).weights


def apart(one: Weights, other: Weights) -> float:
    """The largest difference of a number, over the largest number of its tensor."""
    floats = [name for name, tensor in other.items() if tensor.is_floating_point()]
    return max(float((one[name] - other[name]).abs().max() / other[name].abs().max().clamp(1e-12)) for name in floats)


class Meshes:
    """Runs of whole models, each done once, and the divided ones beside them."""

    def __init__(self) -> None:
        self.whole, self.lock = cache(self._whole), Lock()
        self.broken = 0

    def _whole(self, which: str, spec: str, workers: int, device: str, chance: str) -> Weights:
        return ended(which, spec, workers, STEPS, ON_GPU=device, ON_GPU_CHANCE=chance)

    def check(self, mesh: str, which: str, device: str, chance: str) -> None:
        sizes: dict[str, Any] = dict(part.split("=") for part in mesh.split(", ") if "=" in part)
        axes = {name: int(sizes.get(name, 1)) for name in ("replica", "stage", "shard", "expert", "tensor")}
        batches, members = axes["replica"] * axes["shard"] * axes["expert"], 1
        for size in axes.values():
            members *= size
        reference = f"allreduce with mesh(replica={batches}, stage=1)" if "stage" in mesh else "allreduce"

        def differ() -> float:
            found = ended(which, f"allreduce with mesh({mesh})", members, STEPS, ON_GPU_CHANCE=chance)
            return apart(found, self.whole(which, reference, batches, device, chance))

        self.tell(f"{which} with mesh({mesh}) and whole models on the {device}", differ, 1e-10)

    def tell(self, title: str, differ: Callable[[], float], most: float) -> None:
        begun = time.monotonic()
        try:
            found = differ()
        except Exception as error:
            line, good = f"{title}: {error}", False
        else:
            line, good = f"{title}: {found:.1e} apart (at most {most:.0e})", found <= most
        with self.lock:
            self.broken += not good
            print(f"{'' if good else 'BROKEN '}{line}, {time.monotonic() - begun:.0f} s", flush=True)

    def chance(self) -> list[Callable[[], None]]:
        return [lambda mesh=mesh, which=which: self.check(mesh, which, DEVICE, "1") for mesh, which in PAIRS]

    def processor(self) -> list[Callable[[], None]]:
        return [lambda mesh=mesh, which=which: self.check(mesh, which, "cpu", "0") for mesh, which in PLAIN]

    def words(self) -> list[Callable[[], None]]:
        """With and without dropout; single precision."""
        def differ(drop: str, mesh: str, members: int) -> float:
            there = ended("divided", f"allreduce with mesh({mesh})", members, 12, ON_GPU_DROP=drop)
            return apart(there, ended("divided", "allreduce", 1, 12, ON_GPU_DROP=drop))

        asked = [("0", "tensor=2", 2), ("0.1", "tensor=2", 2), ("0.1", "tensor=4", 4)]
        return [
            lambda drop=drop, mesh=mesh, members=members: self.tell(
                f"transformer with mesh({mesh}), dropout {drop}, and uncut", lambda: differ(drop, mesh, members), 1e-4
            )
            for drop, mesh, members in asked
        ]  # fmt: skip

    def memory(self) -> list[Callable[[], None]]:
        """Bytes of a parameter: while a step is begun, and at most, beyond what batches need of whole models."""
        return [self._memory]

    def _memory(self) -> None:
        width = {"ON_GPU_WIDTH": "1024"} if DEVICE != "cpu" else {"ON_GPU_WIDTH": "64"}
        found: dict[str, tuple[int, int]] = {}
        count = largest = 0
        for name in TABLE:
            spec = "allreduce" if name == "none" else f"allreduce with mesh(shard=2, {name})"
            with tempfile.TemporaryDirectory() as place:
                model = ended("lean", spec, 2, 6, ON_GPU_MEMORY=place, **width)
                count, largest = sum(x.numel() for x in model.values()), max(x.numel() for x in model.values())
                rows = [[json.loads(line) for line in file.read_text().splitlines()] for file in Path(place).iterdir()]
                rows = [each for each in rows if len(each) > 2]
                if not rows:
                    print("memory: the allocator of a GPU was not asked", flush=True)
                    return
                found[name] = max(each[-1][0] for each in rows), max(each[-1][1] for each in rows)
        batch = found["none"][0] - TABLE["none"] * count
        for name, (most, now) in found.items():
            expected = TABLE[name] * count + batch + (8 * largest if name == "zero=3" else 0)
            good = most <= 1.02 * expected
            self.broken += not good
            words = "" if good else "BROKEN "
            print(
                f"{words}memory, {name}, {count / 1e6:.0f} million parameters: bytes of a parameter: {now / count:.2f} "
                f"while a step begins, {most / count:.2f} at most, {(most - batch) / count:.2f} of it not for batches "
                f"({TABLE[name]:.0f} in the table); {most / expected:.3f} of what is expected", flush=True,
            )  # fmt: skip


def main(wanted: list[str]) -> int:
    meshes = Meshes()
    parts = {"memory": meshes.memory, "words": meshes.words, "chance": meshes.chance, "processor": meshes.processor}
    begun = time.monotonic()
    for name in wanted or parts:
        with ThreadPoolExecutor(1 if name == "memory" else AT_ONCE) as pool:
            for done in [pool.submit(work) for work in parts[name]()]:
                done.result()
        print(f"{name}: {time.monotonic() - begun:.0f} s since the beginning", flush=True)
    print(f"{meshes.broken} BROKEN" if meshes.broken else "all as it should be", flush=True)
    return min(1, meshes.broken)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        os.environ["ON_GPU"] = DEVICE = sys.argv[1]
    sys.exit(main(sys.argv[2:]))
