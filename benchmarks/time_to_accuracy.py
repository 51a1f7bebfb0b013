"""Who reaches 86 % on Fashion-MNIST first: covey's strategies and codecs, or PyTorch, torchft and Hivemind?

Four hosts of a lab with 0.45 of a core each, at 10, 100 and 1000 Mbit/s, also with one of them four times slower; and
two more at 100 Mbit/s that nobody has tuned for: a small GPT that learns verse, and a small CNN for the digits. In a
cell all train the same model from the same weights on batches in the same order, one thread each, and no evaluation
counts. Root.

`python -m benchmarks.time_to_accuracy --kept FILE` runs the usual ones, and goes on from FILE where it was stopped;
`--minutes` ends a sitting, `--all` runs everything, `--table` only shows what FILE holds. A run on a machine that was
not quiet is repeated, at most twice.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.advice import WITHIN, tied
from benchmarks.kept import Kept
from benchmarks.peers.courses import CHARACTERS, COURSES, DIGITS
from benchmarks.peers.machine import disturbance, watched
from benchmarks.peers.track import HOSTS, SLOWER, Cell, Finish, Peer, race

ALONE = "compute alone"
PEERS: Mapping[str, Peer] = {
    "DDP": Peer("ddp"),
    "DDP + fp16 hook": Peer("ddp", {"hook": "fp16"}),
    "DDP + PowerSGD 4": Peer("ddp", {"rank": 4}),
    "local SGD 8": Peer("local_sgd", {"period": 8}),
    "local SGD 32": Peer("local_sgd", {"period": 32}),
    "local SGD 128": Peer("local_sgd", {"period": 128}),
    "torchft LocalSGD 32": Peer("ft", {"period": 32}, needs="torchft"),
    "torchft DiLoCo 32": Peer("ft", {"period": 32, "outer": True}, needs="torchft"),
    "Hivemind 32": Peer("hive", {"period": 32}, needs="hivemind"),
}
BLOCKS = "bmuf(period=8, momentum=0.4, reset=false)"  # best of a search with other seeds: docs/history/
OURS = (
    "allreduce", "allreduce + fp16", "allreduce + powersgd(rank=4)", "allreduce + topk(density=0.01)",
    "allreduce + onebit", "allreduce + dgc", "local_sgd(period=8)", "local_sgd(period=32)", "local_sgd(period=128)",
    "local_sgd(period=8) + int8", "local_sgd(period=32) + int8", "local_sgd(period=8) + onebit",
    "local_sgd(period=8) + powersgd(rank=4)", "local_sgd(period=8) + powersgd(rank=16)",
    "local_sgd(period=32) + powersgd(rank=4)", "local_sgd(period=32) + topk(density=0.01)", BLOCKS,
    f"{BLOCKS} + powersgd(rank=16)", "bsp + topk(density=0.01)", "asynchronous", "asynchronous + topk(density=0.01)",
    "easgd(period=8)", "easgd(period=32)", "easgd(period=8) + int8", "gosgd(probability=0.05)", "adpsgd",
    "diloco(period=32)", "tree_easgd",
)  # fmt: skip
USUAL: dict[str, Sequence[str]] = {
    "10mbit": (
        "DDP + PowerSGD 4", "local SGD 32", "Hivemind 32", "torchft LocalSGD 32", "torchft DiLoCo 32",
        "allreduce + powersgd(rank=4)", "local_sgd(period=8) + powersgd(rank=16)", f"{BLOCKS} + powersgd(rank=16)",
    ),
    "100mbit": (
        "DDP + PowerSGD 4", "local SGD 8", "local SGD 32", "torchft LocalSGD 32", "torchft DiLoCo 32",
        "local_sgd(period=8)", "local_sgd(period=8) + powersgd(rank=16)", f"{BLOCKS} + powersgd(rank=16)",
    ),
    "1000mbit": (
        "DDP", "local SGD 8", "local SGD 32", "torchft LocalSGD 32", "torchft DiLoCo 32", "allreduce",
        "local_sgd(period=8)", BLOCKS,
    ),
    "1000mbit, one slow": (
        "DDP", "local SGD 32", "Hivemind 32", "easgd(period=8)", "asynchronous", "adpsgd", "tree_easgd",
    ),
}  # fmt: skip
for untuned in (CHARACTERS, DIGITS):
    USUAL |= {f"100mbit, {untuned.name}": (
        "DDP", "DDP + PowerSGD 4", "local SGD 8", "local SGD 32", "torchft LocalSGD 32", "torchft DiLoCo 32",
        "allreduce", "local_sgd(period=8)", BLOCKS, f"{BLOCKS} + powersgd(rank=16)",
    )}  # fmt: skip
AGAIN = 2  # repetitions of a run that others disturbed
"""What is run of each cell unless everything is asked for: who may win there, and who is measured against."""


@dataclass(frozen=True)
class Entry:
    """One contestant in one cell with one seed."""

    cell: Cell
    name: str
    seed: int

    @property
    def key(self) -> str:
        return f"{self.cell} | {self.name} | {self.seed}"


class KeptFinishes(Kept):
    """The finishes of all runs in a file."""

    def finishes(self, cell: Cell, name: str) -> list[Finish]:
        """Of all seeds."""
        return [Finish(**found) for key, found in self.found.items() if key.startswith(f"{cell} | {name} | ")]

    def paces(self) -> list[float]:
        """How fast a core was at each run."""
        return [found["machine"]["pace"] for found in self.found.values() if found.get("machine")]

    def names(self, cell: Cell) -> list[str]:
        split = (key.split(" | ") for key in self.found)
        return list(dict.fromkeys(parts[1] for parts in split if parts[0] == str(cell) and parts[1] != "advice"))


def chosen(given: argparse.Namespace, cell: Cell, kept: KeptFinishes) -> list[str]:
    """Who runs in a cell; what was advised for it does too."""
    names = [*PEERS, *OURS] if given.all else USUAL.get(str(cell), [*PEERS, *OURS])
    if given.ours:
        names = [*(name for name in names if name in PEERS), *given.ours]
    names = [name for name in names if any(part in name for part in given.only)]
    advice = kept.found.get(f"{cell} | advice", {"workers": 0})
    return list(dict.fromkeys([*names, advice["spec"]] if advice["workers"] == HOSTS else names))


def entries(given: argparse.Namespace, cells: Sequence[Cell], kept: KeptFinishes) -> Iterator[Entry]:
    """What is to be run, in order: all of a cell before the next, seed by seed."""
    for seed in range(given.seeds):
        for course in dict.fromkeys(cell.course for cell in cells):
            yield Entry(Cell("1000mbit", cpu=given.cpu, course=course), ALONE, seed)
        for cell in cells:
            yield from (Entry(cell, name, seed) for name in chosen(given, cell, kept))


def run(entry: Entry, given: argparse.Namespace) -> Finish | None:
    """None where the peer is not installed."""
    from benchmarks.peers import ours  # the data comes with it

    if entry.name == ALONE:
        return race(Peer("alone", hosts=1), entry.cell, entry.seed, 10 * given.limit)
    if entry.name not in PEERS:
        return ours.race(entry.name, entry.cell, entry.seed, given.limit)
    peer = PEERS[entry.name]
    if not peer.installed(given.python):
        return None
    return race(peer, entry.cell, entry.seed, given.limit, given.python)


def undisturbed(entry: Entry, given: argparse.Namespace, kept: KeptFinishes) -> Finish | None:
    """A run on a machine of its own, or the last of those that were not."""
    finish = None
    for again in range(1 + AGAIN):
        measures: dict[str, float] = {}
        with watched(measures):
            finish = run(entry, given)
        if finish is None:
            return None
        finish.machine = measures
        if not (wrong := disturbance(measures, kept.paces())):
            break
        finish.machine["disturbed"] = 1.0
        end = "it is run again" if again < AGAIN else "this result stays, and says so"
        print(f"{entry.key}: {wrong}; {end}", file=sys.stderr, flush=True)
    return finish


def summary(kept: KeptFinishes, cell: Cell) -> list[dict[str, Any]]:
    """A row for each contestant of a cell, the fastest first; its ratios are of medians over the seeds."""
    alone = kept.finishes(Cell("1000mbit", course=cell.course), ALONE)
    bare = statistics.median(finish.seconds for finish in alone) if alone else float("nan")
    if cell.slow:
        bare *= HOSTS / (HOSTS - 1 + 1 / SLOWER)  # with the work shared out as it should be
    rows = [_row(name, kept.finishes(cell, name)) for name in kept.names(cell) if name != ALONE]
    best = min((row["seconds"] for row in rows if row["name"] in PEERS), default=float("nan"))
    for row in rows:
        row |= {"to_peer": row["seconds"] / best, "to_compute": row["seconds"] / bare}
    return sorted(rows, key=lambda row: (row["seconds"], row["broken_off"]))


def _row(name: str, finishes: Sequence[Finish]) -> dict[str, Any]:
    """Who does not reach the target with a seed is infinitely late with that one."""
    times = [finish.seconds if finish.reached else float("inf") for finish in finishes]
    last = max(finishes, key=lambda finish: finish.seconds)
    return {
        "name": name, "seconds": statistics.median(times), "times": times,
        "samples": statistics.median(finish.samples for finish in finishes),
        "sent": statistics.median(finish.sent for finish in finishes),
        "broken_off": last.seconds, "score": last.score, "why": next((f.why for f in finishes if f.why), ""),
        "disturbed": sum("disturbed" in finish.machine for finish in finishes),
    }  # fmt: skip


def table(kept: KeptFinishes, cell: Cell) -> str:
    """As it goes into docs/benchmarks.md."""
    lines = ["| | seconds | over the best peer | over compute alone | samples | MB sent per host |", "|---" * 6 + "|"]
    for row in summary(kept, cell):
        name = row["name"] if row["name"] in PEERS else f"`{row['name']}`"
        lines.append(f"| {name} | {_seconds(row)} | {row['samples']:,.0f} | {row['sent'] / 1e6:,.1f} |")
    advice = kept.found.get(f"{cell} | advice")
    if advice:
        foreseen = f"{advice['seconds']:.1f} s predicted" if advice["seconds"] else "no time predicted"
        told = f"`{advice['spec']}` on {advice['workers']} workers, {foreseen}"
        lines.append(f"\n`covey advise` puts first: {told} ({advice['sure']}). It {advice_holds(kept, cell)}.")
    return "\n".join(lines)


def advice_holds(kept: KeptFinishes, cell: Cell) -> str:
    """Whether what was advised is within 10 % of the best of covey's that was run, or tied with it."""
    advice = kept.found.get(f"{cell} | advice")
    rows = {row["name"]: row for row in summary(kept, cell) if row["name"] not in PEERS}
    if advice is None or advice["spec"] not in rows or advice["workers"] != HOSTS:
        return "not run"
    best, mine = min(rows.values(), key=lambda row: row["seconds"]), rows[advice["spec"]]
    over = mine["seconds"] / best["seconds"]
    held = over <= WITHIN or tied(mine["times"], best["times"])
    return f"{'holds' if held else 'does not hold'}: {over:.2f}x of {best['name']} ({len(mine['times'])} seeds)"


