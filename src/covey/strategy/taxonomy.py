"""Where a strategy stands among all others, and what a person should know of a run with it, in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Scheduling = Literal["synchronous", "bounded", "soft", "asynchronous"]

KEEP = "keep it"
GROW = "it may grow up to n-fold, after a warm-up"
"""n workers make a batch n times as large, or average n models as often as that (Goyal et al. 2017)."""

ONCE = "every sample once per epoch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Taxonomy:
    """Where a strategy stands in the surveys' taxonomy (Langer et al. 2020, Table 1).

    Args:
        parallelism: What is divided: "data", "model" or both.
        optimization: Whether one model is kept ("central"), workers keep their own ("decentral"), or clients do.
        architecture: Who holds the model, such as "server" or "peers".
        scheduling: How long a worker waits for others.
        exchange: How models or gradients travel, such as "reduce / broadcast".
        topology: Who speaks to whom.

    >>> place = covey.Taxonomy(
    ...     optimization="decentral", architecture="peers", scheduling="synchronous", exchange="1:1", topology="ring"
    ... )
    >>> place.parallelism
    'data'
    """

    parallelism: str = "data"
    optimization: Literal["central", "decentral", "federated"]
    architecture: str
    scheduling: Scheduling
    exchange: str
    topology: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What a person should know of a run with a strategy, in words.

    Args:
        scored: Which model is scored and saved.
        rate: What happens to the task's learning rate.
        scaling: What a user should make of that rate with more workers.
        samples: Which samples count how often.

    >>> covey.Description(scored="the mean of the workers' models", rate="unchanged: each worker's own").scaling
    'keep it'
    """

    scored: str
    rate: str
    scaling: str = KEEP
    samples: str = ONCE
