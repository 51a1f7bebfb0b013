"""Which expert computes which token? A router's choice, and how many tokens an expert takes."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class Routing:
    """The choices that are computed, those of one expert side by side."""

    tokens_N: Tensor  # of which token each is
    weights_N: Tensor  # of what its expert makes of it
    counts: list[int]  # of each expert
    firsts_E: Tensor  # of how many tokens each expert is the first choice, dropped or not
    dropped: int  # choices beyond an expert's capacity


def probabilities(x_TD: Tensor, weight_ED: Tensor, jitter: float) -> Tensor:
    """Of each expert for each token, in single precision at least (Fedus et al. 2022, 2.4: bf16 routers diverge)."""
    wide = torch.promote_types(x_TD.dtype, torch.float32)
    with torch.autocast(x_TD.device.type, enabled=False):
        seen = x_TD.to(wide)
        if jitter:
            seen = seen * torch.empty_like(seen).uniform_(1 - jitter, 1 + jitter)
        return F.linear(seen, weight_ED.to(wide)).softmax(-1)


def capacity_of(tokens: int, experts: int, top: int, factor: float) -> int:
    """The most choices that one expert takes of a batch with so many tokens."""
    return ceil(top * tokens * factor / experts - 1e-9)  # 100 * 1.1 / 10 is 11.000000000000002


def routed(probs_TE: Tensor, top: int, factor: float) -> Routing:
    """Tokens choose in batch order, all first choices before any second one; what is beyond the capacity is dropped."""
    tokens, experts = probs_TE.shape
    values_TK, chosen_TK = probs_TE.topk(top, -1)
    if top > 1:
        values_TK = values_TK / values_TK.sum(-1, keepdim=True)
    choices, weights = chosen_TK.t().reshape(-1), values_TK.t().reshape(-1)
    wanted = choices.bincount(minlength=experts)
    order = choices.argsort(stable=True)  # by expert, and for each in the order in which they choose
    turn = torch.arange(len(order), device=order.device) - (wanted.cumsum(0) - wanted)[choices[order]]
    most = capacity_of(tokens, experts, top, factor)
    kept = order[turn < most]
    return Routing(
        tokens_N=kept % max(1, tokens), weights_N=weights[kept], counts=wanted.clamp(max=most).tolist(),
        firsts_E=chosen_TK[:, 0].bincount(minlength=experts), dropped=len(order) - len(kept),
    )  # fmt: skip


def balance_loss(probs_TE: Tensor, firsts_E: Tensor) -> Tensor:
    """1 where all experts are equally likely (Fedus et al. 2022, eq. 4); only probabilities have a gradient."""
    tokens, experts = probs_TE.shape
    return experts * (firsts_E.to(probs_TE.dtype) / tokens * probs_TE.mean(0)).sum()


@dataclass(slots=True)
class RoutingNotes:
    """What a run tells of a router, since it was told last."""

    choices: int = 0
    dropped: int = 0
    imbalance: float = 0.0  # first choices of the most chosen expert over those of an even choice; summed over batches
    batches: int = 0

    def add(self, routing: Routing, top: int) -> None:
        tokens = int(routing.firsts_E.sum())
        if tokens:
            self.choices += top * tokens
            self.dropped += routing.dropped
            self.imbalance += float(routing.firsts_E.max()) * len(routing.firsts_E) / tokens
            self.batches += 1


class AddedLoss(torch.autograd.Function):
    """Adds a loss to whatever is differentiated, without a line of the task: the output passes unchanged."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, loss: Tensor, weight: float) -> Tensor:
        ctx.weight, ctx.like = weight, loss.detach()
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        return grads[0], torch.full_like(ctx.like, ctx.weight), None
