"""How good and how fast are searches? python -m benchmarks.tune [peers|samples|fused]

peers:   64 trials of the digits, at most 16 epochs each: covey's asha beside Ray Tune's and Optuna's, same space.
samples: what asha needs of random's samples for the same best, with 10 seeds.
fused:   the digits' MLP, 8 trials in one pass against one after the other; and --fuse auto against never, where fusing
         pays and where it does not: a small convolutional network.

Ray Tune needs pandas, pyarrow and tensorboardX, which covey does not: without them that row is left out.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from covey.policy.halving import Asha, RandomSearch
from covey.policy.rehearsal import rehearse
from covey.policy.search import SearchLimits
from covey.tune import StudyResult, tune
from covey.tune.rehearsing import _recorded

TRIALS, EPOCHS, FACTOR, SLOTS = 64, 16, 4, 2
SPACE = "rate=log(1e-4, 1), momentum=uniform(0, 0.99), width=16|64"
FILE = str(Path(__file__).parent.parent / "examples/tune.py")


CONV = """
import torch, covey
from torch import nn

train, test = covey.data.digits(train=True), covey.data.digits(train=False)


def task(rate: float = 0.1, momentum: float = 0.9) -> covey.Task:
    return covey.Task(
        model=lambda: nn.Sequential(nn.Flatten(), nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 32, 3), nn.ReLU(),
            nn.Conv2d(32, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)),
        data=train, optimizer=lambda params: torch.optim.SGD(params, lr=rate, momentum=momentum),
        loss=nn.functional.cross_entropy, batch_size=32, evaluate=covey.accuracy(test),
    )
"""


def timed(work: Callable[[], Any]) -> dict[str, Any]:
    """What a search found, and its seconds: by the wall, and of all processors, children included."""
    before, began = _cpu(), time.perf_counter()
    found = work()
    return {"best": found, "seconds": time.perf_counter() - began, "CPU seconds": _cpu() - before}


def _cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def ours(seed: int = 0, **given: Any) -> StudyResult:
    usual = {"policy": f"asha(factor={FACTOR})", "trials": TRIALS, "epochs": EPOCHS, "slots": SLOTS, "runs": False}
    return tune(FILE, SPACE, seed=seed, **{**usual, **given})


def covey_best(seed: int) -> float:
    found = ours(seed)
    assert found.best is not None
    return float(found.trials[found.best].curve[-1][1] or 0)


def train(rate: float, momentum: float, width: int, report: Callable[[int, float], bool]) -> None:
    """The same training in plain PyTorch, for peers; `report` says whether to go on."""
    import torch
    from torch import nn

    import covey

    torch.set_num_threads(1)
    torch.manual_seed(0)
    (x, y), test = covey.data.digits(train=True).tensors, covey.data.digits(train=False)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)
    score = covey.accuracy(test)
    for epoch in range(1, EPOCHS + 1):
        for part in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[part]), y[part]).backward()
            optimizer.step()
        if not report(epoch, score(model)["accuracy"]):
            return


def optuna_best(seed: int) -> float:
    """Optuna alone, with its own successive halving, which stops trials and cannot go on with one."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def objective(trial: Any) -> float:
        last = 0.0

        def report(epoch: int, value: float) -> bool:
            nonlocal last
            last = value
            trial.report(value, epoch)
            return not trial.should_prune()

        train(
            trial.suggest_float("rate", 1e-4, 1, log=True), trial.suggest_float("momentum", 0, 0.99),
            trial.suggest_categorical("width", [16, 64]), report,
        )  # fmt: skip
        return last

    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=FACTOR)
    study = optuna.create_study(direction="maximize", pruner=pruner, sampler=optuna.samplers.RandomSampler(seed))
    study.optimize(objective, n_trials=TRIALS, n_jobs=SLOTS)
    return float(study.best_value)


