"""What must hold on a GPU, by hand, also where there is no pytest: `PYTHONPATH=src python -m tests.on_gpu [cuda]`.

Every codec gives the numbers that it gives on the CPU; strategies end with the weights of the CPU; a task whose model
and data lie on the CPU trains on the card with `device="cuda"`, to the same weights, compiled or not; a model that is
cut into two processes on one card has the losses and weights of the uncut one; processes on one card sum there, with
the bits of the processor. Needs a CUDA device; with `cpu` instead
of `cuda` it only tries itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import covey
from covey import Task
from covey.vector import Vector

DEVICE, DROP = os.environ.get("ON_GPU", "cuda"), float(os.environ.get("ON_GPU_DROP", "0"))
LOSSES = os.environ.get("ON_GPU_LOSSES", "")
WORDS, WIDTH, LENGTH = 256, int(os.environ.get("ON_GPU_WIDTH", "512")), 128
STEPS = int(os.environ.get("ON_GPU_STEPS", "50"))
STRATEGIES = (
    "local_sgd(period=2)", "bsp", "allreduce", "allreduce(bucket=4MB)", "local_sgd(period=2) + int8", "asynchronous",
)  # fmt: skip
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
routed = replace(moved, model=with_experts)
plain = Task(model=perceptron, data=(X, Y), optimizer=sgd, loss=nn.CrossEntropyLoss(), batch_size=32)


def weights_of(
    task: str, spec: str, workers: int, steps: int, **settings: str
) -> tuple[dict[str, Tensor], list[float]]:
    """What a run ends with, and the losses of its last batches."""
    with tempfile.TemporaryDirectory() as place:
        model, losses = Path(place) / "model.safetensors", Path(place) / "losses"
        asked = (
            f"covey.fit({str(Path(__file__)) + ':' + task!r}, {spec!r}, {workers}, steps={steps}, save={str(model)!r})"
        )
        more = {"ON_GPU_LOSSES": str(losses), "PYTHONPATH": os.pathsep.join(["src", ".", *sys.path]), **settings}
        subprocess.run([sys.executable, "-c", f"import covey; {asked}"], env={**os.environ, **more}, check=True)
        from covey.model import scored

        told = [float(line) for line in losses.read_text().splitlines()] if losses.exists() else []
        return scored.read(model), told


def apart(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def check(title: str, found: float, most: float) -> int:
    print(f"{'BROKEN ' if not found <= most else ''}{title}: {found:.1e} apart", flush=True)
    return int(not found <= most)


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
            broken += check(f"{spec}{'' if made is codec(spec) else ', error feedback'}", worst, 1e-6)
    return broken


def strategies() -> int:
    broken = 0
    for spec in STRATEGIES:
        workers = 1 if spec == "asynchronous" else 2
        there, here = (weights_of("plain", spec, workers, 12, ON_GPU=device)[0] for device in (DEVICE, "cpu"))
        broken += check(spec, apart(there, here), 1e-4 if "+" in spec else 1e-6)
    return broken


def devices() -> int:
    """Models and batches that covey moves; on several cards each worker has its own."""
    broken = 0
    there = weights_of("moved", "allreduce", 2, 12, ON_GPU=DEVICE)[0]
    here = weights_of("plain", "allreduce", 2, 12, ON_GPU="cpu")[0]
    broken += check("device=: moved by covey", apart(there, here), 1e-6)
    served = weights_of("moved", "bsp", 2, 12, ON_GPU=DEVICE)[0]
    broken += check("device=: with a server", apart(served, here), 1e-6)
    compiled = weights_of("compiled", "allreduce", 2, 12, ON_GPU=DEVICE)[0]
    return broken + check("device=: compiled", apart(compiled, here), 1e-4)


def shards() -> int:
    """Rows that live on the card, brought together for each step or layer."""
    here = weights_of("plain", "allreduce", 2, 12, ON_GPU="cpu")[0]
    found = [weights_of("moved", f"zero{zero}", 2, 12, ON_GPU=DEVICE)[0] for zero in (1, 2, 3)]
    return sum(check(f"zero={zero}", apart(one, here), 1e-6) for zero, one in enumerate(found, 1))


def sums() -> int:
    """Sums of processes that share the card, each of which must begin without it."""
    runs = (subprocess.run([sys.executable, "-m", "tests.gpu_sums", size], check=False) for size in ("2", "3"))
    return sum(done.returncode for done in runs)


def splits() -> int:
    """Layers whose slices live on the card: tensor=2 against one whole model."""
    divided = weights_of("moved", "allreduce with mesh(tensor=2)", 2, 12)[0]
    return check("tensor=2", apart(divided, weights_of("plain", "allreduce", 1, 12)[0]), 1e-5)


def experts() -> int:
    """Experts of two workers on the card, against two whole models on the card and on the processor."""
    divided = weights_of("routed", "allreduce with mesh(expert=2)", 2, 12)[0]
    whole, here = (weights_of("routed", "allreduce", 2, 12, ON_GPU=device)[0] for device in (DEVICE, "cpu"))
    return check("expert=2", apart(divided, whole), 1e-5) + check("experts, processor", apart(whole, here), 1e-5)


def pipelines() -> int:
    broken = 0
    for cut, drop in CUTS.items():
        parts = 4 if "microbatches" in cut else 1
        model, told = weights_of("text", f"allreduce with mesh(stage=2, {cut})", 2, STEPS, ON_GPU_DROP=drop)
        uncut, losses = weights_of("text", "allreduce", 1, STEPS, ON_GPU_DROP=drop)
        told = told[-STEPS * parts :]  # the cut itself was looked for before
        means = [sum(told[first : first + parts]) / parts for first in range(0, len(told), parts)]
        worst = max(abs(a - b) for a, b in zip(means, losses[-STEPS:], strict=True))
        broken += check(f"{cut}: losses", worst, 1e-5) + check(f"{cut}: weights", apart(model, uncut), 1e-5)
    return broken


if __name__ == "__main__":
    os.environ["ON_GPU"] = DEVICE = sys.argv[1] if len(sys.argv) > 1 else DEVICE
    parts = {"codecs": codecs, "strategies": strategies, "devices": devices, "shards": shards}
    parts |= {"sums": sums, "splits": splits, "experts": experts, "pipelines": pipelines}
    sys.exit(min(1, sum(parts[name]() for name in (sys.argv[2:] or parts))))
