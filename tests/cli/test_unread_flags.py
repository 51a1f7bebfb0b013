"""A flag that a command would not read is refused: an option is obeyed or refused, never ignored."""

from __future__ import annotations

import shlex

import pytest
from typer.testing import CliRunner

from covey.cli import app

TASK = "examples/digits.py"
PLAN = "serve digits --plan examples/arrivals.csv --prices examples/prices.toml"


@pytest.mark.parametrize(("words", "said"), [
    (f"cut {TASK} --tensor 2 --stages 3 --picture a.svg", "cuts no stages: omit it, or --picture, --stages"),
    (f"cut {TASK} --tensor 2 --bandwidth 1gbit", "cuts no stages: omit it, or --bandwidth"),
    (f"cut {TASK} --split none", "--split none says how --tensor divides layers: add --tensor N"),
    (f"advise {TASK} --quick --report a.html", "--report a.html is the page of --delays: add --delays"),
    (f"advise {TASK} --delays --exactly-once --top 3", "for every pattern: omit it, or --exactly-once, --top"),
    (f"advise {TASK} --delays --until accuracy:0.9 --quick", "omit it, or --quick, --until"),
    (f"advise {TASK} --quick --seed 3", "formulas, which have no seed"),
    (f"compare {TASK} --simulate --engine lab", "--engine lab on real machines: omit either"),
    ("tune study.json --rehearse --space a=1|2 --save a", "trains nothing: omit it, or --space, --save"),
    (f"jobs submit --claim mine -- run {TASK}", "a job in a queue needs no --claim"),
    (f"jobs submit --image i --dry-run -- run {TASK}", "a job in a queue needs no --image, --dry-run"),
    (f"jobs submit --to kubernetes --image i --stages 2 -- run {TASK}", "no queue of covey: omit it, or --stages"),
    (f"jobs submit --to slurm --jobs here -- run {TASK}", "no queue of covey: omit it, or --jobs"),
    (f"jobs submit --to slurm --claim mine -- run {TASK}", "nor a volume claim: omit --claim"),
    ("strategies --answers link=1gbit --plugin mine.py", "without --plugin mine.py"),
    (f"models export digits --safetensors a --task {TASK}", "for --onnx and --torch-export"),
    ("data pack examples shards --columns a,b", "--columns a,b names the values of a task's samples"),
    ("serve digits --canary-requests 9", "--canary-requests says when --canary is promoted"),
    (f"serve a.safetensors --task {TASK} --store here", "--store has registered models, and a.safetensors is a file"),
    (f"{PLAN} --cache 9 --port 1", "omit --cache, --port"),
    (f"{PLAN} --also digits:2 --no-record", "omit --also, --no-record"),
    (f"{PLAN} --replicas 3", "finds how many replicas are needed: omit --replicas"),
])  # fmt: skip
def test_what_would_not_be_read_is_refused(words: str, said: str) -> None:
    shown = CliRunner().invoke(app, shlex.split(words))
    assert shown.exit_code == 2, shown.output
    assert said in " ".join(shown.stderr.split()), shown.stderr
