"""`--on-failure continue`: which runs can go on while a lost worker is born again?"""

from __future__ import annotations

from collections.abc import Sequence

from covey import catalog
from covey.errors import PlanError
from covey.names import option
from covey.run.options import Options
from covey.strategy import Role, Strategy


def check_rebirth(chosen: Strategy, roles: Sequence[Role], given: Options) -> bool:
    """Whether lost workers of this run are born again; refused, with what would work, where they cannot be."""
    if given.checkpoints.on_failure != "continue":
        return False
    if why := _why_not(chosen, roles):
        raise PlanError(
            f"{option('on_failure', 'continue')}: {why}; or use {option('on_failure', 'restart')} with "
            f"{option('checkpoint', 'DIR')}"
        )
    return True


def _why_not(chosen: Strategy, roles: Sequence[Role]) -> str:
    codec, kinds = chosen.composition.codec, {role.address.role for role in roles}
    if chosen.on_loss != "continue":
        able = [name for name, entry in catalog.STRATEGIES.items() if entry.on_loss == "continue"]
        return f"{chosen.name} cannot go on without a lost worker; use {', '.join(able)}"
    if chosen.rigid:
        return f"{chosen.text}: {chosen.rigid}"
    if chosen.composition.mesh:
        return "a lost worker takes along its stage of the model: omit 'with mesh(...)'"
    if kinds - {"worker", "server", "master"}:
        return f"{chosen.text}: workers behind proxies are not born again: omit 'over proxies(...)'"
    if codec.pull or codec.traits.measured:
        return "a new worker does not know what the lost one had been sent: omit + pull and + auto"
    if not codec.traits.plain and "server" not in kinds:
        return f"a new worker does not know the models that + {codec.name} compares with: omit the codec"
    if kinds == {"worker"} and len(roles) < 2:
        return f"{chosen.name} with 1 worker has nobody to take the model from: use 2 or more"
    return ""
