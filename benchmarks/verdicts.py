"""Does `covey compare` say the same thing twice, on real processes? `python -m benchmarks.verdicts --kept FILE`

    same     allreduce under two names, 100 comparisons: told apart in at most 9
    slower   one of the two sleeps in every batch and takes 1.3 times as long, 20 comparisons: named in at least 19
    quiet    ten times what `make run` does: the same winner at least nine times, never another one, 75 s each
    busy     the same beside four busy loops: never another winner

For a quiet machine. It takes about two hours, and goes on from FILE where it was stopped; `--only NAME` runs one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DIGITS, TARGET = ROOT / "examples/digits.py", "accuracy>=0.95"
NAMES = ("allreduce", "horovod")  # the same strategy
SLOWER = 1.3
TIMES = {"same": 100, "slower": 20, "quiet": 10, "busy": 10}
SLOW = """
import dataclasses, time

def waiting(step):
    def step_and_wait(output, y):
        time.sleep({wait})
        return step(output, y)
    return step_and_wait

task = dataclasses.replace(task, loss=waiting(task.loss))
"""


def twins(slow: Path | None = None) -> dict[str, Any]:
    """A comparison of the same strategy with itself, whose second name may train a slower task."""
    from covey.compare import compare, running

    real = running.fit

    def fit(task: str, spec: str, *args: Any, **given: Any) -> Any:
        return real(str(slow) if slow and spec == NAMES[1] else task, spec, *args, **given)

    running.fit = fit
    try:
        whole = compare(str(DIGITS), ",".join(NAMES), 2, until=TARGET)
    finally:
        running.fit = real
    if whole.interrupted:
        raise KeyboardInterrupt
    return {"winner": whole.winner, "verdict": whole.verdict}


def slow_task(folder: Path) -> Path:
    """The digits with a wait in each batch that makes a run 1.3 times as long, by the median of five runs."""
    from covey import fit

    steps = [fit(str(DIGITS), NAMES[0], 2, steps=100, seed=seed).seconds / 100 for seed in range(5)]
    wait = (SLOWER - 1) * statistics.median(steps)
    file = folder / "slow.py"
    file.write_text(DIGITS.read_text() + SLOW.format(wait=wait))
    return file


def command(loops: int = 0) -> dict[str, Any]:
    """What `make run` does, beside busy loops."""
    with busy(loops), tempfile.TemporaryDirectory() as folder:
        file, began = Path(folder, "found.json"), time.monotonic()
        asked = [str(DIGITS), "--workers", "2", "--until", TARGET, "--quiet"]
        kept = ["--report", f"{folder}/report.html", "--json", str(file)]
        subprocess.run([sys.executable, "-m", "covey", "compare", *asked, *kept], cwd=ROOT, check=True)
        found = json.loads(file.read_text())
        return {"winner": found["winner"], "verdict": found["verdict"], "seconds": round(time.monotonic() - began, 1)}


@contextmanager
def busy(loops: int) -> Iterator[None]:
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for one in spinning:
            one.kill()
            one.wait()


def trials(folder: Path) -> Mapping[str, tuple[int, Callable[[], dict[str, Any]]]]:
    """How often each is done, and how."""
    slow: list[Path] = []

    def slower() -> dict[str, Any]:
        slow[:] = slow or [slow_task(folder)]
        return twins(slow[0])

    many = {"same": twins, "slower": slower, "quiet": command, "busy": lambda: command(loops=4)}
    return {name: (TIMES[name], trial) for name, trial in many.items()}


def summary(found: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Of each trial, how often it was made and who won how often; null is a tie, or no verdict."""
    told: dict[str, Any] = {}
    for name, ends in found.items():
        won = Counter(str(end["winner"]) for end in ends)
        told[name] = {"comparisons": len(ends), "winners": dict(won.most_common())}
        if times := [end["seconds"] for end in ends if "seconds" in end]:
            told[name]["longest"] = max(times)
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kept", type=Path, help="a file for what was found, to go on from")
    parser.add_argument("--only", help="one of same, slower, quiet, busy")
    given = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {}
    if given.kept and given.kept.exists():
        found = json.loads(given.kept.read_text())
    with tempfile.TemporaryDirectory() as folder:
        for name, (times, trial) in trials(Path(folder)).items():
            while given.only in (None, name) and len(found.setdefault(name, [])) < times:
                found[name].append(trial())
                print(name, found[name][-1]["verdict"], file=sys.stderr, flush=True)
                if given.kept:
                    given.kept.write_text(json.dumps(found, indent=1))
    print(json.dumps(summary(found), indent=1))


if __name__ == "__main__":
    main()
