"""Where a promise cannot be asked of a bare name with any number of workers: what is asked instead, and why."""

from __future__ import annotations

TRAINED_AS = {
    "diloco": "diloco(period=8)",  # 500 steps are 42 epochs of digits on 4 workers
    "eamsgd": "eamsgd(momentum=0.9)",  # 0.99 looks back over 100 steps: 8 epochs of digits
}
"""How a strategy trains digits, which has 12 batches an epoch, where its paper's defaults are for far longer runs."""

ALONE_AS = {
    "bmuf": "bmuf(reset=false)",  # else the local optimizer begins every block afresh
    "diloco": "diloco(rate=1, momentum=0)",  # else the outer optimizer moves the model in its own way
    "mpca": "mpca(rho=0)",  # else the penalty draws it to where it was
}
"""How a strategy trains exactly as a plain loop does, with one worker."""

PULLED = {"easgd", "eamsgd", "crossbow"}
"""Strategies in which not even one worker trains alone: the scored model follows it, and pulls it back."""

ROUNDED = {"bmuf", "diloco"}
"""Strategies that take a difference of models and add it again, which rounds where the model is in bfloat16."""

POWERS_OF_TWO = {"butterfly"}
"""Strategies that pair all workers at every distance 1, 2, 4…"""


def workable(name: str, workers: int) -> int:
    """The number of workers to try instead of this one."""
    return 1 << (workers.bit_length() - 1) if name in POWERS_OF_TWO else workers


SPECS = {
    "hogwild":   "hogwild(momentum=drop)",
    "hogwild++": "hogwild++(momentum=drop)",
}  # fmt: skip
"""What is asked for everywhere: the bare name refuses the momentum that the digits' optimizer has."""
