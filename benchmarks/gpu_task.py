"""A GPT on a GPU, for `benchmarks.gpu`: in bf16, compiled or not, with a clock at the beginning of every step.

What it is comes from the environment, because roles are processes of their own: GPU_SHAPE (layers, width, vocabulary,
length), GPU_BATCH, GPU_COMPILE (a mode, or nothing), GPU_WAY (of exchanging: see WAYS); files: GPU_CLOCK, GPU_PROFILE.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from covey import Task

LAYERS, WIDTH, WORDS, LENGTH = (int(n) for n in os.environ.get("GPU_SHAPE", "6,1024,24576,512").split(","))
BATCH = int(os.environ.get("GPU_BATCH", "16"))
COMPILE = os.environ.get("GPU_COMPILE", "")
HEAD = 64  # numbers of an attention head


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.look, self.join = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.think = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:2], 3, WIDTH // HEAD, HEAD)
        query, key, value = self.look(self.before(x)).view(shape).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.join(seen.transpose(1, 2).reshape(x.shape))
        return x + self.think(self.after(x))


class Gpt(nn.Module):
    """Gives the loss of a batch of texts, so that all of it can be compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.last = nn.LayerNorm(WIDTH)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, text: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            x = self.words(text) + self.places.weight
            guess = self.last(self.blocks(x)) @ self.words.weight.T
            return F.cross_entropy(guess[:, :-1].reshape(-1, WORDS).float(), text[:, 1:].reshape(-1))


def model() -> nn.Module:
    gpt = Gpt().cuda()
    if COMPILE:
        gpt.compile(mode=None if COMPILE == "default" else COMPILE)
    return gpt


class Clock:
    """When each step began: on the GPU, and on the wall."""

    def __init__(self) -> None:
        self.file = os.environ.get("GPU_CLOCK", "")
        self.steps = int(os.environ.get("GPU_STEPS", "0"))
        self.events: list[torch.cuda.Event] = []
        self.wall: list[float] = []

    def tick(self) -> None:
        self.events.append(torch.cuda.Event(enable_timing=True))
        self.events[-1].record()
        self.wall.append(time.perf_counter())
        if PROFILE and len(self.events) in (40, 50):
            profile(len(self.events) == 40)
        if len(self.events) == self.steps and self.file:
            torch.cuda.synchronize()
            pairs = zip(self.events, self.events[1:], strict=False)
            told = {"gpu": [a.elapsed_time(b) for a, b in pairs], "wall": self.wall}
            with open(f"{self.file}.{os.getpid()}", "w") as file:
                json.dump(told, file)


PROFILE = os.environ.get("GPU_PROFILE", "")
PROFILED: list[Any] = []


def profile(begin: bool) -> None:
    """Ten steps as torch's profiler sees them, in a file."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    if begin:
        PROFILED.append(profiled(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]))
        PROFILED[0].start()
    else:
        PROFILED[0].stop()
        PROFILED[0].export_chrome_trace(PROFILE)


CLOCK = Clock()


def step(model: nn.Module, batch: Any) -> Tensor:
    CLOCK.tick()
    loss: Tensor = model(batch[0])
    return loss


def optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4, fused=True)


def texts() -> Tensor:
    return torch.randint(WORDS, (4096, LENGTH), generator=torch.Generator().manual_seed(0)).cuda()


def as_before() -> None:
    """Exchange on the stream of the computing, through memory that is not pinned, waiting for every copy."""
    from covey.engines.process.role import role_process, shared_sum
    from covey.engines.transport import outbox
    from covey.engines.transport.shared import blocks as shared_blocks

    role_process.lane_of = lambda vector: None
    shared_blocks.pin = lambda address, size: None
    shared_blocks.brought = lambda tensor, to: to.copy_(tensor.detach())
    outbox.staged = lambda tensor: tensor.cpu()
    outbox.arrival = lambda tensors, size: None
    shared_sum.SharedSum.take = lambda self, program, effect: False


def through_the_processor() -> None:
    """Sum through pinned memory, though the roles are on one GPU."""
    from covey.engines.gpu.gpu_memory import GpuMemory

    GpuMemory.place = lambda self, parts, group: None  # type: ignore[method-assign]


WAYS = {"": lambda: None, "staged": through_the_processor, "unpinned": as_before}
WAYS[os.environ.get("GPU_WAY", "")]()

task = Task(model=model, data=(texts(),), optimizer=optimizer, step=step, batch_size=BATCH)
