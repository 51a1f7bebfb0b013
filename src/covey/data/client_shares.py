"""Which samples does each client have? Ways to divide one data set so that clients differ, as real ones do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from covey.errors import PlanError
from covey.task.data import Data, check_data

Numbers = npt.NDArray[np.int64]
LABEL_NAMES = ("targets", "labels")  # where data sets of torchvision and others keep them


class ClientPartition(Protocol):
    """A way to divide a data set; each sample belongs to one client."""

    def divide(self, data: Data, clients: int, seed: int) -> list[Numbers]:
        """The samples of every client."""


@dataclass(frozen=True, slots=True)
class Even:
    """Every client has equally many samples, drawn at random."""

    def divide(self, data: Data, clients: int, seed: int) -> list[Numbers]:
        return np.array_split(_shuffled(check_data(data), seed), clients)


@dataclass(frozen=True, kw_only=True, slots=True)
class Dirichlet:
    """Each class is divided among clients by shares drawn from a Dirichlet distribution (Hsu et al. 2019).

    A small alpha gives each client few classes, and clients many or few samples; a large one makes them alike.
    """

    alpha: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.alpha < float("inf"):
            raise PlanError(f"dirichlet(alpha={self.alpha:g}): alpha must be more than 0")

    def divide(self, data: Data, clients: int, seed: int) -> list[Numbers]:
        classes, chance = labels_of(data), np.random.default_rng((seed, 1))
        parts: list[list[Numbers]] = [[] for _ in range(clients)]
        for label in np.unique(classes):
            mine = chance.permutation(np.flatnonzero(classes == label))
            shares = chance.dirichlet(np.full(clients, self.alpha))
            ends = np.floor(np.cumsum(shares) * len(mine) + 0.5).astype(int)[:-1]
            for part, numbers in zip(parts, np.split(mine, np.clip(ends, 0, len(mine))), strict=True):
                part.append(numbers)
        return _none_empty([np.concatenate(part) for part in parts])


@dataclass(frozen=True, kw_only=True, slots=True)
class Labels:
    """Each client has samples of `count` classes (McMahan et al. 2017: sorted by class, in pieces dealt out)."""

    count: int = 2

    def __post_init__(self) -> None:
        if self.count < 1:
            raise PlanError(f"labels(count={self.count}): a client has samples of at least 1 class")

    def divide(self, data: Data, clients: int, seed: int) -> list[Numbers]:
        classes = labels_of(data)
        pieces = clients * self.count
        if pieces > len(classes):
            raise PlanError(
                f"labels(count={self.count}) with {clients} clients needs {pieces} samples, and there are "
                f"{len(classes)}: use fewer clients"
            )
        order = _shuffled(len(classes), seed)
        cut = np.array_split(order[np.argsort(classes[order], kind="stable")], pieces)
        dealt = np.random.default_rng((seed, 2)).permutation(pieces).reshape(clients, self.count)
        return [np.concatenate([cut[piece] for piece in mine]) for mine in dealt]


@dataclass(frozen=True, kw_only=True, slots=True)
class UnevenSizes:
    """Clients have unequally many samples, drawn at random: the k-th largest has 1 / k**exponent of the largest."""

    law: Literal["zipf"] = "zipf"
    exponent: float = 1.0

    def divide(self, data: Data, clients: int, seed: int) -> list[Numbers]:
        samples = check_data(data)
        shares = 1 / np.arange(1, clients + 1) ** self.exponent
        ends = clients + np.floor(np.cumsum(shares / shares.sum()) * (samples - clients) + 0.5).astype(int)
        sizes = np.diff(ends - clients, prepend=0) + 1  # everybody has one, the others go by the law
        sizes[-1] += samples - sizes.sum()
        split = np.split(_shuffled(samples, seed), np.cumsum(sizes)[:-1])
        places = np.random.default_rng((seed, 3)).permutation(clients)
        return [split[place] for place in places]


@dataclass(frozen=True, kw_only=True, slots=True)
class By:
    """Samples with the same value in a column belong to one client, such as a hospital's or a writer's.

    A column is the name of an attribute of the data set, of a column of its own, or the number of one of its tensors.
    """

    column: str | int

    def divide(self, data: Data, clients: int, seed: int) -> list[Numbers]:
        values = column_of(data, self.column)
        found = np.unique(values)
        if len(found) != clients:
            raise PlanError(
                f"by(column={self.column}): the column has {len(found)} different values, each of which is a client: "
                f"use --clients {len(found)}"
            )
        return [np.flatnonzero(values == value) for value in found]


PARTITIONS: Mapping[str, type[Any]] = {
    "even": Even, "dirichlet": Dirichlet, "labels": Labels, "sizes": UnevenSizes, "by": By,
}  # fmt: skip


def divided(partition: ClientPartition, data: Data, clients: int, seed: int) -> list[Tensor]:
    """The samples of every client, as numbers of the data set."""
    samples = check_data(data)
    if clients > samples:
        raise PlanError(f"{samples} samples are too few for {clients} clients: one would get none; use fewer clients")
    found = [torch.from_numpy(np.sort(numbers)) for numbers in partition.divide(data, clients, seed)]
    assert sum(map(len, found)) == samples and len(found) == clients, "every sample belongs to one client"
    return found


def labels_of(data: Data) -> Numbers:
    """The class of every sample: the data set's own table of them, else the last column of its tensors."""
    for name in LABEL_NAMES:
        if hasattr(data, name):
            return _whole(np.asarray(getattr(data, name)), name)
    columns = _tensors(data)
    if columns is None:
        raise PlanError(
            "this partition divides samples by class, and the data has neither `targets` nor tensors whose last one "
            "holds the classes: give the data set an attribute `targets`, or use even or sizes"
        )
    return _whole(columns[-1].cpu().numpy(), "the last tensor")


