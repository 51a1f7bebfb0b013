"""Models whose layers are divided: attention in several spellings, gates, encoders and decoders, odd sizes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Feed(nn.Module):
    """A block of two layers with dropout in the middle of it."""

    def __init__(self, width: int, wide: int, drop: float = 0.0) -> None:
        super().__init__()
        self.up, self.down, self.drop = nn.Linear(width, wide), nn.Linear(wide, width), nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.drop(F.gelu(self.up(x))))


class Gated(nn.Module):
    """A gate beside what it lets through: in one layer, or in two."""

    def __init__(self, width: int, wide: int, fused: bool) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * wide if fused else wide, bias=False)
        self.gate = nn.Identity() if fused else nn.Linear(width, wide, bias=False)
        self.down, self.fused = nn.Linear(wide, width, bias=False), fused

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.up(x).chunk(2, -1) if self.fused else (self.gate(x), self.up(x))
        return self.down(F.silu(gate) * up)


class Attention(nn.Module):
    """Queries, keys and values of three layers; keys and values may have fewer heads, and come from elsewhere."""

    def __init__(self, width: int, heads: int, kv: int, drop: float = 0.0, how: str = "sdpa") -> None:
        super().__init__()
        self.heads, self.kv, self.size, self.rate, self.how = heads, kv, width // heads, drop, how
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, kv * self.size)
        self.value, self.out = nn.Linear(width, kv * self.size), nn.Linear(width, width)

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        other = x if other is None else other
        batch, time, width = x.shape
        query = self.query(x).view(batch, time, self.heads, self.size).transpose(1, 2)
        key = self.key(other).view(batch, -1, self.kv, self.size).transpose(1, 2)
        value = self.value(other).view(batch, -1, self.kv, self.size).transpose(1, 2)
        if self.how == "sdpa":
            mixed = F.scaled_dot_product_attention(query, key, value, enable_gqa=self.kv < self.heads)
        else:
            key, value = (one.repeat_interleave(self.heads // self.kv, 1) for one in (key, value))
            scores = query @ key.transpose(-2, -1) / self.size**0.5
            hidden = torch.ones(time, scores.shape[-1], dtype=torch.bool, device=x.device).tril(scores.shape[-1] - time)
            scores = scores.masked_fill(~hidden, float("-inf")).softmax(-1)
            mixed = F.dropout(scores, self.rate, self.training) @ value
        return self.out(mixed.transpose(1, 2).reshape(batch, time, width))


class Layer(nn.Module):
    def __init__(self, mixer: nn.Module, feed: nn.Module, width: int, across: nn.Module | None = None) -> None:
        super().__init__()
        self.mixer, self.feed, self.across = mixer, feed, across
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        x = x + self.mixer(self.norms[0](x))
        if self.across is not None:
            x = x + self.across(self.norms[2](x), other)
        return x + self.feed(self.norms[1](x))


class Llama(nn.Module):
    """Few heads of keys and values, and a gate."""

    def __init__(self, fused: bool = True, how: str = "sdpa", drop: float = 0.0, width: int = 16, kv: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(11, width)
        self.layers = nn.ModuleList(
            Layer(Attention(width, 4, kv, drop, how), Gated(width, 24, fused), width) for _ in range(2)
        )
        self.head = nn.Linear(width, 11, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x)
        for layer in self.layers:
            h = layer(h)
        return self.head(h)


class Translator(nn.Module):
    """An encoder and a decoder that looks at it; both read with the same embedding, which is also the last layer."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.words = nn.Embedding(11, width, padding_idx=3)
        self.encoder = Layer(Attention(width, 4, 4, 0.2, "plain"), Feed(width, 20, 0.3), width)
        self.decoder = Layer(
            Attention(width, 4, 4, 0.2, "plain"), Feed(width, 20, 0.3), width, Attention(width, 4, 4)
        )  # fmt: skip
        self.scale = nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Tensor) -> Tensor:
        seen = self.encoder(self.words(x.flip(1)))
        made = self.decoder(self.words(x) * self.scale, seen)
        return F.linear(made, self.words.weight)


class Odd(nn.Module):
    """Sizes that nobody can divide evenly, a layer that is used twice, a hook, and an operator without a rule."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.last = nn.Linear(64, 7), nn.Linear(7, 7), nn.Linear(7, 5)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.last.register_forward_hook(lambda _, __, made: made * 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x.flatten(1)))
        hidden = torch.cumsum(self.again(torch.tanh(self.again(hidden))), 1)
        return self.last(hidden) * self.scale


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 10), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.Linear(10, 9), nn.LayerNorm(9),
        nn.Linear(9, 11), nn.Tanh(), nn.Linear(11, 9), nn.Linear(9, 5),
    )  # fmt: skip
