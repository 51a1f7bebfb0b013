"""What must hold on a GPU, by hand, also where there is no pytest: `PYTHONPATH=src python -m tests.on_gpu [cuda]`.

Every codec gives the numbers that it gives on the CPU; strategies end with the weights of the CPU; a task whose model
and data lie on the CPU trains on the card with `device="cuda"`, to the same weights, compiled or not; a model that is
cut into two processes on one card has the losses and weights of the uncut one; processes on one card sum there, with
the bits of the processor. Four runs train at a time (ON_GPU_RUNS). Needs a CUDA device; with `cpu` instead of `cuda`
it only tries itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import Future
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import covey
from covey import Task
from covey.vector import Vector
from tests.gpu_runs import Check, Runs, Trained, found, tell

DEVICE, DROP = os.environ.get("ON_GPU", "cuda"), float(os.environ.get("ON_GPU_DROP", "0"))
LOSSES = os.environ.get("ON_GPU_LOSSES", "")
WORDS, WIDTH, LENGTH = 256, int(os.environ.get("ON_GPU_WIDTH", "512")), 128
STEPS = int(os.environ.get("ON_GPU_STEPS", "50"))
STRATEGIES = (
    "local_sgd(period=2)", "bsp", "allreduce", "allreduce(bucket=4MB)", "local_sgd(period=2) + int8", "asynchronous",
)  # fmt: skip
BEHIND = 50_000_000  # cycles: about 25 ms
CUTS = {"timetable=1f1b, microbatches=4": "0", "timetable=gpipe, microbatches=4": "0", "timetable=plain": "0.1"}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.look, self.join = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.think = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(DROP)
        )

    def forward(self, x: Tensor) -> Tensor:
        shape = (x.shape[0], LENGTH, 3, 8, WIDTH // 8)
        query, key, value = self.look(self.before(x)).view(shape).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.join(seen.transpose(1, 2).reshape(x.shape))
        return x + self.think(self.after(x))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)

    def forward(self, text: Tensor) -> Tensor:
        found: Tensor = self.words(text) + self.places.weight
        return found


def transformer() -> nn.Module:
    layers = (Words(), *(Block() for _ in range(4)), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS))
    return nn.Sequential(*layers).to(DEVICE)


def step(model: nn.Module, batch: tuple[Tensor]) -> Tensor:
    guess = model(batch[0])
    loss = F.cross_entropy(guess[:, :-1].reshape(-1, WORDS), batch[0][:, 1:].reshape(-1))
    if LOSSES and loss.requires_grad:
        with open(LOSSES, "a") as file:
            print(loss.item(), file=file)
    return loss


def perceptron(device: str = DEVICE) -> nn.Module:
    """Of which a layer is large enough for a message that is not waited for."""
    layers = (nn.Linear(64, 2048), nn.Tanh(), nn.Linear(2048, 2048), nn.Tanh(), nn.Linear(2048, 2))
    return nn.Sequential(*layers).to(device)


def with_experts() -> nn.Module:
    layer = covey.nn.Experts(lambda: nn.Linear(128, 128), experts=4, top=2)
    return nn.Sequential(nn.Linear(64, 128), layer, nn.Linear(128, 2))


def sgd(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)  # type: ignore[arg-type]


class LateSgd(torch.optim.SGD):
    """Keeps its stream so far behind that whoever does not wait for it reads the weights of before."""

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        if DEVICE != "cpu":
            torch.cuda._sleep(BEHIND)
        super().step(closure)


def data() -> tuple[Tensor, Tensor, Tensor]:
    chance = torch.Generator().manual_seed(0)
    x = torch.randn(4096, 64, generator=chance)
    text = torch.randint(WORDS, (512, LENGTH), generator=chance)
    return x.to(DEVICE), (x[:, :8].sum(1) > 0).long().to(DEVICE), text.to(DEVICE)


X, Y, TEXT = data() if DEVICE == "cpu" or torch.cuda.is_available() else (torch.zeros(1),) * 3
text = Task(model=transformer, data=(TEXT,), optimizer=sgd, step=step, batch_size=16)
moved = Task(
    model=lambda: perceptron("cpu"), data=(X.cpu(), Y.cpu()), optimizer=sgd, loss=nn.CrossEntropyLoss(), batch_size=32,
    device=DEVICE,
)  # fmt: skip
compiled = replace(moved, compile=True)
late = replace(moved, optimizer=lambda parameters: LateSgd(parameters, lr=0.05, momentum=0.9))
routed = replace(moved, model=with_experts)
plain = Task(model=perceptron, data=(X, Y), optimizer=sgd, loss=nn.CrossEntropyLoss(), batch_size=32)


def apart(one: Trained, other: Trained) -> float:
    """The largest difference of two numbers of the weights."""
    return max(float((one.weights[name] - other.weights[name]).abs().max()) for name in one.weights)


def codecs() -> int:
    from covey.exchange.codec import error_feedback
    from tests.exchange.coders import SPECS, codec, form, normal, whole

    here, broken = form(), 0
    there = replace(here, like=here.like.map(lambda part: part.to(DEVICE)))
    for spec in (spec for spec in SPECS if not codec(spec).traits.measured):
        for made in (codec(spec), error_feedback(codec(spec))):
            pair, worst = (made.made(here, 3), made.made(there, 3)), 0.0
            memories = [one.memory for one in pair]
            for turn in range(3):
                x, came = normal(here, turn), list[Vector]()
                for place, (one, home) in enumerate(zip(pair, ("cpu", DEVICE), strict=True)):
                    wire, memories[place] = one.encode(x.map(lambda part, home=home: part.to(home)), memories[place])
                    came.append(one.decode(wire.map(lambda part: part.cpu())).map(lambda part: part.cpu()))
                worst = max(worst, float((whole(came[0]) - whole(came[1])).norm() / whole(came[0]).norm().clamp(1e-9)))
            title = spec if made is codec(spec) else f"{spec}, error feedback"
            broken += tell(f"{title}: {worst:.1e} apart", worst <= 1e-6)
    return broken


def sums() -> int:
    """Sums of processes that share the card, each of which must begin without it."""
    runs = (subprocess.run([sys.executable, "-m", "tests.gpu_sums", size], check=False) for size in ("2", "3"))
    return sum(done.returncode for done in runs)


def here(runs: Runs) -> Future[Trained]:
    """Two workers on the processor."""
    return runs("plain", "allreduce", 2, 12, ON_GPU="cpu")


def strategies(runs: Runs) -> list[Check]:
    def check(spec: str) -> Check:
        workers, most = 1 if spec == "asynchronous" else 2, 1e-4 if "+" in spec else 1e-6
        pair = [runs("plain", spec, workers, 12, ON_GPU=device) for device in (DEVICE, "cpu")]
        return Check(spec, pair, apart, most)

    return [check(spec) for spec in STRATEGIES]


def devices(runs: Runs) -> list[Check]:
    """Models and batches that covey moves; on several cards each worker has its own."""
    moved, served = (runs("moved", spec, 2, 12, ON_GPU=DEVICE) for spec in ("allreduce", "bsp"))
    compiled = runs("compiled", "allreduce", 2, 12, ON_GPU=DEVICE)
    late = [runs(task, "allreduce", 1, 12, ON_GPU=DEVICE) for task in ("late", "moved")]
    return [
        Check("device=: moved by covey", [moved, here(runs)], apart, 1e-6),
        Check("device=: with a server", [served, here(runs)], apart, 1e-6),
        Check("device=: compiled", [compiled, here(runs)], apart, 1e-4),
        Check("device=: the optimizer's stream is behind", late, apart, 0),
    ]


def shards(runs: Runs) -> list[Check]:
    """Rows that live on the card, brought together for each step or layer."""
    names = [f"zero{zero}" for zero in (1, 2, 3)]
    return [Check(name, [runs("moved", name, 2, 12, ON_GPU=DEVICE), here(runs)], apart, 1e-6) for name in names]


def splits(runs: Runs) -> list[Check]:
    """Layers whose slices live on the card: tensor=2 against one whole model."""
    pair = [runs("moved", "allreduce with mesh(tensor=2)", 2, 12), runs("plain", "allreduce", 1, 12)]
    return [Check("tensor=2", pair, apart, 1e-5)]


def experts(runs: Runs) -> list[Check]:
    """Experts of two workers on the card, against two whole models on the card and on the processor."""
    divided = runs("routed", "allreduce with mesh(expert=2)", 2, 12)
    whole, there = (runs("routed", "allreduce", 2, 12, ON_GPU=device) for device in (DEVICE, "cpu"))
    return [
        Check("expert=2", [divided, whole], apart, 1e-5),
        Check("experts, processor", [whole, there], apart, 1e-5),
    ]


def pipelines(runs: Runs) -> list[Check]:
    def checks(cut: str, drop: str) -> list[Check]:
        parts = 4 if "microbatches" in cut else 1

        def losses(cut: Trained, uncut: Trained) -> float:
            told = cut.losses[-STEPS * parts :]  # the cut itself was looked for before
            means = [sum(told[first : first + parts]) / parts for first in range(0, len(told), parts)]
            return max(abs(a - b) for a, b in zip(means, uncut.losses[-STEPS:], strict=True))

        specs = ((f"allreduce with mesh(stage=2, {cut})", 2), ("allreduce", 1))
        pair = [runs("text", spec, workers, STEPS, ON_GPU_DROP=drop, ON_GPU_LOSSES="kept") for spec, workers in specs]
        return [Check(f"{cut}: losses", pair, losses, 1e-5), Check(f"{cut}: weights", pair, apart, 1e-5)]

    return [check for cut, drop in CUTS.items() for check in checks(cut, drop)]


TRAINED = {"devices": devices, "pipelines": pipelines, "strategies": strategies, "shards": shards, "splits": splits}
TRAINED |= {"experts": experts}  # the longest first
ALONE = {"codecs": codecs, "sums": sums}


def main(wanted: list[str]) -> int:
    """Runs go on beside the codecs; the sums, whose times are told, have the card for themselves."""
    runs = Runs(__file__)
    checks = [check for name, part in TRAINED.items() if name in wanted for check in part(runs)]
    broken = codecs() if "codecs" in wanted else 0
    broken += found(checks)
    return broken + (sums() if "sums" in wanted else 0)


if __name__ == "__main__":
    os.environ["ON_GPU"] = DEVICE = sys.argv[1] if len(sys.argv) > 1 else DEVICE
    sys.exit(min(1, main(sys.argv[2:] or [*TRAINED, *ALONE])))
