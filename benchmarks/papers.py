"""The surveys' tables again, scaled to this machine: `python -m benchmarks.papers` writes docs/papers.md.

Systems run in virtual time on the digits, with four workers. Speed-ups are measured on real processes, by
benchmarks.local_parallelism and benchmarks.model_parallelism, each ROUNDS times.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import torch

import covey
from benchmarks import local_parallelism, model_parallelism
from covey import catalog
from covey.advise.delay import GIB, PATTERNS, ExchangeCosts, delay
from covey.simulate import from_flags
from covey.systems import CATEGORIES, ROWS, SYSTEMS, SurveyRow
from covey.task import load_task

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "papers.md"
WORKERS, EPOCHS, ROUNDS = 4, 4, 3
CLUSTER = {"bandwidth": "100mbit", "compute": "10ms"}

LANGER = (
    "bigdl", "caffeonspark", "cots_hpc", "dpsgd", "distbelief", "easgd", "firecaffe", "gosgd", "mpca", "mxnet",
    "parameter_server", "petuum", "project_adam", "pytorch", "sparknet", "tensorflow", "tree_easgd",
)  # fmt: skip
MAYER = {  # Table 3 as printed: optimization, scheduling, and gradient quantization
    "caffe2": ("decentralized", "synchronous", "none"),
    "chainermn": ("decentralized", "synchronous", "none"),
    "cntk": ("both", "bounded, by BMUF", "1 bit"),
    "dl4j": ("both", "synchronous and asynchronous", "1 bit, Strom"),
    "mxnet": ("centralized", "synchronous and asynchronous", "2 bits with error feedback"),
    "pytorch": ("both", "synchronous and asynchronous", "none"),
    "singa": ("both", "synchronous and asynchronous", "none"),
    "tensorflow": ("centralized", "synchronous and asynchronous", "none"),
}
WITH_CODEC = {
    "cntk": "sliced + onebit", "dl4j": "asynchronous + strom", "mxnet": "mxnet + error_feedback + twobit",
}  # fmt: skip
MODELS = {"GoogLeNet": 6.8e6, "ResNet-50": 25.6e6, "VGG-A": 132.9e6}  # parameters
NETWORKS = {"1 Gbit/s": 1e9 / 8, "10 Gbit/s": 10e9 / 8, "56 Gbit/s": 56e9 / 8}
SHOWN = ("star", "binomial tree", "asynchronous, all workers", "a server per worker", "ring")


def trained(spec: str) -> tuple[str, str, str]:
    """A SPEC's accuracy, virtual seconds and megabytes of one worker; without momentum where that cannot be shared."""
    task = load_task(str(ROOT / "examples" / "digits.py"))
    if spec.startswith("hogwild"):
        task = replace(task, optimizer=lambda params: torch.optim.SGD(params, lr=0.1))
    result = covey.fit(
        task, spec, WORKERS, engine="simulated", epochs=EPOCHS, runs=False, cluster=from_flags(**CLUSTER)
    )
    sent = result.traffic.bytes / WORKERS / 1e6
    return f"{result.history[-1]['accuracy']:.1%}", f"{result.seconds:.1f} s", f"{sent:.1f} MB"


def command(spec: str) -> str:
    return f"`covey run FILE --strategy {shlex.quote(spec)} --workers {WORKERS}`"


def row_of(name: str) -> SurveyRow:
    found = SYSTEMS[name].row if name in SYSTEMS else ROWS[name]
    assert found is not None
    return found


def langer() -> list[str]:
    lines = [
        "| system | printed: optimization, scheduling, exchange, topology | here | accuracy | time | sent | command |",
        "|---|---|---|---|---|---|---|",
    ]
    return [*lines, *(f"{placed(name)} {' | '.join(trained(name))} | {command(name)} |" for name in LANGER)]


def placed(name: str) -> str:
    """The beginning of a row: a system's place in the taxonomy, as printed and as it is here."""
    printed, place = row_of(name), catalog.resolve(name, WORKERS).taxonomy
    here = f"{place.optimization}, {place.scheduling}, {place.exchange}, {place.topology}"
    told = f"{printed.optimization}, {printed.scheduling}, {printed.exchange}, {printed.topology}"
    return f"| {name} | {told} | {here} |"


def mayer() -> list[str]:
    lines = [
        "| framework | printed: optimization, scheduling, quantization | SPEC | accuracy | time | sent |",
        "|---|---|---|---|---|---|",
    ]
    for name, printed in MAYER.items():
        specs = (name, *([WITH_CODEC[name]] if name in WITH_CODEC else []))
        lines += [f"| {name} | {', '.join(printed)} | `{spec}` | {' | '.join(trained(spec))} |" for spec in specs]
    return lines


