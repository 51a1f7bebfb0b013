"""What does `covey --help` print? The sentences are written down here, as nobody should wait for typer and rich."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterator, Mapping

PURPOSE = "Train a PyTorch model on many workers, with any distributed strategy, by changing one word."
OPTIONS = {
    "--version": "Print the version.",
    "--install-completion": "Install completion for the current shell.",
    "--show-completion": "Show completion for the current shell, to copy it or customize the installation.",
    "-h, --help": "Show this message and exit.",
}
COMMANDS = {
    "demo": "Compare five strategies on handwritten digits, with two workers, in about a minute.",
    "run": "Train a task on processes of this machine, or of a cluster.",
    "simulate": "Train a task in virtual time, on an imagined cluster.",
    "calibrate": "Measure this machine and a task with real processes, and write what simulate has to know.",
    "compare": "Train one task with several strategies, and tell which reached the target first.",
    "advise": "Rank the strategies for a task and a cluster: times, costs, reasons, risks, and the command to run.",
    "scale": "Time strategies on more and more workers, in virtual time: speed-up, time per sample and cost.",
    "tune": "Search for the best settings of a task, and print the command that trains it with them.",
    "cut": "Cut a model into stages: where, how long a step would take, how much memory each stage needs, "
    "and why there.",
    "search": "Find the fastest layout of a model: replicas, shards, stages and split layers, with time and memory of "
    "each.",
    "trace": "Run a few steps, and draw what each role did when: computing, waiting, and every message.",
    "launch": "Run a script with its own training loop on every worker.",
    "strategies": "List the strategies, tell all about one or about a codec, or find three for you.",
    "check-strategy": "Check the strategies and codecs of a file, in virtual time and on an engine; exit 2 where a "
    "promise is broken.",
    "doctor": "Check this machine, and say how to fix what fails.",
    "page": "Show recorded runs in a browser, while they go.",
    "serve": "Answer requests with a model, in batches that keep an objective.",
    "lineage": "Show where a model came from and what was made of it, from its data to its endpoints.",
    "federate": "Train with clients that keep their data, and come and go.",
    "runs": "List, show, compare and remove recorded runs.",
    "data": "Pack, check and show data sets in shards; look after the cache of far ones.",
    "jobs": "Share a cluster: a queue of jobs, and a policy for it.",
    "models": "List, show, compare, promote, export and remove registered models.",
    "lab": "See the labs of this machine; cut off, kill and restore their hosts.",
}
NARROWEST, WIDEST = 40, 100  # columns


def overview(columns: int | None = None) -> str:
    """The help of `covey` itself, in lines of at most so many columns (those of the terminal by default)."""
    width = max(NARROWEST, min(WIDEST, columns or _columns()))
    return "\n".join(
        [
            "Usage: covey [OPTIONS] COMMAND [ARGS]...\n",
            *textwrap.wrap(PURPOSE, width),
            "\nOptions:",
            *_two_columns(OPTIONS, width),
            "\nCommands:",
            *_two_columns(COMMANDS, width),
            "\nFlags of a command: covey COMMAND --help",
        ]
    )


def _two_columns(sentences: Mapping[str, str], width: int) -> Iterator[str]:
    aside = 2 + max(map(len, sentences)) + 2
    for name, sentence in sentences.items():
        yield from textwrap.wrap(
            sentence, width, initial_indent=f"  {name}".ljust(aside), subsequent_indent=" " * aside
        )


def _columns() -> int:
    if (asked := os.environ.get("COLUMNS", "")).isdecimal() and int(asked):
        return int(asked)
    try:
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or 80  # type: ignore[union-attr]  # caught below
    except (AttributeError, ValueError, OSError):
        return 80
