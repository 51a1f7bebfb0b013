"""The forms of the kernels, each codec as a pair of functions, and what it should decode to by formulas in float64."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from covey.exchange.kernels import chance, plain, plain_choice, plain_levels

Encode = Callable[[Tensor, Tensor | None], Any]
Decode = Callable[[Any, Tensor], Tensor]


class Form:
    """The functions of one form on one device; what it has no kernel for is plain."""

    def __init__(self, name: str, device: str, most: int = 10**9) -> None:
        rooms = {"cpu": ("cpu", "cpu_choosing"), "gpu": ("gpu.levels", "gpu.choosing")}.get(name, ())
        fast = tuple(import_module(f"covey.exchange.kernels.{room}") for room in rooms)
        self.name = name
        self.homes, self.device, self.most = (*fast, plain, plain_levels, plain_choice), device, most

    def __getattr__(self, name: str) -> Any:
        return next(getattr(home, name) for home in self.homes if hasattr(home, name))


def pair(form: Form, name: str, block: int = 0, seed: int | None = 5) -> tuple[Encode, Decode]:
    """A codec with settings, as two functions."""
    pairs: dict[str, tuple[Encode, Decode]] = {
        "onebit": (lambda x, r: form.onebit_encode(x, r, block), lambda w, o: form.onebit_decode(*w, block, o)),
        "twobit": (lambda x, r: form.twobit_encode(x, r, 0.5), lambda w, o: form.twobit_decode(w, 0.5, o)),
        "int8": (lambda x, r: form.int8_encode(x, r, block, seed), lambda w, o: form.int8_decode(*w, block, o)),
        "nearest": (lambda x, r: form.int8_encode(x, r, block, None), lambda w, o: form.int8_decode(*w, block, o)),
        "terngrad": (
            lambda x, r: form.terngrad_encode(x, r, block, seed, 0.0),
            lambda w, o: form.terngrad_decode(*w, block, o),
        ),
        "clipped": (
            lambda x, r: form.terngrad_encode(x, r, block, seed, 1.5),
            lambda w, o: form.terngrad_decode(*w, block, o),
        ),
        "qsgd": (
            lambda x, r: form.qsgd_encode(x, r, block, 15, seed, "l2"),
            lambda w, o: form.qsgd_decode(*w, block, 15, o),
        ),
        "qsgd_max": (
            lambda x, r: form.qsgd_encode(x, r, block, 300, seed, "max"),
            lambda w, o: form.qsgd_decode(*w, block, 300, o),
        ),
        "fixed16": (lambda x, r: form.fixed16_encode(x, r, 10, seed), lambda w, o: form.fixed16_decode(w, 10, o)),
        "dorefa": (
            lambda x, r: form.dorefa_encode(x, r, block, 3, seed),
            lambda w, o: form.dorefa_decode(*w, block, 3, o),
        ),
        "natural": (lambda x, r: form.natural_encode(x, r, seed), lambda w, o: form.natural_decode(*w, o)),
        "select": (lambda x, r: form.select(x, r, 0.7), sparse),
        "topk": (lambda x, r: form.topk(x, r, x.numel() // 3), sparse),
        "mstopk": (lambda x, r: form.mstopk(x, r, x.numel() // 10, 25, seed), sparse),
    }
    return pairs[name]


def sparse(wire: Any, out: Tensor) -> Tensor:
    return out.zero_().index_add_(0, wire[0].long(), wire[1])


SCALED = ("onebit", "int8", "nearest", "terngrad", "clipped", "qsgd", "qsgd_max", "dorefa")
NAMES = (*SCALED, "twobit", "fixed16", "natural", "select", "topk", "mstopk")
UNBIASED = ("int8", "terngrad", "qsgd", "qsgd_max", "fixed16", "dorefa", "natural")


def inputs(form: Form, count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(1000 * seed + count)
    both = torch.randn(2, count, generator=made).to(form.device)
    return both[0].contiguous(), both[1].contiguous()


def blocks_of(v: Tensor, block: int) -> list[Tensor]:
    return list(v.split(block or v.numel())) if v.numel() else []


def expected(name: str, v: Tensor, block: int, seed: int = 5) -> tuple[Tensor, Tensor]:
    """What is decoded, by the formulas in float64, and where float32 may well fall on the other side."""
    wide = v.double().cpu()
    u = chance.uniform(seed, v.numel(), torch.device("cpu")).double()
    drawn = list(u.split(block)) if block else [u]
    pieces = [formula(name, part, chances) for part, chances in zip(blocks_of(wide, block), drawn, strict=False)]
    if not pieces:
        return wide, wide.bool()
    return torch.cat([value for value, _ in pieces]), torch.cat([close for _, close in pieces])


def formula(name: str, v: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    if name == "onebit":
        up, none = v >= 0, v.new_zeros(())
        means = (v[up].mean() if up.any() else none, v[~up].mean() if (~up).any() else none)
        return torch.where(up, *means), (v.abs() < 1e-7)
    if name in ("terngrad", "clipped"):
        scale = v.abs().max()
        if name == "clipped":
            scale = torch.minimum(scale, 1.5 * v.std(correction=0))
        chance_of = v.abs().clamp(max=scale) / scale if scale > 0 else v * 0
        return torch.where(u < chance_of, v.sign() * scale, 0.0), (u - chance_of).abs() < 1e-5
    if name == "twobit":
        return torch.where(v.abs() >= 0.5, v.sign() * 0.5, 0.0), (v.abs() - 0.5).abs() < 1e-6
    if name == "natural":
        low = torch.where(v == 0, 0.0, 2.0 ** v.abs().log2().floor())
        share = torch.where(v == 0, 0.0, v.abs() / low - 1)
        fresh = u  # its 24 bits hold the 23 that are added: carry when mantissa + bits reach 1
        return torch.where(share + fresh >= 1, 2 * low, low) * v.sign(), ((share + fresh) - 1).abs() < 1e-5
    levels, top, shift = {
        "int8": (127, v.abs().max(), 0.0), "nearest": (127, v.abs().max(), 0.0), "qsgd": (15, v.norm(), 0.0),
        "qsgd_max": (300, v.abs().max(), 0.0), "dorefa": (3.5, v.abs().max(), 3.5),
        "fixed16": (1024.0, v.new_ones(()), 0.0),
    }[name]  # fmt: skip
    t = v / top * levels + shift
    if name == "nearest":
        return t.round() * top / levels, ((t - t.floor()) - 0.5).abs() < 1e-4
    low = t.floor()
    q = low + (u < t - low)
    near = ((t - low) - u).abs() < 2e-4
    return (q - shift) * top / levels, near | ((t - t.round()).abs() < 2e-4)
