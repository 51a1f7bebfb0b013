"""What the Tab key offers. Names are written down here, as a shell does not wait until torch is imported."""

from __future__ import annotations

import re
from collections.abc import Iterator

STRATEGIES = (
    "bsp", "ssp", "bounded_delay", "asynchronous", "dssp", "quorum", "softsync", "dc_asgd", "value_bound", "a_bsp",
    "specsync", "downpour", "sandblaster", "petuum", "essp", "bosen", "vap", "p3", "tictac", "bytescheduler",
    "staggered", "allreduce", "sliced", "bigdl", "caffeonspark", "firecaffe", "gradient_coding", "halp", "poseidon",
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
