"""What may a client send? One input like those that the model was trained with."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
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
EXACT = 1 << 53  # smaller floats that are whole are what was written, if that was whole
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
        if not kind.is_floating_point:
            return self._whole(found["input"], kind)
        try:
            row = torch.tensor(found["input"], dtype=kind)
        except (RuntimeError, ValueError, TypeError, OverflowError) as error:
            raise WireError(f"`input` is not a tensor: {error}") from None
        if tuple(row.shape) != self.shape:
            raise WireError(f"`input` has the shape {list(row.shape)}")
        if any(type(one) is bool for one in self._leaves(found["input"], self.shape)):
            raise WireError(f"`input` has true or false, which are something other than numbers of {self.dtype}")
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

    def _whole(self, given: Any, kind: torch.dtype) -> Tensor:
        """Integers or truth values, none of which was rounded."""
        least, most = (0, 1) if kind is torch.bool else (torch.iinfo(kind).min, torch.iinfo(kind).max)
        values = []
        for one in self._leaves(given, self.shape):
            value = int(one) if type(one) is float and one.is_integer() and abs(one) < EXACT else one
            if type(value) is not (bool if kind is torch.bool else int) or not least <= value <= most:
                what = repr(one) if isinstance(one, int | float) else type(one).__name__
                raise WireError(f"`input` has {what}, which is something other than numbers of {self.dtype}")
            values.append(value)
        return torch.tensor(values, dtype=kind).reshape(self.shape)

    def _leaves(self, given: Any, shape: tuple[int, ...]) -> Iterator[Any]:
        """The numbers of nested lists of this shape."""
        if not shape:
            yield given
        elif not isinstance(given, list) or len(given) != shape[0]:
            raise WireError(f"`input` has another shape than {list(self.shape)}")
        elif len(shape) == 1:
            yield from given
        else:
            for one in given:
                yield from self._leaves(one, shape[1:])

    def explain(self) -> dict[str, Any]:
        """For people who have sent something else."""
        return {"input": {"shape": list(self.shape), "dtype": self.dtype}}


def key_of(row: Tensor) -> str:
    """A hash of an input."""
    return hashlib.blake2b(raw(row), digest_size=16).hexdigest()
