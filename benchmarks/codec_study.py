"""What does each codec save, what does it cost, and what does the model lose? A CNN, an MLP and a small transformer.

Every codec trains each of them in virtual time as `bsp + CODEC` with two workers, the same number of steps as plain
numbers, with three seeds: bytes are what workers push, scores those of the end. Encoding and decoding are timed on one
thread with the model's own shapes; a codec pays below the bandwidth at which that is what it saves on the wire.

`python -m benchmarks.codec_study --kept FILE` goes on from FILE where it was stopped; `--table` only shows what it has.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

import covey
from covey import catalog
from covey.exchange.codec_costs import Cost, timed
from covey.model.flat import Flat
from covey.simulate import format_rate
from covey.task import Task
from examples import characters, fashion

PLAIN = "dense"
CODECS = (
    "fp16", "bf16", "truncated", "fixed16", "int8", "natural", "dorefa", "qsgd", "terngrad", "twobit(threshold=0.01)",
    "onebit", "strom", "topk(density=0.01)", "mstopk(density=0.01)", "randomk(density=0.01)", "threshold(value=0.005)",
    "entropy", "sbc(density=0.01, momentum=0.9)", "dgc(density=0.01, warmup=0)", "powersgd(rank=2)", "sketch",
)  # fmt: skip
"""As they come; with a setting where it has to fit the size of gradients, or a warm-up would outlast the run."""
WORKERS, SEEDS, TESTED = 2, 3, 1000
BRINGS_MOMENTUM = ("dgc", "sbc")


@dataclass(frozen=True)
class Subject:
    """What is trained, and how its score is called."""

    task: Callable[[], Task]
    metric: str
    better: float  # 1: more is better
    digits: int
    steps: int


def _optimizer(rate: float) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda params: torch.optim.SGD(params, lr=rate, momentum=0.9)


@cache
def cnn() -> Task:
    tested = covey.data.fashion_mnist(train=False)[:TESTED]
    return replace(fashion.task, batch_size=32, evaluate=covey.accuracy(tested))


@cache
def mlp() -> Task:
    return replace(cnn(), model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10)))


@cache
def gpt() -> Task:
    return replace(characters.task, model=lambda: characters.gpt(32, 2), batch_size=8, optimizer=_optimizer(0.1))


SUBJECTS: Mapping[str, Subject] = {
    "CNN": Subject(cnn, "accuracy", 1.0, 1, 50),
    "MLP": Subject(mlp, "accuracy", 1.0, 1, 150),
    "transformer": Subject(gpt, "bits", -1.0, 2, 80),
}


class Kept:
    """What was found, in a file after every run; what is there is not run again."""

    def __init__(self, file: Path | None) -> None:
        self.file = file
        self.found: dict[str, dict[str, float]] = json.loads(file.read_text()) if file and file.exists() else {}

    def keep(self, key: str, found: dict[str, float]) -> None:
        self.found[key] = found
        if self.file:
            self.file.write_text(json.dumps(self.found, indent=1))

    def runs(self, subject: str, codec: str) -> list[dict[str, float]]:
        """With every seed that all codecs have had, or where there is none with any."""
        seeds = [seed for seed in range(99) if f"{subject} | {PLAIN} | seed {seed}" in self.found]
        whole = [seed for seed in seeds if all(f"{subject} | {one} | seed {seed}" in self.found for one in CODECS)]
        keys = (f"{subject} | {codec} | seed {seed}" for seed in whole or seeds)
        return [self.found[key] for key in keys if key in self.found]

    def cost(self, subject: str, codec: str) -> Cost | None:
        found = self.found.get(f"{subject} | {codec} | cost")
        return Cost(**found) if found else None


def trained(subject: Subject, codec: str, seed: int, steps: int) -> dict[str, float]:
    """A run to its end: the score, and the bytes of what workers pushed."""
    task = subject.task()
    if codec.startswith(BRINGS_MOMENTUM):
        rate = task.optimizer([("w", nn.Parameter(torch.zeros(1)))]).param_groups[0]["lr"]
        task = replace(task, optimizer=lambda params: torch.optim.SGD(params, lr=rate))
    spec = "bsp" if codec == PLAIN else f"bsp + {codec}"
    result = covey.fit(task, spec, WORKERS, engine="simulated", steps=steps, seed=seed)
    if result.stopped == "interrupted":
        raise KeyboardInterrupt
    score = result.history[-1][subject.metric]
    assert score is not None
    return {"score": score, "bytes": result.traffic.by_role["worker->server"]}


def cost(subject: Subject, codec: str) -> dict[str, float]:
    """Seconds to encode and to decode a gradient of this model; how many bytes travel is up to real gradients."""
    flat = Flat(subject.task().model())
    form = replace(flat.form(tuple((0, part.numel()) for part in flat.params.parts)), epoch=1)
    found = timed(catalog.codec(codec), form)
    return {"encode": found.encode, "decode": found.decode, "sent": found.sent, "plain": found.plain}


def work(given: argparse.Namespace) -> Iterator[tuple[str, Callable[[], dict[str, float]]]]:
    """What there is to do, seed by seed, so that a study that was stopped has whole tables."""
    named = [codec for codec in (PLAIN, *CODECS) if any(part in codec for part in given.only) or codec == PLAIN]
    subjects = {name: one for name, one in SUBJECTS.items() if name in given.subjects}
    for name, subject in subjects.items():
        for codec in named[1:]:
            yield f"{name} | {codec} | cost", lambda s=subject, c=codec: cost(s, c)  # type: ignore[misc]
    for seed in range(given.seeds):
        for name, subject in subjects.items():
            for codec in named:
                yield (
                    f"{name} | {codec} | seed {seed}",
                    lambda s=subject, c=codec, n=seed: trained(s, c, n, given.steps or s.steps),  # type: ignore[misc]
                )


def row(kept: Kept, codec: str) -> list[str]:
    """What is known of a codec with each model, and what it costs with the first."""
    cells = [f"`{codec}`"]
    for name, subject in SUBJECTS.items():
        plain, runs = kept.runs(name, PLAIN), kept.runs(name, codec)
        if not plain or not runs:
            cells += ["", ""]
            continue
        ratio = plain[0]["bytes"] / statistics.fmean(run["bytes"] for run in runs)
        cells += [f"{ratio:.3g}", _scores(subject, runs, plain)]
    return [*cells, *_costs(kept, codec)]


def _scores(subject: Subject, runs: Sequence[dict[str, float]], plain: Sequence[dict[str, float]]) -> str:
    """The mean over seeds and how far they lie apart, and how much that is worse than plain numbers."""
    scale = 100 if subject.metric == "accuracy" else 1
    found, without = ([scale * run["score"] for run in many] for many in (runs, plain))
    mean, spread = statistics.fmean(found), (max(found) - min(found)) / 2
    worse = (mean - statistics.fmean(without)) * subject.better
    told = f"{mean:.{subject.digits}f}" + (f" ± {spread:.{subject.digits}f}" if len(found) > 1 else "")
    return told if runs is plain or runs == plain else f"{told} ({worse:+.{subject.digits}f})"


def _costs(kept: Kept, codec: str) -> list[str]:
    name = next(iter(SUBJECTS))
    found, plain, runs = kept.cost(name, codec), kept.runs(name, PLAIN), kept.runs(name, codec)
    if found is None or not plain or not runs:
        return ["", "", ""]
    sent = found.plain * statistics.fmean(run["bytes"] for run in runs) / plain[0]["bytes"]
    mega = found.plain / 1e6
    below = replace(found, sent=sent).below
    return [f"{1e3 * found.encode / mega:.2f}", f"{1e3 * found.decode / mega:.2f}", format_rate(below)]


def table(kept: Kept) -> str:
    """All that was found, as Markdown."""
    units = {"accuracy": "%", "bits": "bits"}
    seeds = {name: len(kept.runs(name, PLAIN)) for name in SUBJECTS}
    heads = [f"{name}: times smaller | {units[one.metric]}, seeds: {seeds[name]}" for name, one in SUBJECTS.items()]
    columns = " | ".join(["codec", *heads, "encode, ms/MB", "decode, ms/MB", "pays below"])
    rows = [" | ".join(row(kept, codec)) for codec in (PLAIN, *CODECS) if kept.runs(next(iter(SUBJECTS)), codec)]
    return "\n".join([f"| {columns} |", "|" + "---|" * (2 * len(SUBJECTS) + 4), *(f"| {one} |" for one in rows)])


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kept", type=Path, help="keep what is found in this file, and go on from it")
    parser.add_argument("--only", nargs="*", default=[""], help="codecs whose names hold one of these")
    parser.add_argument("--subjects", nargs="*", default=list(SUBJECTS), choices=list(SUBJECTS))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--steps", type=int, help="instead of each model's own number")
    parser.add_argument("--table", action="store_true", help="run nothing")
    given = parser.parse_args(words)
    kept = Kept(given.kept)
    for key, act in work(given) if not given.table else ():
        if key not in kept.found:
            kept.keep(key, act())
            print(key, kept.found[key], flush=True)
    print(table(kept))


if __name__ == "__main__":
    main()
