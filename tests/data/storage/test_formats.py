"""Samples in shards: what is packed is read back, in every format."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import covey
from covey.data.storage import mds
from covey.data.storage.stored import FORMATS
from covey.errors import PlanError

X = torch.arange(300 * 6, dtype=torch.float32).reshape(300, 2, 3)
Y = torch.arange(300) % 7
COLUMNS = {"tar": ("x.npy", "y.cls")}


@pytest.fixture(params=FORMATS)
def format(request: pytest.FixtureRequest) -> str:
    if request.param == "parquet":
        pytest.importorskip("pyarrow", exc_type=ImportError)
    return str(request.param)


def packed(place: Path, format: str) -> tuple[str, ...]:
    index = covey.data.pack((X, Y), place, format, ("x", "y"), shard_bytes=3000)
    assert len(index.shards) == 4 and sum(entry.samples or 0 for entry in index.shards) == 300
    return COLUMNS.get(format, ("x", "y"))


def test_what_is_packed_is_read_back(tmp_path: Path, format: str) -> None:
    columns = packed(tmp_path / "set", format)
    data = covey.data.remote(tmp_path / "set", columns=columns)
    assert len(data) == 300
    for number in (0, 107, 108, 299, -1):
        x, y = data[number]
        assert torch.equal(torch.tensor(x.tolist()), X[number]) and int(y) == Y[number]
    assert set(copy(data)[5]) == set(data[5]) if isinstance(data[5], dict) else len(copy(data)[5]) == 2
    assert sorted(covey.data.remote(tmp_path / "set", format)[1]) == sorted(columns)
    swapped = covey.data.remote(tmp_path / "set", columns=columns[1:], transform=lambda sample: int(sample[0]) + 100)
    assert swapped[8] == 101
    with pytest.raises(IndexError):
        data[300]


def test_shards_without_an_index_of_coveys_are_read(tmp_path: Path, format: str) -> None:
    columns = packed(tmp_path / "set", format)
    (tmp_path / "set/shards.json").unlink()
    with pytest.raises(PlanError, match="has no shards.json: say format=mds | tar"):
        covey.data.remote(tmp_path / "set")
    data = covey.data.remote(tmp_path / "set", format, columns=columns)
    assert len(data) == 300 and int(data[299][1]) == Y[299]


@pytest.mark.parametrize("format", ["mds", "tar"])
def test_values_of_every_kind(tmp_path: Path, format: str) -> None:
    row = {
        "i": 3,
        "s": "grün",
        "b": b"\0\1",
        "a": np.arange(4, dtype=np.int16),
        "j": {"k": [1, 2]},
        "t": torch.tensor(7),
    }
    covey.data.pack([row, row], tmp_path / "set", format)
    sample = {name.partition(".")[0]: value for name, value in covey.data.remote(tmp_path / "set")[1].items()}
    assert sample.pop("a").tolist() == [0, 1, 2, 3]
    assert sample == {"i": 3, "s": "grün", "b": b"\0\1", "j": {"k": [1, 2]}, "t": 7}


@pytest.mark.parametrize(
    ("encoding", "head"),
    [
        ("ndarray:int16:2,3", b""),
        ("ndarray:int16", bytes([2 << 2, 2, 3])),  # two dimensions of one byte each
        ("ndarray", bytes([17, 2 << 2 | 1, 2, 0, 3, 0])),  # int16; two dimensions of two bytes each
    ],
)
def test_arrays_of_mosaicml_say_in_their_bytes_what_their_column_does_not(encoding: str, head: bytes) -> None:
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    read = mds._decoder(encoding)
    assert np.array_equal(found := read(head + array.tobytes()), array) and found.dtype == np.int16
    with pytest.raises(ValueError, match="an array of shape"):
        read(head + array.tobytes() + b"0")


def test_the_values_of_pairs_are_x_and_y_unless_they_are_named(tmp_path: Path) -> None:
    covey.data.pack([(1, 2)], tmp_path / "usual")
    covey.data.pack([(1, 2)], tmp_path / "named", columns=("a", "b"))
    assert covey.data.remote(tmp_path / "usual")[0] == {"x": 1, "y": 2}
    assert covey.data.remote(tmp_path / "named")[0] == {"a": 1, "b": 2}


def test_what_cannot_be_packed_is_refused(tmp_path: Path) -> None:
    for number, (data, said) in enumerate(
        [
            ([(1, 2, 3)], "a sample has 3 values, and columns names 2"),
            ([{"x": object()}], "column 'x' has a object, which cannot be packed: pickles are refused"),
            ([{"x": np.array([object()])}], "an array of Python objects"),
            ([], "data is empty"),
            ([{"x": 1}, {"x": "a"}], "all samples must have the same columns"),
        ]
    ):
        with pytest.raises(PlanError, match=said):
            covey.data.pack(data, tmp_path / str(number))
    with pytest.raises(PlanError, match='columns="a,b": samples are dicts and have names: omit it'):
        covey.data.pack([{"x": 1, "y": 2}], tmp_path / "named", columns=("a", "b"))
    with pytest.raises(PlanError, match="unknown format 'tarr'; did you mean 'tar'"):
        covey.data.pack([{"x": 1}], tmp_path / "new", "tarr")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    with pytest.raises(PlanError, match="is not empty"):
        covey.data.pack([{"x": 1}], tmp_path / "full")


def test_questions_that_cannot_be_answered_are_refused(tmp_path: Path) -> None:
    packed(tmp_path / "set", "mds")
    with pytest.raises(covey.CoveyError, match="has no column 'z'; it has x, y"):
        covey.data.remote(tmp_path / "set", columns=("z",))[0]
    with pytest.raises(PlanError, match="has shards of the format 'mds', not 'tar'"):
        covey.data.remote(tmp_path / "set", "tar")
    (tmp_path / "set/shards.json").unlink()
    with pytest.raises(PlanError, match="no name ends with .tar"):
        covey.data.remote(tmp_path / "set", "tar")
    with pytest.raises(PlanError, match="needs at least one sample of a batch"):
        covey.data.remote(tmp_path / "set", "mds").batches(1, readers=2)


def test_readers_share_batches(tmp_path: Path) -> None:
    packed(tmp_path / "set", "safetensors")
    data = covey.data.remote(tmp_path / "set", columns=("x",))
    alone = [int(sample[0][0, 0]) for sample in next(data.batches(8, start=30))]
    both = [next(data.batches(8, start=30, reader=reader, readers=2)) for reader in range(2)]
    assert [int(sample[0][0, 0]) for part in both for sample in part] == alone


def trained(data: Any, workers: int, batch_size: int = 10) -> covey.Result:
    task = covey.Task(
        model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 7)),
        data=data,
        optimizer=lambda params: torch.optim.SGD(params, lr=1e-4),
        loss=nn.functional.cross_entropy,
        batch_size=batch_size,
    )
    return covey.fit(task, "allreduce", engine="simulated", epochs=2, workers=workers)


def test_shards_are_data_of_a_task(tmp_path: Path) -> None:
    """Two workers with batches of 10 train as one with batches of 20: they see the same samples in the same order."""
    packed(tmp_path / "set", "mds")
    data = covey.data.remote(tmp_path / "set", columns=("x", "y"))
    two, one = trained(data, workers=2), trained(data, workers=1, batch_size=20)
    assert two.samples == one.samples == 600
    assert all(torch.allclose(two.weights[name], one.weights[name], atol=1e-5) for name in one.weights)


def test_a_damaged_shard_ends_a_run_and_is_named(tmp_path: Path) -> None:
    packed(tmp_path / "set", "safetensors")
    file = tmp_path / "set/shard.00002.safetensors"
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)
    with pytest.raises(covey.CoveyError, match=r"shard 'shard.00002.safetensors' is damaged, or changed"):
        trained(covey.data.remote(tmp_path / "set", columns=("x", "y")), workers=1)
