"""How do the clients of secure sums know each other? Each makes an identity of its own, and all have the same list.

A line of the list has a client's number, its name, and the public half of its identity in hexadecimal digits. It must
reach every client by a way that the service cannot change: a service that invents clients can open sums.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from covey.decoding import UNREADABLE, named_text
from covey.engines.service.guest_keys import KEY, NAME, EnrolledGuest, GuestKey, read_key, write_secret
from covey.errors import PlanError
from covey.privacy.randomness import SYSTEM, SystemSource

if TYPE_CHECKING:
    from covey.federated.private.secure_client import EnrolledParty
    from covey.privacy.secagg import Identity

LINE = re.compile(rf"(\d{{1,9}})\s+({NAME.pattern})\s+([0-9a-f]{{64}})")
MAKE_ONE = "each client makes its line with `covey federate keys identity FILE`"


def identified(file: Path) -> str:
    """Give a client's key an identity, unless it has one; its line in the list of identities."""
    key = read_key(file)
    if not key.identity:
        key = msgspec.structs.replace(key, identity=SYSTEM.take(KEY).hex())
        write_secret(file, key)
    return f"{key.number} {key.name} {own_identity(key).public.hex()}"


def own_identity(key: GuestKey) -> Identity:
    """What a client signs with."""
    try:
        from covey.privacy.secagg import Identity
    except ModuleNotFoundError as error:
        raise PlanError(f"secagg needs {error.name}: pip install 'covey[federated]'") from None
    return Identity(bytes.fromhex(key.identity))


def read_identities(file: Path) -> dict[int, tuple[str, bytes]]:
    """Of each client in a list its name and the public half of its identity."""
    try:
        lines = named_text(file).splitlines()
    except FileNotFoundError:
        raise PlanError(f"there is no file {file}: {MAKE_ONE}") from None
    except UNREADABLE as error:
        raise PlanError(f"{file} is not a list of identities: {error}") from None
    found: dict[int, tuple[str, bytes]] = {}
    for place, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = LINE.fullmatch(line.strip())
        if match is None:
            raise PlanError(f"{file}, line {place}: write NUMBER NAME PUBLIC; {MAKE_ONE}")
        number, name, public = int(match[1]), match[2], bytes.fromhex(match[3])
        if number in found or any(public == known for _, known in found.values()):
            raise PlanError(f"{file}, line {place}: client {number}, or its identity, is there twice")
        found[number] = name, public
    return found


def check_all_listed(guests: Iterable[EnrolledGuest], listed: Mapping[int, tuple[str, bytes]]) -> None:
    """Refuse a list in which a client is missing that may come, or has another name."""
    missing = [one.name for one in guests if not one.revoked and listed.get(one.number, ("",))[0] != one.name]
    if missing:
        raise PlanError(f"the list of identities has no line of {', '.join(missing[:5])}: {MAKE_ONE}")


def told_to_all(strategy: str, seed: int) -> bytes:
    """What a service tells every client of a run, and all clients of a secure sum must have been told alike."""
    return f"{seed} {strategy}".encode()


def enrolled_party(key: GuestKey, identities: Path, fewest: int) -> EnrolledParty:
    """This client's part in secure sums of at least `fewest` clients."""
    listed = read_identities(identities)
    if not key.identity:
        raise PlanError(f"the key of {key.name} has no identity: {MAKE_ONE}, and hands it to all others")
    mine = own_identity(key)
    if listed.get(key.number) != (key.name, mine.public):
        raise PlanError(f"{identities} has another line of {key.name} than this key: {MAKE_ONE}, and hands it to all")
    from covey.federated.private.secure_client import EnrolledParty

    directory = {number: public for number, (_, public) in listed.items()}
    return EnrolledParty(lambda client: mine, directory, SystemSource(), fewest)