def column_of(data: Data, column: str | int) -> npt.NDArray[Any]:
    """One value for every sample."""
    columns = _tensors(data)
    if isinstance(column, int):
        if columns is None or not -len(columns) <= column < len(columns):
            raise PlanError(f"by(column={column}): the data has no tensor of this number; {_columns_of(data)}")
        return _flat(columns[column].cpu().numpy(), column)
    if hasattr(data, column):
        return _flat(np.asarray(getattr(data, column)), column)
    if column in getattr(data, "column_names", ()):  # of Hugging Face's data sets
        return _flat(np.asarray(data[column]), column)  # type: ignore[call-overload]
    raise PlanError(
        f"by(column={column}): the data has no attribute and no column of this name; {_columns_of(data)}"
    )


def _columns_of(data: Data) -> str:
    """The columns that could be meant: those of a table, else what the data set holds for each sample."""
    own = sorted(
        name
        for name, value in getattr(data, "__dict__", {}).items()
        if not name.startswith("_") and name != "tensors" and hasattr(value, "__len__") and len(value) == len(data)  # type: ignore[arg-type]
    )
    named = [*getattr(data, "column_names", ()), *own]
    numbers = [str(number) for number in range(len(_tensors(data) or ()))]
    if not named and not numbers:
        return "it has no columns: give the data set an attribute with one value for each sample"
    return f"it has {', '.join([*named, *numbers])}"


def _tensors(data: Data) -> Sequence[Tensor] | None:
    if isinstance(data, Subset):
        inner = _tensors(data.dataset)
        return None if inner is None else [column[torch.as_tensor(data.indices)] for column in inner]
    if isinstance(data, TensorDataset):
        return data.tensors
    return data if isinstance(data, tuple) else None


def _whole(values: npt.NDArray[Any], where: str) -> Numbers:
    if values.ndim != 1 or not np.issubdtype(values.dtype, np.integer):
        raise PlanError(f"{where} of the data holds no classes, which are one whole number for each sample")
    return values.astype(np.int64)


def _flat(values: npt.NDArray[Any], column: str | int) -> npt.NDArray[Any]:
    if values.ndim != 1:
        raise PlanError(f"by(column={column}): the column must have one value for each sample")
    return values


def _shuffled(samples: int, seed: int) -> Numbers:
    return np.random.default_rng((seed, 0)).permutation(samples)


def _none_empty(parts: list[Numbers]) -> list[Numbers]:
    """Give each client without samples one of the client that has most."""
    sizes = [(-len(part), place) for place, part in enumerate(parts)]  # the largest first, as max() would find them
    heapify(sizes)
    for place, part in enumerate(parts):
        if len(part) == 0:
            negative, richest = sizes[0]
            parts[place], parts[richest] = parts[richest][-1:], parts[richest][:-1]
            heapreplace(sizes, (negative + 1, richest))
    return parts
