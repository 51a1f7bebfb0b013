"""Who may come to a service? Each guest has a key of its own, enrolled by name, which can be revoked at any time.

FOLDER/service.key     the service's own pair; guests are given its public half
FOLDER/guests.json     of each guest its number, name and public key, the most samples of a report, and if it is revoked
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from zmq.utils import z85

from covey.atomic_file import replacing
from covey.decoding import WireFormat
from covey.engines.transport.keys import Pair, new_pair
from covey.engines.transport.secretive import Secretive
from covey.errors import PlanError, WireError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
PUBLIC = re.compile(r"[0-9A-Za-z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
KEY = 32  # bytes
IDENTITY = re.compile(r"([0-9a-f]{64})?")
MOST_SAMPLES = 1 << 40
LARGEST = 64 << 20  # bytes of the list of guests


class EnrolledGuest(msgspec.Struct, frozen=True, kw_only=True):
    """A guest that may come: its number, which nobody else ever gets, and how many samples its reports may count."""

    number: int
    name: str
    public: str
    samples: int
    revoked: bool = False


class GuestList(msgspec.Struct, frozen=True):
    """All guests that were ever enrolled."""

    guests: list[EnrolledGuest] = []

    def named(self, name: str) -> EnrolledGuest | None:
        return next((one for one in self.guests if one.name == name), None)


class GuestKey(Secretive, frozen=True):
    """What a guest is given: its number and name, its own pair, and the service's public key.

    `identity` is what it adds itself, and shows to nobody: the key by which other guests know it.
    """

    number: int
    name: str
    public: str
    secret: str
    service: str
    identity: str = ""  # 64 hexadecimal digits

    @property
    def pair(self) -> Pair:
        return Pair(self.public, self.secret)


_lists: WireFormat[GuestList] = WireFormat("list of guests", GuestList, "json", most=LARGEST)
_pairs: WireFormat[Pair] = WireFormat("pair of keys", Pair, "json", most=4096)
_keys: WireFormat[GuestKey] = WireFormat("guest's key", GuestKey, "json", most=4096)


class KeyFolder:
    """The keys of a service and of its guests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._list, self._service = folder / "guests.json", folder / "service.key"

    def service(self) -> Pair:
        """The service's own pair."""
        try:
            pair = _pairs.read_file(self._service)
        except FileNotFoundError:
            raise PlanError(
                f"{self.folder} has no keys: enrol a client with `covey federate keys add {self.folder} NAME "
                "--samples N`"
            ) from None
        check_key(pair.public, self._service)
        return pair

    def guests(self) -> GuestList:
        """All guests, as they are enrolled now."""
        try:
            found = _lists.read_file(self._list)
        except FileNotFoundError:
            return GuestList([])
        for place, guest in enumerate(found.guests):
            if guest.number != place or not NAME.fullmatch(guest.name) or not 0 < guest.samples <= MOST_SAMPLES:
                raise WireError(f"{self._list}: guest number {place} is not written as covey writes guests")
            check_key(guest.public, self._list)
        return found

    def changed(self) -> tuple[int, int]:
        """Something that differs when the list has changed."""
        try:
            found = self._list.stat()
        except FileNotFoundError:
            return 0, 0
        return found.st_mtime_ns, found.st_ino

    def add(self, name: str, samples: int, to: Path) -> EnrolledGuest:
        """Enrol a guest, and write its key to a file."""
        if not NAME.fullmatch(name):
            raise PlanError(f"{name!r}: use up to 64 letters, digits, dots, dashes and underscores as a name")
        if not 0 < samples <= MOST_SAMPLES:
            raise PlanError(f"--samples {samples}: a report counts at least 1 sample, and at most {MOST_SAMPLES}")
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._locked():
            known = self.guests()
            if known.named(name):
                raise PlanError(
                    f"{name} is enrolled already, and a name is one key's for good, also after it was revoked: clients "
                    f"know each other by name, and nobody may take the place of {name}; use another, such as {name}-2"
                )
            if to.exists():
                raise PlanError(f"{to} is there already: name another file with --out, so that no key is lost")
            if not self._service.exists():
                write_secret(self._service, new_pair())
            pair = new_pair()
            guest = EnrolledGuest(number=len(known.guests), name=name, public=pair.public, samples=samples)
            write_secret(to, GuestKey(guest.number, name, pair.public, pair.secret, self.service().public))
            self._write(GuestList([*known.guests, guest]))
        return guest

    def revoke(self, name: str) -> None:
        """Let a guest come no more; a service that runs breaks off its connection."""
        with self._locked():
            known = self.guests()
            if known.named(name) is None:
                names = ", ".join(one.name for one in known.guests[:20])
                raise PlanError(f"nobody is enrolled as {name!r}; there are: {names or 'none'}")
            changed = [msgspec.structs.replace(one, revoked=one.revoked or one.name == name) for one in known.guests]
            self._write(GuestList(changed))

    def _write(self, guests: GuestList) -> None:
        with replacing(self._list, ours=True) as new:
            new.write_bytes(msgspec.json.format(msgspec.json.encode(guests)))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Two commands at once do not lose each other's changes."""
        if not self.folder.is_dir():
            raise PlanError(f"there is no folder {self.folder}: enrol a client first, with `covey federate keys add`")
        handle = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def read_key(file: Path) -> GuestKey:
    """The key that a guest was given."""
    try:
        key = _keys.read_file(Path(os.path.realpath(file)))
    except FileNotFoundError:
        raise PlanError(f"there is no file {file}: the service's `covey federate keys add` writes it") from None
    for half in (key.public, key.secret, key.service):
        check_key(half, file)
    if key.number < 0:
        raise WireError(f"{file} has the number {key.number}, which no guest has")
    if not IDENTITY.fullmatch(key.identity):
        raise WireError(f"{file} contains something that is not an identity")
    return key


def check_key(text: str, where: Path) -> None:
    """Refuse what ZeroMQ could not use."""
    try:
        fits = bool(PUBLIC.fullmatch(text)) and len(z85.decode(text.encode())) == KEY
    except struct.error:  # five letters that stand for more than 32 bits
        fits = False
    if not fits:
        raise WireError(f"{where} contains something that is not a key of CURVE")


def write_secret(file: Path, value: msgspec.Struct) -> None:
    """Write a file that only this user can read."""
    with replacing(file) as new:
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as written:
            written.write(msgspec.json.format(msgspec.json.encode(value)))
