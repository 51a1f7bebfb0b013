"""How do tensors become a safetensors file? Written from where they lie: other threads run on meanwhile."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from covey.checkpoint.files import MODE
from covey.errors import CheckpointError

DTYPES: Mapping[torch.dtype, str] = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64", torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
"""What safetensors calls them."""


class Placed:
    """Where each tensor lies in the file: bytes from the end of its header."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        # the widest numbers first, so that all are aligned
        self.tensors = dict(sorted(tensors.items(), key=lambda item: -item[1].element_size()))
        self.offsets: dict[str, int] = {}
        end = 0
        for name, tensor in self.tensors.items():
            if tensor.dtype not in DTYPES:
                raise CheckpointError(f"the state cannot be saved: {name} has numbers of the kind {tensor.dtype}")
            self.offsets[name], end = end, end + tensor.nbytes

    def header(self) -> bytes:
        """The length of a JSON object, and the object: as safetensors wants it."""
        entries: dict[str, Any] = {
            name: {
                "dtype": DTYPES[tensor.dtype],
                "shape": list(tensor.shape),
                "data_offsets": [self.offsets[name], self.offsets[name] + tensor.nbytes],
            }
            for name, tensor in self.tensors.items()
        }
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text

    def write(self, path: Path) -> None:
        """Write the file; whoever commits the checkpoint sees to it that it is on the disk."""
        with path.open("wb") as file:
            os.fchmod(file.fileno(), MODE)
            file.write(self.header())
            for tensor in self.tensors.values():
                file.write(tensor.reshape(-1).view(torch.uint8).numpy().data)