def ray_best(seed: int) -> float:
    """Ray Tune with its ASHA, as many trials at a time."""
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"
    import ray
    from ray import tune as ray_tune
    from ray.tune.schedulers import ASHAScheduler

    ray.init(num_cpus=SLOTS, log_to_driver=False, include_dashboard=False, logging_level="error")

    def trainable(config: dict[str, Any]) -> None:
        def report(epoch: int, value: float) -> bool:
            ray_tune.report({"accuracy": value, "training_iteration": epoch})
            return True

        train(config["rate"], config["momentum"], config["width"], report)

    try:
        with tempfile.TemporaryDirectory() as folder:
            tuner = ray_tune.Tuner(
                ray_tune.with_resources(trainable, {"cpu": 1}),
                param_space={
                    "rate": ray_tune.loguniform(1e-4, 1), "momentum": ray_tune.uniform(0, 0.99),
                    "width": ray_tune.choice([16, 64]),
                },
                tune_config=ray_tune.TuneConfig(
                    metric="accuracy", mode="max", num_samples=TRIALS, max_concurrent_trials=SLOTS,
                    scheduler=ASHAScheduler(max_t=EPOCHS, grace_period=1, reduction_factor=FACTOR),
                ),
                run_config=ray_tune.RunConfig(storage_path=folder, verbose=0),
            )  # fmt: skip
            return float(tuner.fit().get_best_result().metrics["accuracy"])
    finally:
        ray.shutdown()


def peers(seed: int = 0) -> dict[str, Any]:
    """Best scores and times of the same search; each is printed when it is known, as Ray Tune takes minutes."""
    found: dict[str, Any] = {}
    for name, best in {"covey": covey_best, "optuna": optuna_best, "ray tune": ray_best}.items():
        try:
            found[name] = timed(partial(best, seed))
        except ImportError as error:
            found[name] = {"left out": str(error)}
        print(name, found[name], flush=True)
    return found


def samples(seeds: int = 10) -> dict[str, Any]:
    """How many samples asha has seen when it has found random's best, over random's; curves are recorded ones.

    Both policies replay the same trained curves: 64 of `random`, in 10 orders.
    """
    from random import Random

    whole = ours(policy="random", fuse="always")
    curves = [_recorded(row, "higher") for row in whole.trials if row.curve]
    ratios, reached = [], []
    for seed in range(seeds):
        order = Random(seed).sample(curves, len(curves))
        limits = SearchLimits(epochs=EPOCHS, trials=TRIALS, slots=SLOTS)
        all_of_them, ours_ = rehearse(RandomSearch(), order, limits), rehearse(Asha(factor=FACTOR), order, limits)
        ratios.append(ours_.epochs / all_of_them.epochs)
        reached.append(ours_.best - all_of_them.best)
    return {"median": statistics.median(ratios), "worst": max(ratios), "score - random's": sorted(reached)}


def fused(trials: int = 8) -> dict[str, Any]:
    """The same trials fused and one after the other, one slot; and how far their scores are apart."""
    space, given = "rate=log(1e-3, 0.3), momentum=uniform(0, 0.95)", {"trials": trials, "slots": 1, "policy": "random"}
    found = {
        mode: tune(FILE, space, epochs=EPOCHS, fuse=mode, runs=False, **given)  # type: ignore[arg-type]
        for mode in ("never", "always")
    }
    scores = [[row.curve[-1][1] for row in one.trials] for one in found.values()]
    with tempfile.TemporaryDirectory() as folder:
        conv = Path(folder) / "conv.py"
        conv.write_text(CONV)
        automatic = {name: _automatic(file, space, given) for name, file in (("MLP", FILE), ("CNN", str(conv)))}
    return {
        "auto to never": automatic,
        "a step": tune(FILE, space, epochs=1, fuse="auto", runs=False, **given).fused,  # type: ignore[arg-type]
        "whole": {mode: one.seconds for mode, one in found.items()},
        "scores apart": max(abs((a or 0) - (b or 0)) for a, b in zip(*scores, strict=True)),
    }  # fmt: skip


def _automatic(file: str, space: str, given: dict[str, Any], rounds: int = 3) -> dict[str, Any]:
    """The seconds of whole searches with --fuse auto over those with never, in turns; and what it measured."""
    seconds: dict[str, list[float]] = {"never": [], "auto": []}
    measured = None
    for _ in range(rounds):
        for mode, several in seconds.items():
            found = tune(file, space, epochs=4, fuse=mode, runs=False, **given)  # type: ignore[arg-type]
            several.append(found.seconds)
            measured = found.fused or measured
    return {
        "ratio": statistics.median(seconds["auto"]) / statistics.median(seconds["never"]), "measured": measured,
        "seconds": seconds,
    }  # fmt: skip


def main() -> None:
    for name in sys.argv[1:] or ("peers", "samples", "fused"):
        measure = {"peers": peers, "samples": samples, "fused": fused}[name]
        print(f"{name}: {json.dumps(measure(), indent=1)}", flush=True)


if __name__ == "__main__":
    main()
