"""Where are the tensors of versions? In files that are named by their SHA-256: equal tensors are one file."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from covey.atomic_file import replacing
from covey.checkpoint.files import opened, sync, write_synced
from covey.errors import CheckpointError, CoveyError, PlanError
from covey.store.versions import HASH, StoredTensor

ENDING = ".safetensors"
INSIDE = "tensor"  # the name of the only tensor of a file
LEFT = 86_400  # seconds after which what an interrupted process was writing is removed


class TensorFiles:
    """The folder of all tensors of a store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, digest: str) -> Path:
        if not HASH.fullmatch(digest):
            raise PlanError(f"{self.folder}: {digest[:80]!r} is not the hash of a tensor: the index was changed")
        return self.folder / digest[:2] / f"{digest}{ENDING}"

    def add(self, tensor: Tensor) -> StoredTensor:
        """Keep a tensor, unless an equal one is there; a damaged file of the same name is replaced."""
        data = safetensors.torch.save({INSIDE: tensor.detach().cpu().contiguous()})
        digest = hashlib.sha256(data).hexdigest()
        kind = str(tensor.dtype).removeprefix("torch.")
        stored = StoredTensor(digest, kind, tuple(tensor.shape), len(data))
        if not self.intact(stored):
            path = self.path(digest)
            self._make(path.parent)
            if path.is_dir() and not path.is_symlink():
                raise PlanError(f"{path} is a folder, where a store keeps a tensor: move it away")
            with replacing(path, ours=True) as new:
                write_synced(new, data)
            sync(path.parent)
        return stored

    def intact(self, stored: StoredTensor) -> bool:
        """Whether its file is there, with these very bytes."""
        try:
            self._bytes(stored)
        except (OSError, CoveyError):
            return False
        return True

    def read(self, stored: StoredTensor) -> Tensor:
        """The tensor; refused if its file is missing, damaged, or contains something else."""
        try:
            data = self._bytes(stored)
            (found,) = safetensors.torch.load(data).values()
        except FileNotFoundError:
            path = self.path(stored.hash)
            raise PlanError(f"{path} is missing: the version was removed, or the store damaged") from None
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            raise PlanError(f"{self.path(stored.hash)} cannot be read: {error}") from None
        if (str(found.dtype).removeprefix("torch."), tuple(found.shape)) != (stored.dtype, stored.shape):
            raise PlanError(f"{self.path(stored.hash)} has another tensor than the index says: the index was changed")
        return found

    def collect(self, used: Collection[str]) -> int:
        """Remove files that no version uses, and what interrupted processes left; how many bytes that freed."""
        freed, now = 0, time.time()
        for path in self._files():
            if path.name.startswith(".covey-"):
                if now - path.lstat().st_mtime > LEFT:
                    shutil.rmtree(path, ignore_errors=True)
            elif path.name.endswith(ENDING) and path.stem not in used and HASH.fullmatch(path.stem):
                freed += path.lstat().st_size
                path.unlink()
        return freed

    def _files(self) -> Iterator[Path]:
        if self.folder.is_symlink() or not self.folder.is_dir():
            return
        for part in sorted(self.folder.iterdir()):
            if part.is_dir() and not part.is_symlink():
                yield from sorted(part.iterdir())

    def _make(self, part: Path) -> None:
        """Make the folder, which must not lead elsewhere."""
        for folder in (self.folder, part):
            if folder.is_symlink():
                raise PlanError(f"{folder} is a link, and a store writes only into folders of its own")
        part.mkdir(parents=True, exist_ok=True)

    def _bytes(self, stored: StoredTensor) -> bytes:
        path = self.path(stored.hash)
        if path.parent.is_symlink() or self.folder.is_symlink():
            raise PlanError(f"{path.parent} is a link, which is not followed")
        try:
            with opened(path) as file:
                if (size := os.fstat(file.fileno()).st_size) != stored.size:
                    raise PlanError(f"{path} is damaged: it has {size} bytes, not {stored.size}")
                data = file.read(stored.size)
        except CheckpointError as error:
            raise PlanError(str(error)) from None
        if hashlib.sha256(data).hexdigest() != stored.hash:
            raise PlanError(f"{path} is damaged: its SHA-256 is not its name")
        return data
