"""covey search: which layout of a model over several machines is fastest?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from covey.cli import json_file, options, simulate
from covey.cli.errors import explained
from covey.cli.options import flag, teller
from covey.cli.typed_flags import decimal

SEARCH = "How to search"

Machines = Annotated[int, flag("--machines", "N", "How many, each a worker.", options.RUN, least=1)]
Memory = Annotated[str | None, flag("--memory", "SIZE", "Memory of each machine. (default: no limit)", options.RUN)]
Save = Annotated[Path | None, flag("--save", "FILE", "Write the fastest plan that a run can do as JSON.", options.KEEP)]


@dataclass(frozen=True, kw_only=True)
class SearchFlags(options.FlagGroup):
    """How to search, and for how long."""

    method: Annotated[
        str, flag("--method", "NAME", "dp, mcmc, hill or policy, or all of them.", SEARCH)
    ] = "dp"  # fmt: skip
    seconds: Annotated[
        float, flag("--seconds", "S", "About how long the search may take.", SEARCH, parser=decimal)
    ] = 60.0  # fmt: skip
    counted: Annotated[
        bool, flag("--counted", "", "Count operations, alike everywhere, and time none.", SEARCH)
    ] = False  # fmt: skip
    seed: options.Seed = 0


@options.grouped
def command(
    *,
    task: options.Task,
    machines: Machines = 2,
    memory: Memory = None,
    search: SearchFlags,
    cluster: simulate.UnevenClusterFlags,
    save: Save = None,
    output: options.OutputFlags,
) -> None:
    """Find the fastest layout of a model: replicas, shards, stages and split layers, with time and memory of each.

    Every operator is measured on this machine, on one thread.

    covey search examples/characters.py --machines 4 --memory 2GB --bandwidth 1gbit
    """
    manner, json = output.voice, output.json
    with explained(manner):
        json_file.check(json)
        json_file.check(save, "--save", "plan.json")
        imagined = cluster.described()
        from covey.simulate.units import parse_size

        limit = parse_size(memory) if memory else math.inf
        from covey.advise.trials.layouts import LayoutTerms, search_layouts
        from covey.cli.tables.layouts import answer_json, plan_json, print_layouts
        from covey.task import load_task

        terms = LayoutTerms(
            machines=machines, cluster=imagined, memory=limit, method=search.method, seconds=search.seconds,
            counted=search.counted, seed=search.seed, own_pace=cluster.cluster is None and cluster.compute is None,
        )  # fmt: skip
        terms.check()
        told = teller(manner)
        answer = search_layouts(load_task(task, told), terms, told)
        with (
            json_file.written(json, lambda: answer_json(answer, task)),
            json_file.written(save, lambda: plan_json(answer, task), "--save") as there,
        ):
            if manner != "quiet":
                print_layouts(json_file.console(json), answer, task, there, everything=manner == "verbose")
