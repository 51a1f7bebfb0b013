"""Models to cut: plain, with skips, with chance, with tied weights, and some that cannot be followed."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from covey.parallelism import cut_here


def mlp() -> nn.Module:
    """An activation in place, one that is used twice, and a nested Sequential."""
    bend = nn.Tanh()
    return nn.Sequential(
        nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Sequential(nn.Linear(8, 8), bend), nn.Linear(8, 3), bend
    )


def cnn() -> nn.Module:
    """Batch-norm, dropout, and an activation in place."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.4), nn.Linear(64, 3),
    )  # fmt: skip


class Block(nn.Module):
    """A transformer's block, written out: shapes, skips, dropout."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.back = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        parts = self.mix(self.first(x)).view(batch, time, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.back(mixed.transpose(1, 2).reshape(batch, time, width)))
        return x + self.narrow(F.gelu(self.wide(self.second(x))))


class Transformer(nn.Module):
    def __init__(self, tied: bool = False, depth: int = 2) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(11, 8), nn.Parameter(torch.randn(5, 8) * 0.1)
        self.blocks = nn.ModuleList(Block(8, 2) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 11, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x) + self.places[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


class Skip(nn.Module):
    """The input is used at the very end, a mask is an optional argument, and it gives two things in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        h = torch.relu(self.a(x))
        if mask is not None:
            h = h * mask
        g = self.b(h)
        return {"out": self.c(g + h) + x, "aux": h}


class Marked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        h = cut_here(self.a(x).relu())
        return self.c(cut_here(self.b(h).relu()) + h)


class Asks(nn.Module):
    """Asks a size: torch.fx cannot follow that, torch.export can."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self._marked(self.norm(self.a(x)))
        if x.shape[1] > 3:
            h = h * 2
        return self.b(h) + x

    def _marked(self, h: Tensor) -> Tensor:
        return h


class AsksMarked(Asks):
    def _marked(self, h: Tensor) -> Tensor:
        return cut_here(h)


class Decides(nn.Module):
    """Asks a number of the data: nobody can follow that."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) if x.sum() > 0 else self.b(x)


class Around(nn.Module):
    """Has a part that decides, in a module of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.decides, self.last = nn.Linear(6, 6), Decides(), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.decides(self.first(x)) + x)
