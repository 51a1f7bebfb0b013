"""covey data pack, verify, show: data sets in shards."""

from __future__ import annotations

import json as text_of
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covey.cli import json_file, options
from covey.cli.errors import explained
from covey.cli.options import flag
from covey.errors import PlanError, ShardError

if TYPE_CHECKING:
    from covey.data.storage.stored import StoredData

Place = Annotated[str, typer.Argument(metavar="PLACE", help="A folder of shards, or a URL such as s3://bucket/folder.")]
From = Annotated[str, typer.Argument(metavar="FILE[:NAME]|PLACE", help="A Python file with a covey.Task, or shards.")]
Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder for the shards.")]
_FORMAT = "mds, tar, safetensors or parquet; not needed where there is a shards.json."
Format = Annotated[str | None, flag("--format", "NAME", _FORMAT, options.RUN)]
Into = Annotated[str, flag("--format", "NAME", "mds, tar, safetensors or parquet.", options.RUN)]
Of = Annotated[str | None, flag("--from", "NAME", "The format of PLACE, where it has no shards.json.", options.RUN)]
Columns = Annotated[str | None, flag("--columns", "NAME,…", "Names of a sample's values. (default: x,y)", options.RUN)]
ShardSize = Annotated[str, flag("--shard-size", "SIZE", "The size of a shard, about.", options.RUN)]
WriteIndex = Annotated[
    bool, flag("--write-index", "", "Write shards.json, with the hashes of what is there.", options.RUN)
]
FIRST = 6  # numbers of an array that are shown
Sample = Annotated[int, flag("--sample", "N", "Which sample to show.", options.RUN, least=0)]


@options.grouped
def pack(
    *, data: From, folder: Folder, format: Into = "mds", of: Of = None, columns: Columns = None,
    shard_size: ShardSize = "64MB", output: options.OutputFlags,
) -> None:  # fmt: skip
    """Write the data of a task, or other shards, into shards with an index.

    covey data pack examples/digits.py shards --format tar
    """
    with explained(output.voice):
        json_file.check(output.json)
        from covey.data.storage.packing import pack as write
        from covey.simulate.units import parse_size

        names = tuple(name.strip() for name in (columns or "").split(",") if name.strip())
        index = write(_given(data, of, columns), folder, format, names, int(parse_size(shard_size)))
        told = {"place": str(folder), "format": format, "shards": len(index.shards)}
        told |= {
            "samples": sum(entry.samples or 0 for entry in index.shards),
            "bytes": sum(e.size for e in index.shards),
        }
        _tell(output, told)


@options.grouped
def verify(
    *, place: Place, format: Format = None, write_index: WriteIndex = False, output: options.OutputFlags
) -> None:
    """Read every sample of every shard, and name each shard that is damaged or changed.

    covey data verify shards
    """
    with explained(output.voice):
        json_file.check(output.json)
        from covey.data.storage.packing import check_shards
        from covey.data.storage.packing import write_index as write
        from covey.data.storage.stored import remote
        from covey.decoding import printable

        data = remote(place, format)
        wrong = {}
        for entry, said in check_shards(data):
            if said:
                wrong[entry.name] = said
                typer.echo(printable(said), err=True)
        hashed = sum(bool(entry.hashes) for entry in data.index.shards)
        told = _told(data) | {"with hashes": hashed, "damaged": len(wrong)}
        if write_index and not wrong:
            if not Path(place).is_dir():
                raise PlanError(f"{place} is not a folder: shards.json can only be written into one")
            write(Path(place), data)
            told["with hashes"] = len(data.index.shards)
        _tell(output, told | ({"errors": wrong} if output.json else {}))
        if wrong:
            raise ShardError(f"{place}: {len(wrong)} of {len(data.index.shards)} shards cannot be trained on")


@options.grouped
def show(*, place: Place, format: Format = None, sample: Sample = 0, output: options.OutputFlags) -> None:
    """Show how many shards and samples there are, and the columns of one sample: kinds, shapes and first values.

    covey data show shards
    """
    with explained(output.voice):
        json_file.check(output.json)
        from covey.data.storage.stored import remote

        data = remote(place, format)
        if not 0 <= sample < len(data):
            raise PlanError(f"--sample {sample}: there are {len(data)} samples, from 0 on")
        columns = {f"column {name}": _kind(value) for name, value in data[sample].items()}
        _tell(output, _told(data) | columns)


def _given(data: str, of: str | None, columns: str | None) -> Any:
    from covey.data.storage.stored import remote
    from covey.model.build import data_of
    from covey.task.file import load_task

    if Path(data).is_dir() or "://" in data:
        if columns is not None:
            raise PlanError(f"--columns {columns} names the values of a task's samples, and shards have names: omit it")
        return remote(data, of)
    if of is not None:
        raise PlanError(f"--from {of}: {data} is not a folder or a URL of shards")
    return data_of(load_task(data))


def _told(data: StoredData) -> dict[str, Any]:
    entries = data.index.shards
    size = sum(entry.size for entry in entries)
    return {"format": data.index.format, "shards": len(entries), "samples": len(data), "bytes": size}


def _kind(value: Any) -> str:
    if hasattr(value, "shape") and value.shape:
        flat = value.reshape(-1)
        first = flat[:FIRST].tolist()
        numbers = ", ".join(f"{number:.4g}" if isinstance(number, float) else str(number) for number in first)
        more = ", …" if len(flat) > FIRST else ""
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}: {numbers}{more}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '…'}"


def _tell(output: Any, told: dict[str, Any]) -> None:
    from covey.decoding import printable

    json_file.write(output.json, text_of.dumps(told, indent=1) + "\n")
    if not output.quiet and output.json != json_file.OUTPUT:
        for name, value in told.items():
            if not isinstance(value, dict):
                typer.echo(printable(f"{name:<12} {value:,}" if isinstance(value, int) else f"{name:<12} {value}"))
