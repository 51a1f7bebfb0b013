"""The mesh of a run as a picture: which worker holds what of the model, how full it was, and how long it waited."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from statistics import fmean

from covey.catalog import resolve
from covey.errors import CoveyError
from covey.observe.result import Result, TimeShares
from covey.parallelism.plan.mesh import AXES, Mesh
from covey.simulate.units import format_bytes

WIDE, HIGH, GAP, BAR = 210, 96, 12, 10  # pixels of a worker's box
HOLDS = {"shard": "rows", "expert": "experts", "tensor": "slices"}
PARTS = (("compute", "#2f7ed8"), ("exchange", "#e8a33d"), ("waiting", "#b9bec7"))
WORDS = (
    "A box for each worker; those in a row compute on the same batch. The upper bar is its memory beside the fullest "
    "worker's, the lower one its time: computing (blue), exchange (yellow), waiting (grey)."
)


@dataclass(frozen=True, slots=True)
class PlacedWorker:
    """A worker, its place along each axis, and what it has of the model."""

    rank: int
    replica: int
    place: tuple[int, ...]  # along each of the AXES
    holds: str
    shares: TimeShares


def placed_workers(result: Result) -> list[PlacedWorker]:
    """The workers of a run whose model is divided; nobody where it is not."""
    mesh = _mesh(result)
    shares = {who: one for who, one in result.roles.items() if who.startswith("worker ")}
    if mesh is None or mesh.members < 2 or len(shares) % mesh.members:
        return []
    found = []
    for rank in range(len(shares)):
        replica, member = divmod(rank, mesh.members)
        place = mesh.place(member)
        if f"worker {rank}" in shares:
            found.append(PlacedWorker(rank, replica, place, _held(mesh, place), shares[f"worker {rank}"]))
    return found


def waits(result: Result) -> dict[str, list[float]]:
    """By axis: the mean share of its time that the workers at each place along it have waited."""
    workers, mesh = placed_workers(result), _mesh(result)
    found = {}
    for number, axis in enumerate(AXES):
        size = getattr(mesh, axis) or 1
        if size > 1 and workers:
            found[axis] = [
                fmean(one.shares.waiting for one in workers if one.place[number] == place) for place in range(size)
            ]
    return found


def section(label: str, result: Result) -> str:
    """The picture and how long groups waited, as a part of a page; empty for a run with whole models."""
    workers = placed_workers(result)
    if not workers:
        return ""
    waited = "; ".join(
        f"{axis} " + ", ".join(f"{place}: {share:.0%}" for place, share in enumerate(shares))
        for axis, shares in waits(result).items()
    )
    return (
        f"<section><h2>The mesh of {escape(label)}</h2><p>{WORDS}</p><div class='wide'>{''.join(_picture(workers))}"
        f"</div><p>Waited, on average, by place: {waited}.</p></section>"
    )


def _mesh(result: Result) -> Mesh | None:
    """None also where the strategy is not known here, as one of a plugin is."""
    try:
        mesh = resolve(result.strategy, result.workers).composition.mesh
        return mesh.fitted(result.workers) if isinstance(mesh, Mesh) else None
    except CoveyError:
        return None


def _held(mesh: Mesh, place: Sequence[int]) -> str:
    """In words: its layers, and which part of them."""
    found = []
    if mesh.cut_in_layers and mesh.stages > 1:
        borders = [-1, *mesh.after]
        runs = [
            f"{borders[part] + 1} to {mesh.after[part]}" if part < len(mesh.after) else f"{borders[part] + 1} on"
            for part in range(place[0], mesh.parts, mesh.stages)
        ]
        found.append(f"layers {', '.join(runs)}")
    for axis, index in zip(AXES[1:], place[1:], strict=True):
        size = getattr(mesh, axis) or 1
        if size > 1:
            found.append(f"{HOLDS[axis]} {index + 1}/{size}")
    return ", ".join(found)


def _picture(workers: Sequence[PlacedWorker]) -> Iterator[str]:
    """Rows are those with a batch of their own, columns those who compute on the same one."""
    rows = sorted({_row(one) for one in workers})
    columns = sorted({_column(one) for one in workers})
    fullest = max(one.shares.memory for one in workers)
    width, height = len(columns) * (WIDE + GAP), len(rows) * (HIGH + GAP)
    yield f"<svg class='mesh' viewBox='0 0 {width} {height}' width='{width}' role='img' aria-label='the mesh'>"
    for one in workers:
        left = columns.index(_column(one)) * (WIDE + GAP)
        top = rows.index(_row(one)) * (HIGH + GAP)
        yield f"<g transform='translate({left} {top})'>{''.join(_box(one, fullest))}</g>"
    yield "</svg>"


def _row(worker: PlacedWorker) -> tuple[int, int, int]:
    _, shard, expert, _ = worker.place
    return worker.replica, shard, expert


def _column(worker: PlacedWorker) -> tuple[int, int]:
    stage, _, _, tensor = worker.place
    return stage, tensor


def _box(one: PlacedWorker, fullest: int) -> Iterator[str]:
    inside = WIDE - 20
    yield f"<rect width='{WIDE - 1}' height='{HIGH - 1}' rx='6' fill='none' stroke='#8888'/>"
    yield f"<text x='10' y='18' class='who'>worker {one.rank}, replica {one.replica}</text>"
    yield f"<text x='10' y='35'>{escape(one.holds)}</text>"
    if fullest:
        share = one.shares.memory / fullest
        yield f"<rect class='memory' x='10' y='44' width='{share * inside:.1f}' height='{BAR}' fill='#5aa469'/>"
        yield f"<text x='10' y='66'>{format_bytes(one.shares.memory)}</text>"
    at = 0.0
    for name, colour in PARTS:
        share = getattr(one.shares, name)
        yield (
            f"<rect class='{name}' x='{10 + at * inside:.1f}' y='74' width='{share * inside:.1f}' height='{BAR}' "
            f"fill='{colour}'><title>{name} {share:.0%}</title></rect>"
        )
        at += share
