"""What the Tab key offers, and what is misspelt. Names are written down here, as nobody should wait for torch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from covey.spec import Spec

OUTSIDE = ("covey.strategies", "covey.codecs")  # entry points by which packages offer their own

STRATEGIES = (
    "bsp", "ssp", "bounded_delay", "asynchronous", "dssp", "quorum", "softsync", "dc_asgd", "value_bound", "a_bsp",
    "specsync", "downpour", "proteus", "litz", "sandblaster", "petuum", "essp", "bosen", "vap", "p3", "tictac",
    "bytescheduler", "staggered", "allreduce", "sliced", "bigdl", "caffeonspark", "firecaffe", "gradient_coding",
    "halp", "poseidon",
    "outer_products", "one_weird_trick", "strads", "local_sgd", "sparknet", "bmuf", "diloco", "crossbow", "easgd",
    "eamsgd", "tree_easgd", "mpca", "gosgd", "dpsgd", "adpsgd", "sgp", "butterfly", "malt", "ako", "hogwild",
    "hogwild++", "dogwild",
)  # fmt: skip
CODECS = (
    "fp16", "bf16", "truncated", "fixed16", "int8", "natural", "dorefa", "qsgd", "terngrad", "twobit", "onebit",
    "strom", "topk", "mstopk", "randomk", "threshold", "entropy", "dgc", "sbc", "sketch", "powersgd", "auto",
    "error_feedback", "momentum_correction", "warmup", "clip",
)  # fmt: skip


def specs(typed: str) -> Iterator[str]:
    """SPECs that go on from what was typed: a strategy or a system, and codecs after a plus."""
    from covey.systems import SYSTEMS

    before, last = re.fullmatch(r"(.*?\+\s*)?(.*)", typed, re.S).groups()  # type: ignore[union-attr]  # it always matches
    for name in CODECS if before else (*STRATEGIES, *SYSTEMS):
        if name.startswith(last):
            yield f"{before or ''}{name}"


def engines(typed: str) -> Iterator[str]:
    """Engines of covey's own."""
    from covey.engines.entries import names

    return (name for name in names() if name.startswith(typed))


def check_names(spec: Spec) -> None:
    """Refuse names that nobody has, unless an installed package may have them."""
    from importlib.metadata import entry_points  # `covey --help` does without it

    from covey.spec import unknown
    from covey.systems import LATER, SYSTEMS

    if any(entry_points(group=group) for group in OUTSIDE):
        return
    name = spec.strategy.name
    if name not in STRATEGIES and name not in SYSTEMS and name not in LATER:
        raise unknown(spec.text, spec.strategy.at, "strategy", name, [*STRATEGIES, *SYSTEMS])
    for codec in spec.codecs:
        if codec.name not in CODECS and codec.name != "pull":
            raise unknown(spec.text, codec.at, "codec", codec.name, CODECS)
