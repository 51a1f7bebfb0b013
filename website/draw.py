"""The pictures of docs/pictures: `python website/draw.py` draws them again, by covey itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
SPECS = {
    "bsp": "bsp", "ssp": "ssp(bound=1)", "asynchronous": "asynchronous", "easgd": "easgd(period=2)",
    "allreduce": "allreduce", "slow_worker": "ssp(bound=3)",
}  # fmt: skip


def covey(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "covey", *words, "--quiet"], check=True)


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    for name, spec in SPECS.items():
        workers, steps = ("4", "8") if name == "slow_worker" else ("3", "5")
        slow = ["--slow", "3:4x"] if name == "slow_worker" else ["--slow", "2:2x"]
        covey(
            "trace", "examples/digits.py", "--strategy", spec, "--workers", workers, "--steps", steps, *slow,
            "--bandwidth", "100mbit", "--picture", str(PICTURES / f"{name}.svg"),
        )  # fmt: skip


if __name__ == "__main__":
    main()
