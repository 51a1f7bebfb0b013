"""What covey asks of etcd, over the HTTP gateway of its API v3: keys, transactions on them, and leases."""

from __future__ import annotations

import http.client
import re
from base64 import b64decode, b64encode
from binascii import Error
from typing import Annotated, Any, TypeVar

import msgspec

from covey.decoding import WireFormat
from covey.errors import PlanError, WireError
from covey.names import option

PLACE = re.compile(r"etcd:([^\s:/\[\]@\x00-\x1f\x7f]+|\[[0-9a-fA-F:.]+\]):([0-9]{1,5})/([A-Za-z0-9._-]{1,100})")
T = TypeVar("T")
PATIENCE = 2.0  # seconds for an answer
MOST = 1 << 24  # bytes of one
Number = Annotated[str, msgspec.Meta(pattern="^[0-9]{1,19}$")]  # the gateway writes 64 bits as text


class LeaseGranted(msgspec.Struct):
    """A new lease."""

    ID: Number


class LeaseTime(msgspec.Struct):
    """The seconds that a lease still has; none: there is no such lease."""

    TTL: Number = "0"


class LeaseRenewed(msgspec.Struct):
    """The first word of a stream of renewals."""

    result: LeaseTime


class KeyValue(msgspec.Struct):
    """A key, in base64 like its value."""

    key: str
    value: str = ""


class KeyRange(msgspec.Struct):
    """The keys that were asked for."""

    kvs: list[KeyValue] = []


class Transaction(msgspec.Struct):
    """Whether all that was compared was so, and the rest therefore done."""

    succeeded: bool = False


_granted: WireFormat[LeaseGranted] = WireFormat("lease of etcd", LeaseGranted, "json", MOST)
_renewed: WireFormat[LeaseRenewed] = WireFormat("renewal of a lease by etcd", LeaseRenewed, "json", MOST)
_ranges: WireFormat[KeyRange] = WireFormat("range of keys by etcd", KeyRange, "json", MOST)
_transactions: WireFormat[Transaction] = WireFormat("transaction by etcd", Transaction, "json", MOST)


class EtcdClient:
    """One etcd, asked once per call; ConnectionError where nothing answers, OSError where it is not done."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port

    def __str__(self) -> str:
        return f"etcd at {self.host}:{self.port}"

    def grant(self, seconds: int) -> str:
        """A new lease."""
        return self._ask("lease/grant", {"TTL": str(seconds)}, _granted).ID

    def renew(self, lease: str) -> int:
        """Begin the time of a lease again: the seconds that it now has; 0 where it is over."""
        return int(self._ask("lease/keepalive", {"ID": lease}, _renewed).result.TTL)

    def revoke(self, lease: str) -> None:
        self._ask("lease/revoke", {"ID": lease}, _transactions)

    def get(self, key: str, end: str = "") -> dict[str, bytes]:
        """The value of a key, or of all from it up to `end`, in their order."""
        found = self._ask("kv/range", {"key": _coded(key), **({"range_end": _coded(end)} if end else {})}, _ranges)
        try:
            return {b64decode(one.key).decode(): b64decode(one.value) for one in found.kvs}
        except (Error, ValueError) as error:
            raise OSError(f"{self} sent an invalid key or value: {error}") from None

    def put_if(self, compared: dict[str, Any], *changes: dict[str, Any]) -> bool:
        """Make all these changes if what is compared is so, else none."""
        return self._ask("kv/txn", {"compare": [compared], "success": list(changes)}, _transactions).succeeded

    def _ask(self, path: str, asked: dict[str, Any], form: WireFormat[T]) -> T:
        line = http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE)  # follows nothing, and no proxy
        try:
            line.request("POST", f"/v3/{path}", msgspec.json.encode(asked), {"Content-Type": "application/json"})
            answer = line.getresponse()
            data = answer.read(MOST + 1)
            if answer.status != http.client.OK:
                raise OSError(f"{self} refused {path} ({answer.status}): {data[:200]!r}")
            return form.read(data.strip(), self)
        except OSError as error:
            if str(error).startswith(str(self)):
                raise
            raise ConnectionError(f"{self} does not answer: {error}") from None
        except (http.client.HTTPException, WireError) as error:
            raise OSError(f"{self} does not answer as etcd does: {error}") from None
        finally:
            line.close()


def place_of(keeper: str) -> tuple[EtcdClient, str]:
    """The etcd, and the name in it, of `etcd:HOST:PORT/NAME`."""
    found = PLACE.fullmatch(keeper)
    if not found or not 0 < int(found[2]) < 1 << 16 or not _is_host(found[1]):
        raise PlanError(
            f"{option('keeper', keeper)}: write file, or etcd:HOST:PORT/NAME, such as etcd:127.0.0.1:2379/digits (a "
            "name has letters, digits, '.', '_' and '-')"
        )
    return EtcdClient(found[1].strip("[]"), int(found[2])), found[3]


def _is_host(name: str) -> bool:
    """Whether a resolver takes it: no label of a name may be empty, or longer than 63 characters."""
    try:
        name.encode("idna")
    except UnicodeError:
        return False
    return True


def absent(key: str) -> dict[str, Any]:
    """That there is no such key."""
    return {"key": _coded(key), "target": "CREATE", "result": "EQUAL", "create_revision": "0"}


def has(key: str, value: str) -> dict[str, Any]:
    """That a key has this value."""
    return {"key": _coded(key), "target": "VALUE", "result": "EQUAL", "value": _coded(value)}


def put(key: str, value: bytes, lease: str = "0") -> dict[str, Any]:
    """A key to set; it goes with its lease."""
    return {"request_put": {"key": _coded(key), "value": b64encode(value).decode(), "lease": lease}}


def delete(key: str, end: str) -> dict[str, Any]:
    """Keys to remove, from one up to another."""
    return {"request_delete_range": {"key": _coded(key), "range_end": _coded(end)}}


def _coded(text: str) -> str:
    return b64encode(text.encode()).decode()
