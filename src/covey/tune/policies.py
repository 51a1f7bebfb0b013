"""Which policies of a search are there, and how are they written?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from covey.errors import PlanError
from covey.policy.halving import Asha, Hyperband, RandomSearch
from covey.policy.pbt import Pbt
from covey.policy.pop import Pop
from covey.policy.search import SearchPolicy
from covey.policy.tupaq import Tupaq
from covey.spec import bind, parse_call
from covey.spec.call import unknown

POLICIES: Mapping[str, type[Any]] = {
    "random": RandomSearch, "asha": Asha, "hyperband": Hyperband, "pop": Pop, "tupaq": Tupaq, "pbt": Pbt
}  # fmt: skip


def policy_of(text: str) -> SearchPolicy:
    """The policy that is written `asha` or `asha(grace=2, factor=3)`."""
    call = parse_call(text)
    if call.name not in POLICIES:
        raise unknown(text, call.at, "policy", call.name, POLICIES)
    try:
        found: SearchPolicy = bind(call, POLICIES[call.name], "policy", text)
    except TypeError as error:
        raise PlanError(f"{text}: {error}") from None
    return found
