"""Which policies of a search are there, and how are they written?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from covey.errors import PlanError
from covey.names import option
from covey.policy.easeml import EaseMl
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
TENANTS = "easeml"  # the policy across tasks


def policy_of(text: str) -> SearchPolicy:
    """The policy that is written `asha` or `asha(grace=2, factor=3)`."""
    if parse_call(text).name == TENANTS:
        raise PlanError(f"{TENANTS} shares the slots among several tasks: name two files or more, or another policy")
    found: SearchPolicy = _bound(text, POLICIES)
    return found


def tenants_policy(text: str) -> EaseMl:
    """The policy that shares the slots among several tasks, written `easeml` or `easeml(stalled=5)`."""
    if (name := parse_call(text).name) in POLICIES:
        raise PlanError(f"{name} searches for one task: several share the slots by {option('policy', TENANTS)}")
    found: EaseMl = _bound(text, {TENANTS: EaseMl})
    return found


def _bound(text: str, among: Mapping[str, type[Any]]) -> Any:
    call = parse_call(text)
    if call.name not in among:
        raise unknown(text, call.at, "policy", call.name, {**POLICIES, TENANTS: EaseMl})
    try:
        return bind(call, among[call.name], "policy", text)
    except TypeError as error:
        raise PlanError(f"{text}: {error}") from None
