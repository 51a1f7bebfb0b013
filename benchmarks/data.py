"""Samples per second of local shards, in shuffled order: covey, WebDataset and MosaicML's StreamingDataset.

    python -m venv /tmp/webdataset && /tmp/webdataset/bin/pip install webdataset numpy
    python -m venv /tmp/streaming && /tmp/streaming/bin/pip install mosaicml-streaming
    python -m benchmarks.data /tmp/webdataset/bin/python /tmp/streaming/bin/python [ROUNDS]

Each library reads the same shards, which covey wrote, in a process and environment of its own: WebDataset tar, and
StreamingDataset MDS. A pass is read once unmeasured, so that all files are in memory and covey has checked its hashes.
covey's order is a permutation of all samples; WebDataset's is a buffer of 1,000.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import torch

import covey

SAMPLES = 20_000
MEASURED = """
import sys, time
def rate(samples):
    for _ in samples():
        pass
    begin = time.perf_counter()
    count = sum(1 for _ in samples())
    assert count == int(sys.argv[2]), count
    print(count / (time.perf_counter() - begin))
"""
OURS = """
import covey
from covey.data.arithmetic_order import Permutation
data = covey.data.remote(sys.argv[1])
def samples():
    for start in range(0, len(data), 4096):
        for number in Permutation(len(data), 0, 0).at(range(start, min(len(data), start + 4096))).tolist():
            yield data[number]
rate(samples)
"""
WEBDATASET = """
import glob, webdataset
files = sorted(glob.glob(sys.argv[1] + "/*.tar"))
rate(lambda: webdataset.WebDataset(files, shardshuffle=len(files)).shuffle(1000).decode())
"""
STREAMING = """
from streaming import StreamingDataset
data = StreamingDataset(local=sys.argv[1], shuffle=True, batch_size=1)
rate(lambda: iter(data))
"""


def measure(webdataset: str, streaming: str, rounds: int = 5) -> dict[str, object]:
    """Medians, and covey's speed relative to each peer, round by round."""
    rates: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as place:
        pictures = torch.randint(256, (SAMPLES, 3, 32, 32), dtype=torch.uint8)
        for format in ("tar", "mds"):
            covey.data.pack((pictures, torch.arange(SAMPLES)), Path(place, format), format, ("x", "y"), 1 << 24)
        programs = [
            ("covey, tar", sys.executable, OURS, "tar"), ("WebDataset", webdataset, WEBDATASET, "tar"),
            ("covey, mds", sys.executable, OURS, "mds"), ("StreamingDataset", streaming, STREAMING, "mds"),
        ]  # fmt: skip
        for _ in range(rounds):
            for name, python, program, format in programs:
                words = [python, "-c", MEASURED + program, str(Path(place, format)), str(SAMPLES)]
                done = subprocess.run(words, capture_output=True, text=True, check=True)
                rates.setdefault(name, []).append(float(done.stdout.split()[-1]))
    pairs = {"WebDataset": "covey, tar", "StreamingDataset": "covey, mds"}
    ratios = {
        peer: [round(a / b, 2) for a, b in zip(rates[us], rates[peer], strict=True)] for peer, us in pairs.items()
    }
    return {
        "samples per second": {name: round(median(found)) for name, found in rates.items()},
        "covey relative to": ratios,
    }


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], sys.argv[2], int((sys.argv[3:] or ["5"])[0])), indent=1))
