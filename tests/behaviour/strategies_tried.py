"""The SPECs of each strategy whose values are kept: every setting at its other values, pairs, codecs, topologies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from covey import catalog, topology
from tests.behaviour.settings_tried import variants, written

BASE: Mapping[str, Mapping[str, Any]] = {
    "a_bsp": {"chunks": 2}, "bigdl": {"parts": 2}, "bmuf": {"period": 2},
    "bosen": {"bound": 1, "row": 40, "rate": "400kbit"},
    "bytescheduler": {"partition": 800, "credit": 1600}, "crossbow": {"period": 2}, "diloco": {"period": 2},
    "downpour": {"push": 2, "fetch": 3}, "dssp": {"low": 1, "extra": 2}, "eamsgd": {"period": 2, "momentum": 0.9},
    "easgd": {"period": 2}, "gosgd": {"probability": 0.5}, "hogwild": {"momentum": "drop"},
    "hogwild++": {"momentum": "drop", "hold": 2}, "dogwild": {"momentum": "drop", "blocks": 2},
    "halp": {"period": 2}, "local_sgd": {"period": 3},
    "mpca": {"bound": 2}, "p3": {"slice": 60}, "petuum": {"bound": 1}, "essp": {"bound": 1}, "ssp": {"bound": 1},
    "sandblaster": {"batch": 2, "history": 3}, "sparknet": {"period": 2}, "specsync": {"parts": 2},
    "tree_easgd": {"fanout": 2, "up": 1, "down": 2}, "vap": {"bound": 0.05}, "value_bound": {"bound": 0.05},
}  # fmt: skip
"""Settings that matter within a few steps, where the defaults are for long runs."""

COMMON: Mapping[str, tuple[Any, ...]] = {
    "bound": (0, 4), "weight": (0.2, 1.0), "epoch": (0.5, 0.8), "period": (1, 3), "parts": (1, 3), "rate": (0.4, 1.3),
    "momentum": (0.0, 0.5), "pull": (0.02, 0.3), "machines": (1, 2), "mix": (0.1, 0.7), "local": (0, 3),
}  # fmt: skip
"""Two values of each number that several strategies have."""

TRIED: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "a_bsp": {"chunks": (1, 3)},
    "ako": {"partitions": (1, 3)},
    "allreduce": {"bucket": (800, "1KB", "auto"), "window": (800, "4KB")},
    "asynchronous": {"momentum": (0.3, 0.9)},
    "bigdl": {"drop": (0.2, 0.5), "most": (0.1, 0.6), "warmup": (1, 3), "window": (1, 3)},
    "bosen": {"rate": ("40kbit", "40mbit"), "row": (20, 1024)},
    "bytescheduler": {"partition": (400, 100_000), "credit": (800, 100_000)},
    "crossbow": {"learners": (1, 3)},
    "dc_asgd": {"strength": (0.0, 1.5)},
    "bounded_delay": {"delay": (0, 3)},
    "diloco": {"local": (2, 3)},
    "dogwild": {"blocks": (1, 5)},
    "downpour": {
        "push": (1, 5), "fetch": (1, 5), "gamma": (0.02, 0.4), "warm": (2, 40), "threshold": (0.0, 0.1),
        "l1": (0.01, 0.2), "slack": (0.005, 0.1), "skip": (0.1, 0.9),
    },
    "dssp": {"low": (0, 3), "extra": (0, 5)},
    "gosgd": {"probability": (0.1, 1.0)},
    "gradient_coding": {"stragglers": (0, 2)},
    "halp": {"bits": (4, 12), "mu": (0.2, 5.0)},
    "hogwild++": {"clusters": (1, 3), "hold": (1, 5), "tolerance": (0.01, 0.3)},
    "local_sgd": {"growth": (1.5, 0.5), "after": (2, 100)},
    "malt": {"queue": (2, 4)},
    "mpca": {"rho": (0.01, 1.0)},
    "p3": {"slice": (0, 50_000)},
    "proteus": {"backup": (1, 9), "stage2": (0.0, 4.0), "stage3": (1.0, 30.0)},
    "quorum": {"size": (1, 3)},
    "sandblaster": {"batch": (1, 3), "history": (1, 10)},
    "sgp": {"overlap": (1, 3)},
    "softsync": {"groups": (2, 4)},
    "specsync": {"abort_time": (0.001, 0.03), "abort_rate": (0.1, 1.0)},
    "staggered": {"flows": (2, 4)},
    "tree_easgd": {"fanout": (1, 16), "up": (2, 5), "down": (1, 5), "slower": (1.5, 3.0)},
    "vap": {"bound": (0.001, 0.3)},
    "value_bound": {"bound": (0.001, 0.3)},
}  # fmt: skip
"""Two values of each number that one strategy has: one that is small for what it does, and one that is large."""

PAIRS: Mapping[str, tuple[str, ...]] = {
    "allreduce": ("pattern=hierarchical, local=1", "pattern=hierarchical, local=3", "pattern=hierarchical, bucket=800",
                  "pattern=binomial, bucket=800", "pattern=halving, bucket=800", "pattern=auto, bucket=800",
                  "pattern=switch, window=800", "pattern=switch, window=800, bucket=800"),
    "asynchronous": ("epoch=0.5, unit=samples", "epoch=0.8, unit=samples", "damping=dynamic, weight=1.0"),
    "bigdl": ("drop=0.3, warmup=1, window=2, parts=2", "drop=0.2, most=1.0, warmup=2, window=3, parts=2",
              "drop=0.4, most=0.4, warmup=1, window=1, parts=3"),
    "bmuf": ("period=3, momentum=0.5, nesterov=true, reset=false", "period=2, rate=0.5, reset=false"),
    "bosen": ("bound=2, row=40, rate=40kbit, policy=random", "bound=2, row=40, rate=40kbit, policy=fifo",
              "bound=2, row=40, rate=40kbit, weight=0.5", "bound=0, row=20, rate=100kbit, policy=fifo"),
    "bytescheduler": ("partition=500, credit=1000, exchange=allreduce", "partition=600, credit=600",
                      "partition=auto, credit=auto", "partition=auto, credit=auto, exchange=allreduce"),
    "crossbow": ("learners=3, momentum=0.5, period=1", "tune=true, period=1", "learners=2, pull=0.1, period=3"),
    "dc_asgd": ("adaptive=true, strength=0.5", "adaptive=true, weight=0.5", "epoch=0.6, unit=samples"),
    "downpour": (
        "server=task, filter=kkt, l1=0.02", "server=task, filter=kkt, l1=0.02, slack=0.01, push=2",
        "filter=significance, threshold=0.02", "filter=significance, threshold=0.3, push=2, server=task",
        "filter=random_skip, skip=0.3", "filter=random_skip, skip=0.8, push=2", "filter=key_caching, push=2",
        "server=task, push=3, fetch=2", "push=3, fetch=1, warm=3", "server=task, warm=5", "gamma=0.1, push=2",
    ),
    "dssp": ("low=0, extra=3, weight=0.5", "low=2, extra=1"),
    "eamsgd": ("period=3, momentum=0.5, mode=synchronous", "period=2, momentum=0.9, adapt=true"),
    "easgd": ("period=1, adapt=true, pull=0.05", "period=1, adapt=true, pull=0.35",
              "period=2, mode=synchronous, momentum=0.5",
              "period=2, mode=round_robin, pull=0.1"),
    "gradient_coding": ("stragglers=1, scheme=fractional", "stragglers=2, scheme=cyclic"),
    "hogwild++": ("momentum=drop, clusters=2, hold=1, tolerance=0.05", "momentum=drop, clusters=3, hold=1"),
    "local_sgd": ("period=1, growth=2.0, momentum=average", "period=2, after=3, momentum=reset",
                  "period=2, pattern=hierarchical, local=3", "period=1, after=2, pattern=halving"),
    "malt": ("bound=2", "share=model, fold=sum", "share=gradient, fold=average, queue=3", "barrier=true, share=model",
             "bound=1, share=model", "fold=sum, queue=3", "bound=1, fold=sum"),
    "mpca": ("rho=0.5, bound=1, mix=0.5", "rho=2.0, bound=0"),
    "one_weird_trick": ("scheme=b, variable=true", "scheme=c, variable=true"),
    "outer_products": ("epoch=0.6, unit=samples",),
    "p3": ("slice=90, order=fifo", "slice=40, order=pulls"),
    "quorum": ("size=2, late=fold", "size=2, count=gradients", "size=2, late=fold, count=gradients",
               "size=2, epoch=0.6", "size=2, epoch=0.6, unit=samples"),
    "softsync": ("groups=2, damping=none", "groups=3, damping=dynamic", "groups=2, epoch=0.6, unit=samples"),
    "specsync": ("abort_time=0.02, abort_rate=0.3, parts=2", "abort_time=0.008, abort_rate=0.1, parts=3"),
    "ssp": ("bound=0, damping=inverse", "bound=2, damping=dynamic, weight=0.5"),
    "tree_easgd": ("fanout=1, up=1, down=1, slower=2.0", "fanout=2, up=2, down=3, pull=0.2"),
    "vap": ("bound=0.05, strong=true, decay=true", "bound=0.005, strong=true", "bound=0.05, decay=true"),
}  # fmt: skip
"""Settings that say something only together."""

LAYOUTS = (
    "servers(count=3)", "colocated", "hashed(count=3, points=4)", "hashed(count=2, points=16)", "proxies(groups=2)",
    "proxies(groups=2, bound=1)", "proxies(groups=2, first=lagging)", "proxies(groups=1, bound=2)",
)  # fmt: skip
GRAPHS = tuple(
    {"random_regular": "random_regular(degree=2, seed=3)", "tree": "tree(fanout=3)"}.get(name, name)
    for name in topology.GRAPHS if name != "matrix"
)  # fmt: skip
OVER_OFTEN = ("bsp", "asynchronous", "petuum", "bosen", "outer_products", "dpsgd", "sgp")
ON_HOSTS = ("allreduce", "bsp", "local_sgd")
"""Strategies that every run of the tests tries over every layout or graph, or on two hosts."""

RESTARTED_OFTEN = (
    "a_bsp", "adpsgd", "ako", "asynchronous", "bmuf", "bosen", "bsp", "bytescheduler", "crossbow", "downpour", "eamsgd",
    "easgd", "gosgd", "gradient_coding", "hogwild++", "local_sgd", "malt", "mpca", "petuum", "sandblaster", "sgp",
    "specsync", "ssp",
)  # fmt: skip
"""Strategies that remember much, which every run of the tests starts again after a loss."""

STREAMED = ("p3", "tictac", "bytescheduler", "staggered", "one_weird_trick")
"""Strategies whose runs take long, as backward gives gradients layer by layer."""


BY_ZEROS = "filter=key_caching"
"""What is sent depends on which gradients are zero to the last bit. In `rich` those of the convolution's biases are
zeros that rounding hides, as batch-norm takes their mean off again: the processor decides which come out as 0.0."""


class Tried(NamedTuple):
    """A SPEC in a situation; `often`: in every run of the tests."""

    situation: str
    spec: str
    often: bool = True

    @property
    def title(self) -> str:
        return f"[{self.situation}] {self.spec}"


def usual(name: str) -> str:
    """The strategy with settings that matter in a short run."""
    return written(name, BASE.get(name, {}))


def cases(name: str) -> Iterator[Tried]:
    """All that is tried of a strategy."""
    entry, quick = catalog.STRATEGIES[name], name not in STREAMED
    for situation in ("uneven", "rich", "adam", "timed"):
        yield Tried(situation, usual(name))
    yield Tried("momentum", usual(name), quick)
    yield Tried("restart", usual(name), name in RESTARTED_OFTEN)
    if entry.on_loss == "continue":
        yield Tried("unclipped" if name == "bsp" else "continue", usual(name))  # its servers clip together
    yield Tried("alone", usual(name), False)
    yield Tried("hosts", usual(name), name in ON_HOSTS)
    if BASE.get(name):
        yield Tried("uneven", name, False)
    for spec, often in settings(name):
        rich = BY_ZEROS not in spec
        if rich:
            yield Tried("rich", spec, often and quick)
        yield Tried("uneven", spec, often and not (rich and quick))
        if "local=" in spec or "hierarchical" in spec:
            yield Tried("hosts", spec, often)
    for over in LAYOUTS if entry.placed else GRAPHS if entry.graph else ():
        yield Tried("rich", f"{usual(name)} over {over}", name in OVER_OFTEN)
    if entry.codecs:
        yield from coded(name, entry.codecs == "pushes")


def coded(name: str, pushes: bool) -> Iterator[Tried]:
    """With codecs: one that drops much and carries it on, one that rounds by chance, one that remembers nothing."""
    spec = usual(name)
    yield Tried("uneven", f"{spec} + topk(density=0.2)")
    yield Tried("momentum", f"{spec} + int8(block=64)", False)
    yield Tried("restart", f"{spec} + topk(density=0.2)", False)
    yield Tried("timed", f"{spec} + onebit", False)
    if pushes:
        yield Tried("momentum", f"{spec} + topk(density=0.2) + pull", name not in STREAMED)
        yield Tried("rich", f"{spec} + fp16 + pull", False)


def settings(name: str) -> Iterator[tuple[str, bool]]:
    """One setting at another value, and then several; and whether it is tried often."""
    tried = {**COMMON, **TRIED.get(name, {})}
    for given, often in variants(catalog.STRATEGIES[name].settings, tried, dict(BASE.get(name, {}))):
        yield written(name, given), often
    yield from ((f"{name}({inside})", True) for inside in PAIRS.get(name, ()))
