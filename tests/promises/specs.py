"""Where a promise cannot be asked of a bare name with any number of workers: what is asked instead, and why."""

from __future__ import annotations

from covey.catalog import STRATEGIES

TRAINED_AS = {name: entry.example for name, entry in STRATEGIES.items() if entry.example}
"""How a strategy trains digits, 12 batches an epoch: as `covey strategies NAME` says. DiLoCo's 500 steps are 42 epochs,
EAMSGD's 0.99 looks back over 100 steps, and Hogwild refuses the momentum that the digits' optimizer has."""

ALONE_AS = {
    "bmuf": "bmuf(reset=false)",  # else the local optimizer begins every block afresh
    "bounded_delay": "bounded_delay(delay=0)",  # else the second gradient is taken before the first update
    "downpour": "downpour(server=task)",  # else the server's Adagrad steps, not the task's optimizer
    "diloco": "diloco(rate=1, momentum=0)",  # else the outer optimizer moves the model in its own way
    "mpca": "mpca(rho=0)",  # else the penalty draws it to where it was
}
"""How a strategy trains exactly as a plain loop does, with one worker."""

PULLED = {"easgd", "eamsgd", "crossbow", "halp", "sandblaster"}
"""Strategies in which not even one worker is a plain loop: the scored model follows it, weights are rounded, or
L-BFGS steps."""

ROUNDED = {"bmuf", "diloco", "a_bsp", "specsync", "gradient_coding", "downpour"}
"""Strategies that add differences of models or parts of gradients, which rounds where the model is in bfloat16."""

ONE_SERVER = {"vap", "value_bound", "gradient_coding", "firecaffe", "litz"}
"""Strategies with servers that cannot have several."""

IN_PARTS = {"a_bsp", "specsync"}
"""Strategies that compute a batch in parts, which batch-norm does not survive when a part is one sample."""

UNDIVIDED = {"hogwild", "hogwild++"}
"""Strategies in which every worker's update counts in full, so that three workers need a third of the rate."""

LATE = {"bounded_delay"}
"""Strategies in which whole steps are taken on old gradients, which a rate at the edge does not survive."""

POWERS_OF_TWO = {"butterfly"}
"""Strategies that pair all workers at every distance 1, 2, 4…"""


DIVIDING = {"one_weird_trick"}
"""Strategies that divide the fully connected layers at the end of a model, and refuse models that do not have any."""


def workable(name: str, workers: int) -> int:
    """The number of workers to try instead of this one."""
    return 1 << (workers.bit_length() - 1) if name in POWERS_OF_TWO else workers


SPECS = {
    "hogwild":   "hogwild(momentum=drop)",
    "hogwild++": "hogwild++(momentum=drop)",
}  # fmt: skip
"""What is asked for everywhere: the bare name refuses the momentum that the digits' optimizer has."""
