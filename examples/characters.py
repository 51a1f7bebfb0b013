"""A small GPT that learns to write verse, character by character: sonnets of Shakespeare's, typed from memory.

Cut in two: covey run examples/characters.py --strategy "allreduce with mesh(stage=2)" --workers 2 --until "bits<=3"
"""

import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import covey

WINDOW = 64  # characters that the model looks back, at most
text = (Path(__file__).parent / "characters.txt").read_text()
letters = sorted(set(text))
numbers = torch.tensor([letters.index(letter) for letter in text])


def windows(part: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    """Pieces of the text, and for each of their characters the next one."""
    pieces = part.unfold(0, WINDOW + 1, stride)
    return pieces[:, :-1].contiguous(), pieces[:, 1:].contiguous()


class Embedding(nn.Module):
    """Which character, and where in the window."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.letter, self.place = nn.Embedding(len(letters), width), nn.Embedding(WINDOW, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.letter(x) + self.place.weight[: x.shape[1]]


class Block(nn.Module):
    """Look back with several heads, then think about what was seen."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.ask, self.answer = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        parts = self.ask(self.before(x)).view(batch, time, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.answer(seen.transpose(1, 2).reshape(batch, time, width))
        return x + self.narrow(F.gelu(self.widen(self.between(x))))


def gpt(width: int = 64, blocks: int = 4) -> nn.Sequential:
    """An nn.Sequential can be cut between any two of its modules."""
    middle = (Block(width) for _ in range(blocks))
    return nn.Sequential(Embedding(width), *middle, nn.LayerNorm(width), nn.Linear(width, len(letters)))


def loss(output: Tensor, following: Tensor) -> Tensor:
    """Of all characters of all windows."""
    return F.cross_entropy(output.flatten(0, 1), following.flatten())


def score(model: nn.Module) -> dict[str, float]:
    """On sonnets that it has not seen: bits for a character. To know nothing but the alphabet takes nearly 6."""
    with torch.no_grad():
        found = float(loss(model(unseen[0]), unseen[1]))
    return {"loss": found, "bits": found / math.log(2)}


cut = len(numbers) * 9 // 10
unseen = windows(numbers[cut:], WINDOW)
task = covey.Task(
    model=gpt,
    data=windows(numbers[:cut], stride=8),
    optimizer=lambda params: torch.optim.AdamW(params, lr=3e-3),
    loss=loss,
    batch_size=32,
    evaluate=score,
)
