"""What a loop writes into its models itself: weights that no strategy exchanges, and buffers, which are averaged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from covey.errors import PlanError
from covey.model.flat import Flat

SAMPLED = 4096  # numbers of each part that are compared
EVERY = 50  # steps on a GPU, where a comparison waits for the device
WRITTEN = (
    "the loop itself changed weights between two steps (first found in {name!r}), which no strategy exchanges: "
    "servers and averages overwrite the change, and under `allreduce` it must be the same on all workers. Give the "
    "parameter to an optimizer, or change it before covey.join"
)

LOOKS = 4  # steps at which buffers are compared: those that change do so at once
AVERAGED = (
    "the loop fills the buffer {name!r}, and float buffers are averaged over the workers, as the statistics of "
    "batch-norm are: one that is no mean, such as a queue of samples, would be mixed up. Keep that in a plain "
    "attribute of the module, without register_buffer"
)
FROZEN = (
    "the loop writes the frozen parameter {name!r}. Checkpoints keep it; the run's result and its saved model have "
    "it as it was at covey.join, so save it in the loop, on worker 0"
)


class WrittenWeights:
    """Compares a sample of the weights with what the last step left."""

    def __init__(self, layout: Flat) -> None:
        self._layout = layout
        chance = torch.Generator().manual_seed(0)
        self._sampled = [
            (torch.randperm(part.numel(), generator=chance)[:SAMPLED]).sort().values.to(part.device)
            for part in layout.params.parts
        ]  # fmt: skip
        self._left: list[Tensor] = []  # empty: nothing to compare with
        self._parameters = [*layout.parameters.values()]
        self._addresses: list[int] = []
        self._steps = 0

    def note(self) -> None:
        """Remember the weights that the loop is given."""
        self._steps += 1
        waits = any(part.is_cuda for part in self._layout.seen.parts)
        if self._layout.written_by_others or (waits and self._steps % EVERY):
            self._left = []
        else:
            self._left = self._sample()
        self._addresses = [parameter.data_ptr() for parameter in self._parameters]

    def check(self) -> str | None:
        """The name of a parameter that the loop has written into; one that is another tensor now is refused."""
        now = [parameter.data_ptr() for parameter in self._parameters]
        if self._addresses and now != self._addresses:
            both = zip(self._layout.parameters, now, self._addresses, strict=True)
            name = next(name for name, address, before in both if address != before)
            raise PlanError(
                f"the loop replaced the tensor of parameter {name!r} after covey.join (model.to, model.half, "
                "parameter.data = …): convert the model before covey.join, and write with parameter.data.copy_(…)"
            )
        if not self._left:
            return None
        for part, (before, found) in enumerate(zip(self._left, self._sample(), strict=True)):
            if not torch.equal(before, found):
                differs = before.ne(found) & ~(before.isnan() & found.isnan())
                if differs.any():
                    return self._name(part, int(self._sampled[part][differs][0]))
        return None

    def _sample(self) -> list[Tensor]:
        parts = zip(self._layout.seen.parts, self._sampled, strict=True)
        return [part.detach().index_select(0, where) for part, where in parts]

    def _name(self, part: int, position: int) -> str:
        return next(s.name for s in self._layout.slots if s.part == part and s.start <= position < s.stop)


class FilledBuffers:
    """Finds float buffers that change, but for those of torch's own layers, which are means."""

    def __init__(self, models: Iterable[nn.Module]) -> None:
        self._models, self._looks = list(models), LOOKS
        self._before = {name: sampled(buffer) for name, buffer in self._live().items()}

    def check(self) -> str | None:
        """The name of one that has changed."""
        self._looks -= 1
        if self._looks < 0:
            return None
        known = ((name, now) for name, now in self._live().items() if name in self._before)
        return next((name for name, now in known if not torch.equal(self._before[name], sampled(now))), None)

    def _live(self) -> dict[str, Tensor]:
        """As they are now: a role moves them to memory of its own."""
        several = len(self._models) > 1
        own = [
            (f"{number}.{n}" if several else n, each)
            for number, model in enumerate(self._models)
            for n, each in model.named_modules()
            if not _is_torchs(each)
        ]  # fmt: skip
        found = {f"{n}.{key}".lstrip("."): b for n, each in own for key, b in each.named_buffers(recurse=False)}
        return {name: b for name, b in found.items() if b.is_floating_point() and b.numel() > 1}



class WrittenFrozen:
    """Parameters frozen at covey.join: only the loop can change them, such as a teacher that averages the student."""

    def __init__(self, models: Iterable[nn.Module], saves: bool) -> None:
        named = [(f"{number}.{name}", p) for number, model in enumerate(models) for name, p in model.named_parameters()]
        self._live = {name: parameter for name, parameter in named if not parameter.requires_grad}
        self._sampled = {name: sampled(parameter) for name, parameter in self._live.items()}
        self._sums = {name: bit_sum(parameter) for name, parameter in self._live.items()} if saves else {}
        self._looks = LOOKS

    def check(self) -> str | None:
        """(Before each of the first steps) The name of one that has been written."""
        self._looks -= 1
        if self._looks < 0:
            return None
        changed = (n for n, p in self._live.items() if not torch.equal(self._sampled[n], sampled(p)))
        return next((name.split(".", 1)[1] for name in changed), None)

    def state(self) -> dict[str, Tensor]:
        """(Of a loop that saves) Those that the loop has written, which no role keeps."""
        changed = {
            n: p for n, p in self._live.items()
            if bit_sum(p) != self._sums[n] or not torch.equal(self._sampled[n], sampled(p))
        }  # fmt: skip
        return {name: parameter.detach().clone() for name, parameter in changed.items()}

    def restore(self, kept: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, value in kept.items():
                if self._live[name].shape != value.shape:
                    raise ValueError(f"the parameter {name} has another shape")
                self._live[name].copy_(value)


def bit_sum(tensor: Tensor) -> int:
    """A sum of its bits as whole numbers, which changes with any one of them."""
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[min(8, tensor.element_size())]
    return int(tensor.detach().contiguous().flatten().view(whole).sum(dtype=torch.int64))


def sampled(tensor: Tensor) -> Tensor:
    """Some of its numbers, from all over it."""
    return tensor.detach().flatten()[:: max(1, tensor.numel() // SAMPLED)].clone()


def _is_torchs(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.")
