"""Behaviour that the papers report, in virtual time with fixed seeds, kept as tables that a person can read.

Times are virtual and so do not depend on the machine; accuracies are kept to two digits, since their last bits may.
"""

from __future__ import annotations

import covey
from covey import topology
from covey.simulate import Cluster, from_flags
from tests.conftest import Golden
from tests.worlds import quadratic, run

DIGITS = "examples/digits.py"


def time_to(spec: str, cluster: Cluster, target: str = "accuracy>=0.9", workers: int = 8) -> covey.Result:
    return covey.fit(DIGITS, spec, workers, engine="simulated", cluster=cluster, until=target, epochs=40)


def test_one_slow_worker_of_eight(golden: Golden) -> None:
    """One of eight workers is four times slower: who waits for it, and who does not?"""
    cluster = from_flags(slow=["3:4x"])
    names = ["bsp", "quorum(size=7)", "ssp(bound=3)", "essp(bound=3)", "asynchronous", "easgd", "gosgd", "adpsgd"]
    lines = ["time to 90 % on digits, 8 workers, worker 3 four times slower", ""]
    seconds = {}
    for name in names:
        result = time_to(name, cluster)
        assert result.reached is not None, name
        seconds[name] = result.reached.seconds
        lines.append(f"{name:16} {result.reached.seconds:6.2f} s  {result.reached.samples:6} samples")
    golden("one_slow_of_eight.txt", "\n".join(lines) + "\n")
    waits = min(seconds["bsp"], seconds["ssp(bound=3)"])
    for free in ("quorum(size=7)", "asynchronous", "gosgd", "adpsgd"):
        assert seconds[free] < waits, f"{free} does not wait for the slow worker"


def test_loss_against_staleness(golden: Golden) -> None:
    """Asynchronous at a rate that staleness makes too high: what each remedy is worth after the same samples."""
    lines = ["distance to the optimum of a quadratic after 60 steps each of 8 equal workers, rate 0.5", ""]
    remedies = {
        "one worker": ("bsp", 1),
        "each push counts 1/n": ("asynchronous", 8),
        "none: each counts 1": ("asynchronous(weight=1)", 8),
        "over its staleness": ("asynchronous(damping=inverse)", 8),
        "over 1 + staleness": ("asynchronous(damping=dynamic)", 8),
        "delay compensation": ("dc_asgd(weight=1, strength=1)", 8),
        "bounded, each counts 1": ("ssp(bound=0, weight=1)", 8),
    }
    found = {}
    for remedy, (spec, workers) in remedies.items():
        task = quadratic(lr=0.5, samples=512, batch_size=8)
        world = run(task, spec, workers, steps=60)
        assert isinstance(task.data, tuple)
        distance = float((world.scored["w"] - task.data[0].mean(0)).norm())
        found[remedy] = distance
        shown = "diverged" if distance > 10 else f"{distance:.2f}"
        lines.append(f"{remedy:24} {shown:>8}")
    golden("loss_against_staleness.txt", "\n".join(lines) + "\n")
    assert found["none: each counts 1"] > 10 * found["over its staleness"], "staleness hurts, and damping helps"
    assert found["none: each counts 1"] > 10 * found["each push counts 1/n"]


def test_consensus_against_the_spectral_gap(golden: Golden) -> None:
    """D-PSGD: the larger the gap of the graph, the closer the workers stay together (Lian et al. 2017)."""
    lines = [
        "dpsgd, 8 workers, 40 steps: distance of the workers from their mean",
        "",
        "graph             gap  distance",
    ]
    rows = []
    for name in ("chain", "ring", "torus", "exponential", "complete"):
        world = run(quadratic(samples=512, lr=0.3), f"dpsgd over {name}", 8, steps=40)
        models = [world.flat(who) for who in world.replicas]
        mean = sum(models[1:], models[0].clone()) / len(models)
        distance = (sum(float((model - mean).square().sum()) for model in models) / len(models)) ** 0.5
        gap = topology.build(name, {}, 8).gap()
        rows.append((gap, distance))
        lines.append(f"{name:14} {gap:6.3f}  {distance:8.3f}")
    golden("consensus_against_gap.txt", "\n".join(lines) + "\n")
    assert [distance for _, distance in sorted(rows)] == sorted((distance for _, distance in rows), reverse=True)
