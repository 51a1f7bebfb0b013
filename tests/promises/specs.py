"""Where a promise cannot be asked of a bare name with any number of workers: what is asked instead, and why."""

from __future__ import annotations

TRAINED_AS = {
    "diloco": "diloco(period=8)",  # 500 steps are 42 epochs of digits on 4 workers
    "eamsgd": "eamsgd(momentum=0.9)",  # 0.99 looks back over 100 steps: 8 epochs of digits
}
"""How a strategy trains digits, which has 12 batches an epoch, where its paper's defaults are for far longer runs."""

ALONE_AS = {
    "bmuf": "bmuf(reset=false)",  # else the local optimizer begins every block afresh
    "downpour": "downpour(server=task)",  # else the server's Adagrad steps, not the task's optimizer
    "diloco": "diloco(rate=1, momentum=0)",  # else the outer optimizer moves the model in its own way
    "mpca": "mpca(rho=0)",  # else the penalty draws it to where it was
}
"""How a strategy trains exactly as a plain loop does, with one worker."""

PULLED = {"easgd", "eamsgd", "crossbow", "sandblaster"}
"""Strategies in which not even one worker is a plain loop: the scored model follows it, or L-BFGS steps."""

ROUNDED = {"bmuf", "diloco", "a_bsp", "specsync", "gradient_coding", "downpour"}
"""Strategies that add differences of models or parts of gradients, which rounds where the model is in bfloat16."""

ONE_SERVER = {"vap", "gradient_coding", "firecaffe"}
"""Strategies with servers that cannot have several."""

IN_PARTS = {"a_bsp", "specsync"}
"""Strategies that compute a batch in parts, which batch-norm does not survive when a part is one sample."""

UNDIVIDED = {"hogwild", "hogwild++"}
"""Strategies in which every worker's update counts in full, so that three workers need a third of the rate."""

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
