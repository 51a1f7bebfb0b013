"""All benchmarks, one after the other: `make bench`. Speeds are ratios against a peer in the same run."""

from __future__ import annotations

import json

from benchmarks import (
    all_reduce,
    checkpoints,
    cuts,
    data_parallel,
    encryption,
    hybrids,
    kernels,
    link,
    local_parallelism,
    many_workers,
    model_parallelism,
    own_cost,
    pipelines,
    push_pull,
    record_cost,
    starting,
    virtual_engine,
)

BENCHMARKS = {
    "own_cost": own_cost.measure,
    "record_cost": record_cost.measure,
    "push_pull": push_pull.measure,
    "all_reduce": all_reduce.measure,
    "data_parallel": data_parallel.measure,
    "pipelines": pipelines.measure,
    "cuts": cuts.measure,
    "hybrids": hybrids.measure,
    "encryption": encryption.measure,
    "kernels": kernels.measure,
    "link": link.measure,
    "starting": starting.measure,
    "checkpoints": checkpoints.measure,
    "virtual_engine": virtual_engine.measure,
    "many_workers": many_workers.measure,
    "local_parallelism": local_parallelism.measure,
    "model_parallelism": model_parallelism.measure,
}


def main() -> None:
    for name, measure in BENCHMARKS.items():
        print(f"{name}: {json.dumps(measure(), indent=1)}", flush=True)


if __name__ == "__main__":
    main()