def categories() -> list[str]:
    lines = [
        "| name | printed: synchronization, architecture, concept | accuracy | time | sent |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for name, printed in CATEGORIES.items():
        told = f"{printed.synchronization}, {printed.architecture}, {printed.concept}"
        lines.append(f"| {name} | {told} | {' | '.join(trained(name))} |")
    return lines


def figure_14() -> list[str]:
    assert set(SHOWN) <= set(PATTERNS)
    lines = [f"| model, network, workers | {' | '.join(SHOWN)} |", f"|---|{'---|' * len(SHOWN)}"]
    for model, parameters in MODELS.items():
        for network, rate in NETWORKS.items():
            for workers in (8, 32):
                costs = ExchangeCosts(bytes=4 * parameters, bandwidth=rate, reduce=10 * GIB, update=2 * GIB)
                delays = " | ".join(f"{delay(pattern, workers, costs):.3g} s" for pattern in SHOWN)
                lines.append(f"| {model}, {network}, {workers} | {delays} |")
    return lines


SPEEDUPS = {  # Lerat et al., Tables 1 to 3: what it is called there, and here
    "Table 1: CPU, single process": "threads",
    "Table 1: CPU, several processes": "processes",
    "Table 1: GPU, data": "data",
    "Table 2: GPU, model": "model",
    "Table 2: GPU, data and model": "data and model",
    "Table 3: CPU, MPI": "mpi",
    "Table 3: CPU, Spark": "spark",
}
PRINTED = {**local_parallelism.PAPER, **model_parallelism.PAPER}


def lerat() -> list[str]:
    """Speed-ups of an epoch over one process with one thread."""
    by_engine = local_parallelism.measure(ROUNDS)
    by_part = model_parallelism.measure(ROUNDS)
    lines = ["| | *ComplexSmall* here | printed | *SimpleBig* here | printed |", "|---|---|---|---|---|"]
    for title, row in SPEEDUPS.items():
        cells = []
        for case in local_parallelism.CASES:
            here = by_part[case][row]["faster"] if row in by_part[case] else by_engine[case][row]["training"]
            cells.append(f"{here:.2f}x | {PRINTED[row][case]:.2f}x")
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    parts = [
        "# The surveys' tables, again", "",
        "`make papers` writes this page. Everything is scaled to one small machine: the task is the handwritten digits "
        f"(5,000 parameters), {WORKERS} workers at {CLUSTER['bandwidth']} with batches of {CLUSTER['compute']}, "
        f"{EPOCHS} passes, in virtual time.", "",
        "## Langer et al. 2020, Table 1", "",
        "The survey prints no measurements in this table; what can be compared is each system's place in the taxonomy. "
        "Where *here* differs, the survey lists several modes of a system, of which its SPEC runs one, or says "
        "*parameter server* for what is a replicated optimizer. Accuracies differ since strategies weigh stale and "
        "summed gradients differently at one learning rate.", "",
        *langer(), "",
        "## Mayer and Jacobsen 2020, Table 1", "",
        "The rows of that table that run here; it prints categories only.", "",
        *categories(), "",
        "## Mayer and Jacobsen 2020, Table 3", "",
        "Caffe, Theano and Keras have no distribution of their own. Numbers of commits and questions are not "
        "repeated.", "",
        *mayer(), "",
        "## Langer et al. 2020, Figure 14", "",
        "The least delay of one exchange by the survey's formulas, with its constants (sums at 10 GiB/s, updates at 2 "
        "GiB/s); the survey prints curves, not numbers, and its conclusion can be read off: VGG-A at one server takes "
        "minutes on Ethernet, and a ring or a server per worker makes it feasible. `covey advise FILE --delays` draws "
        "the same for a model and a network of your own.", "",
        *figure_14(), "",
        "## Lerat et al. 2022, Tables 1 to 3", "",
        "The speed-up of an epoch over one process with one thread, on real processes of a machine with two cores and "
        f"no GPU, median of {ROUNDS}, with two workers, two stages, or both. The rows of GPUs run here on the "
        "processor. Two cores allow at most 2x; the paper used GPUs and several machines, and does not say how many "
        "cores they had. Its order is different, too: there a cut model is the fastest, since a GPU then keeps its "
        "part of the model; here a cut only makes two cores wait for each other. There Spark is far behind MPI, since "
        "its driver collects and sends weights; here both are alike, as covey's workers exchange by themselves under "
        "either.", "",
        *lerat(), "",
    ]  # fmt: skip
    PAGE.write_text("\n".join(parts))


if __name__ == "__main__":
    main()
