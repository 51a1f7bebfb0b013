"""A layer of experts: a router sends each token to one or two of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

import torch
from torch import Tensor, nn

from covey.errors import PlanError
from covey.nn.routing import AddedLoss, RoutingNotes, balance_loss, probabilities, routed


class Experts(nn.Module):
    """A layer whose router sends each token to one of several experts, or to two; `mesh(expert=N)` divides them.

    Its input has tokens in its last dimension. Each expert takes `capacity` times its even share of a batch's choices,
    in batch order, first choices before second ones; a token that is dropped gives zeros, so add the input to the
    output. With `top=1` an expert's output is weighted by its probability (Fedus et al. 2022), with `top=2` by its
    share of the two probabilities (Lepikhin et al. 2021). The balance loss needs no line in the task.

    Args:
        make: Makes one expert, a module from `[n, width]` to `[n, outputs]`.
        experts: How many there are.
        top: How many experts compute each token, 1 or 2.
        capacity: The most that an expert takes, over its even share.
        balance: The weight of the loss that keeps experts evenly chosen.
        jitter: What the router sees is multiplied by numbers from `1 - jitter` to `1 + jitter` while training.
        width: Numbers of a token; by default as many as the experts' first weight takes.

    >>> layer = covey.nn.Experts(lambda: torch.nn.Linear(8, 8), experts=4, top=2)
    >>> layer(torch.randn(3, 5, 8)).shape
    torch.Size([3, 5, 8])
    """

    def __init__(
        self, make: Callable[[], nn.Module], experts: int = 8, top: int = 1, capacity: float = 1.25,
        balance: float = 1e-2, jitter: float = 0.0, width: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        _check(experts, top, capacity, balance, jitter)
        self.top, self.capacity, self.balance, self.jitter = top, capacity, balance, jitter
        self.experts = nn.ModuleList(make() for _ in range(experts))
        self.width = _width(self.experts[0]) if width is None else width
        self.router = nn.Linear(self.width, experts, bias=False)
        nn.init.normal_(self.router.weight, std=(0.1 / self.width) ** 0.5)  # Fedus et al. 2022, 2.4: a tenth of usual
        self.where = "an Experts layer"  # for a person: its name in the model, and the step of a run
        self.loss_weight = 1.0  # of the loss that is differentiated: batches of a step may count in part
        self.notes = RoutingNotes()  # of training
        self.divided: Callable[[Tensor, Sequence[int]], Tensor] | None = None  # computes, where others have the experts

    def forward(self, x: Tensor) -> Tensor:
        x_TD = x.reshape(-1, x.shape[-1])
        probs_TE = probabilities(x_TD, self.router.weight, self.jitter if self.training else 0.0)
        if not bool(probs_TE.isfinite().all()):
            raise PlanError(
                f"{self.where}: the router's probabilities are not numbers (NaN), so no expert can be chosen: use a "
                "lower learning rate or clip_norm"
            )
        routing = routed(probs_TE, self.top, self.capacity)
        if self.training:
            self.notes.add(routing, self.top)
        made_NO = (self.divided or self.computed)(x_TD[routing.tokens_N], routing.counts)
        made_NO = made_NO * routing.weights_N.to(made_NO.dtype).unsqueeze(-1)
        output = made_NO.new_zeros(len(x_TD), made_NO.shape[-1]).index_add(0, routing.tokens_N, made_NO)
        output = output.view(*x.shape[:-1], made_NO.shape[-1])
        if self.training and self.balance and len(x_TD) and torch.is_grad_enabled():
            loss = self.balance * balance_loss(probs_TE, routing.firsts_E)
            output = AddedLoss.apply(output, loss, self.loss_weight)  # type: ignore[no-untyped-call]
        return output

    def computed(self, rows_ND: Tensor, counts: Sequence[int]) -> Tensor:
        """What the experts make of these rows, of which each has the next `counts`."""
        parts = zip(self.experts, rows_ND.split(list(counts)), strict=True)
        made = [expert(part) for expert, part in parts if len(part)]
        return torch.cat(made) if made else self.experts[0](rows_ND)

    def extra_repr(self) -> str:
        return f"top={self.top}, capacity={self.capacity:g}, balance={self.balance:g}, jitter={self.jitter:g}"


def experts_in(module: nn.Module) -> dict[str, Experts]:
    """The layers of experts of a model, by their names in it."""
    return {name or "the model": layer for name, layer in module.named_modules() if isinstance(layer, Experts)}


def _check(experts: int, top: int, capacity: float, balance: float, jitter: float) -> None:
    if experts < 1:
        raise PlanError(f"Experts(experts={experts}): at least 1 is needed")
    if top not in (1, 2):
        raise PlanError(f"Experts(top={top}): a token is computed by 1 or 2 experts")
    if top > experts:
        raise PlanError(f"Experts(top={top}, experts={experts}): top is at most the number of experts")
    if not 0 < capacity < inf:
        raise PlanError(f"Experts(capacity={capacity:g}): it must be above 0 and finite; 1.25 leaves a quarter of room")
    if not balance >= 0:
        raise PlanError(f"Experts(balance={balance:g}): it must be 0, for none, or more; 0.01 is usual")
    if not 0 <= jitter < 1:
        raise PlanError(f"Experts(jitter={jitter:g}): it must be at least 0 and below 1; 0.01 is usual")


def _width(expert: nn.Module) -> int:
    """What the first weight of an expert takes."""
    first = next((weight for weight in expert.parameters() if weight.dim()), None)
    if first is None:
        raise PlanError("Experts: an expert without weights does not say how many numbers a token has: give width=")
    return first.shape[-1]
