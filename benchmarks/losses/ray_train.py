"""The same script under Ray Train, which starts the group again when it loses a worker."""

from __future__ import annotations

import os
from pathlib import Path

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer


def loop() -> None:
    from ray import train

    from benchmarks.losses.elastic_ddp import train as train_steps

    context = train.get_context()
    train_steps(context.get_world_rank(), context.get_world_size(), Path(os.environ["SNAPSHOT"]))


def main() -> None:
    names = ("STEPS", "SNAPSHOT", "PYTHONPATH")
    ray.init(num_cpus=4, include_dashboard=False, runtime_env={"env_vars": {name: os.environ[name] for name in names}})
    TorchTrainer(
        loop, torch_config=TorchConfig(backend="gloo"), scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            storage_path=str(Path(os.environ["SNAPSHOT"]).parent), failure_config=FailureConfig(max_failures=-1)
        ),
    ).fit()  # fmt: skip


if __name__ == "__main__":
    main()