def _seconds(row: Mapping[str, Any]) -> str:
    """The time and its ratios, or where it was broken off."""
    if row["seconds"] == float("inf"):
        if row["broken_off"] == float("inf"):
            return f"failed: {row['why']} | | "
        score = f"{row['score']:.2f}" if row["score"] > 1 else f"{row['score']:.0%}"
        return f"more than {row['broken_off']:.0f} ({score}) | | "
    spread = f" ({min(row['times']):.1f} to {max(row['times']):.1f})" if len(row["times"]) > 1 else ""
    spread += f", {row['disturbed']} disturbed" if row["disturbed"] else ""
    return f"{row['seconds']:.1f}{spread} | {_times(row['to_peer'])} | {_times(row['to_compute'])}"


def _times(ratio: float) -> str:
    """Nothing where there is nobody yet to compare with."""
    return "" if math.isnan(ratio) else f"{ratio:.2f}x"


def advise(cells: Sequence[Cell], kept: KeptFinishes) -> None:
    from benchmarks.peers import ours

    for cell in cells:
        if f"{cell} | advice" not in kept.found:
            found = ours.advised(cell)
            first = found.choices[0]
            said = {"spec": first.spec, "workers": first.workers, "seconds": first.seconds, "sure": found.sure}
            kept.keep(f"{cell} | advice", said)
            print(f"{cell}: advised {said}", file=sys.stderr, flush=True)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="10mbit,100mbit,1000mbit", help="of the links")
    parser.add_argument("--slow", default="1000mbit", help="rates that are also run with one slow host; '' for none")
    parser.add_argument("--untuned", default="characters,digits", help="at 100 Mbit/s; '' for none")
    parser.add_argument("--only", action="append", help="contestants whose name has this in it; may be repeated")
    parser.add_argument("--ours", action="append", help="a strategy of covey, not the usual ones; may be repeated")
    parser.add_argument("--all", action="store_true", help="everything, also what takes minutes")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--limit", type=float, default=180.0, help="seconds of training until a run is broken off")
    parser.add_argument("--cpu", type=float, default=0.45, help="cores of a host")
    parser.add_argument("--kept", type=Path, help="a file for the results of one --cpu, where failures stay too")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="after which no further run is begun")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the peers")
    parser.add_argument("--advice", action="store_true", help="first ask `covey advise` for each cell: minutes each")
    parser.add_argument("--table", action="store_true", help="run nothing, show what --kept holds")
    given = parser.parse_args()
    given.only = given.only or [""]
    return given


def main() -> None:
    given = options()
    rates, slow, more = (list(filter(None, text.split(","))) for text in (given.rates, given.slow, given.untuned))
    cells = [Cell(rate, cpu=given.cpu) for rate in rates] + [Cell(rate, True, given.cpu) for rate in slow]
    cells += [Cell("100mbit", cpu=given.cpu, course=COURSES[name]) for name in more]
    kept, until = KeptFinishes(given.kept), time.monotonic() + 60 * given.minutes
    if given.advice and not given.table:
        advise(cells, kept)
    for entry in [] if given.table else entries(given, cells, kept):
        if time.monotonic() > until:
            print("time is up: the same command goes on from here", file=sys.stderr)
            break
        if entry.key not in kept.found and (finish := undisturbed(entry, given, kept)):
            kept.keep(entry.key, asdict(finish))
            print(f"{entry.key}: {replace(finish, curve=[])}", file=sys.stderr, flush=True)
    for cell in cells:
        print(f"\n**{cell}**\n\n{table(kept, cell)}")
    held = sum(advice_holds(kept, cell).startswith("holds") for cell in cells)
    print(f"\nThe advice is within 10 % of covey's best, or tied with it, in {held} of {len(cells)} cells.")


if __name__ == "__main__":
    main()
