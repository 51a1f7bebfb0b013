"""What may a client send? One input like those that the model was trained with."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import torch
from torch import Tensor

from covey.decoding import WireFormat
from covey.errors import WireError
from covey.message import DTYPES, raw

MOST = 1 << 28  # bytes of a body
_bodies: WireFormat[dict[str, Any]] = WireFormat("JSON object", dict[str, Any], "json", most=MOST)


def _number_bodies(depth: int) -> WireFormat[Any]:
    """Bodies whose input is a list of lists of numbers, this deep."""
    numbers: Any = float
    for _ in range(depth):
        numbers = list[numbers]
    kind = msgspec.defstruct("NumberBody", [("input", numbers)], forbid_unknown_fields=True)
    return WireFormat(f"JSON object of numbers, {depth} deep", kind, "json", most=MOST)


_NUMBERS: Final = [_number_bodies(depth) for depth in range(5)]


@dataclass(frozen=True, slots=True)
class InputSchema:
    """The shape and dtype of one input."""

    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, example: Tensor) -> InputSchema:
        """From a batch of examples."""
        return cls(tuple(example.shape[1:]), str(example.dtype).removeprefix("torch."))

    def read(self, body: bytes) -> Tensor:
        """The input that a body has; WireError with what is expected if it has none."""
        if (row := self._numbers(body)) is not None:
            return row
        found = _bodies.read(body, "the client")
        if set(found) != {"input"}:
            raise WireError(f"the object must have `input`, and nothing else; it has {sorted(found)[:5]}")
        kind = DTYPES[self.dtype]
        try:
            row = torch.tensor(found["input"], dtype=kind if kind.is_floating_point else None)
        except (RuntimeError, ValueError, TypeError, OverflowError) as error:
            raise WireError(f"`input` is not a tensor: {error}") from None
        if tuple(row.shape) != self.shape:
            raise WireError(f"`input` has the shape {list(row.shape)}")
        if not kind.is_floating_point:
            return self._whole(row, kind)
        if not bool(row.isfinite().all()):
            raise WireError(f"`input` has numbers that are too large for {self.dtype}")
        return row

    def _numbers(self, body: bytes) -> Tensor | None:
        """The same in a quarter of the time, of the usual body: nothing but finite floats of the right shape."""
        if self.dtype not in ("float32", "float64") or len(self.shape) >= len(_NUMBERS):
            return None
        try:
            given = np.array(_NUMBERS[len(self.shape)].read(body).input)
        except (WireError, ValueError):  # whoever reads it the long way says why
            return None
        with np.errstate(over="ignore"):
            row = given.astype(self.dtype)
        return torch.from_numpy(row) if row.shape == self.shape and np.isfinite(row).all() else None

    def _whole(self, row: Tensor, kind: torch.dtype) -> Tensor:
        """The same as integers or truth values, if that changes nothing."""
        exact = row.to(kind)
        if (row.dtype is torch.bool) != (kind is torch.bool) or not torch.equal(exact.to(row.dtype), row):
            raise WireError(f"`input` has something other than numbers of {self.dtype}")
        return exact

    def explain(self) -> dict[str, Any]:
        """For people who have sent something else."""
        return {"input": {"shape": list(self.shape), "dtype": self.dtype}}


def key_of(row: Tensor) -> str:
    """A hash of an input."""
    return hashlib.blake2b(raw(row), digest_size=16).hexdigest()
