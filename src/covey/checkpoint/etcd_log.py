"""The launcher's log in etcd: whoever has the lease leads, on any machine that sees the folder of checkpoints.

covey/NAME/leader        the launcher that leads; the key goes when its lease is not renewed
covey/NAME/log/…         the entries, each written only if that key is still this launcher's
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from contextlib import suppress
from threading import Event, Thread

import msgspec

from covey.checkpoint.directory import CheckpointDirectory
from covey.checkpoint.etcd_client import EtcdClient, absent, delete, has, put
from covey.checkpoint.launcher_log import KEEP, LogEntry, me, read_entries
from covey.errors import AnotherLeads, CheckpointError, LeadLost
from covey.names import option

LEASE = 7  # seconds that etcd waits for a launcher
RENEWED = 1.5  # seconds between two renewals
SAFE = 5.5  # seconds after the last renewal in which this launcher surely leads; roles need some to end
AGAIN = 0.3  # seconds until the next try, where etcd does not answer


class EtcdAway(CheckpointError):
    """etcd does not answer; it may come back."""


class EtcdLog:
    """Keys of etcd, under a name. A thread renews the lease and writes, so that training never waits for etcd."""

    def __init__(self, etcd: EtcdClient, name: str, checkpoints: CheckpointDirectory) -> None:
        self.etcd, self.name, self.checkpoints = etcd, name, checkpoints
        self.leader, self.first = f"covey/{name}/leader", f"covey/{name}/log/"
        self.lease, self.token, self.lost = "", "", ""
        self.safe_until = 0.0
        self.folder = ""
        self._waiting: deque[tuple[float, LogEntry]] = deque()  # to be written, since when
        self._refusal = ""  # what etcd said last, if it did not do what it was asked
        self._keys: deque[str] = deque(maxlen=KEEP)  # of what is written
        self._number = 0  # of the next entry of this launcher
        self._wake, self._over = Event(), False
        self._thread: Thread | None = None

    def __str__(self) -> str:
        return f"{self.name!r} of {self.etcd}"

    def take(self) -> None:
        try:
            self.lost, self._over = "", False
            if found := self.etcd.get(self.leader):
                raise self._held(found.get(self.leader, b""))
            begun = awake()
            self.lease, self.token = self.etcd.grant(LEASE), f"{me()} {secrets.token_hex(8)}"
            if not self.etcd.put_if(absent(self.leader), put(self.leader, self.token.encode(), self.lease)):
                self.etcd.revoke(self.lease)
                raise self._held(b"another launcher")
        except OSError as error:
            nobody = isinstance(error, ConnectionError)
            what = "start etcd there" if nobody else "name an etcd (3.4 or later) that takes new keys"
            raise EtcdAway(f"{error}; {what}, or omit {option('keeper')}") from None
        self.safe_until = begun + SAFE
        self._thread = Thread(target=self._keep, name="lease", daemon=True)
        self._thread.start()
        try:
            self.check()  # a launcher that was frozen since then would take the folder from the one that leads
            self.checkpoints.seize(f"{self.etcd}/{self.name}")
            self.folder = self.checkpoints.identity()
        except CheckpointError:
            self.release()
            raise
        except LeadLost:
            self.release()
            raise self._held(b"") from None

    def _held(self, who: bytes) -> AnotherLeads:
        leader = who.decode(errors="replace").rpartition(" ")[0][:100] or "another launcher"
        return AnotherLeads(f"{leader} leads {self}: wait with {option('standby', True)}, or use another name")

    def entries(self) -> list[LogEntry]:
        try:
            found = self.etcd.get(self.first, f"{self.first[:-1]}0")  # which follows all that begin with "/"
        except OSError as error:
            raise EtcdAway(str(error)) from None
        self._keys.extend(found)
        return read_entries(list(found.values()), self, "use another name")

    def write(self, entry: LogEntry) -> None:
        self.check()
        self._waiting.append((awake(), msgspec.structs.replace(entry, folder=self.folder)))
        self._wake.set()
        if refusal := self._refusal:
            raise OSError(f"{refusal}; tried again for {SAFE} s")

    def check(self) -> None:
        if self.lost:
            raise LeadLost(self.lost)
        if (late := awake() - self.safe_until) > 0:
            raise LeadLost(
                f"{self.etcd} has not renewed the lease of {self.name!r} for {SAFE + late:.1f} s, and another launcher "
                f"may lead by now: this one stops; go on from the newest checkpoint with {option('standby', True)}"
            )
        with suppress(IndexError):  # the thread may have written it just now
            if (late := awake() - self._waiting[0][0]) > SAFE:
                raise LeadLost(
                    f"{self.etcd} has not taken an entry of the log of {self.name!r} for {late:.1f} s "
                    f"({self._refusal or 'no answer yet'}): this launcher stops; go on from the newest checkpoint with "
                    f"{option('standby', True)}"
                )

    def settle(self) -> None:
        while self._waiting:
            self.check()
            time.sleep(0.01)
        self.check()

    def release(self) -> None:
        self._over = True
        self._wake.set()
        if self._thread:
            self._thread.join()
            with suppress(OSError):  # else it ends by itself
                self.etcd.revoke(self.lease)
        self._thread = None
        self.checkpoints.__exit__()

    def _keep(self) -> None:
        """(On a thread) Renew and write, until this launcher ends or another leads."""
        due = time.monotonic() + RENEWED
        while not (self._over or self.lost):
            self._wake.wait(max(0.0, due - time.monotonic()))
            self._wake.clear()
            try:
                if time.monotonic() >= due:
                    self._renew()
                    due = time.monotonic() + RENEWED
                while self._waiting and not self.lost:
                    self._write(self._waiting[0][1])
                self._refusal = ""
            except OSError as error:  # `check` says when that has lasted too long
                self._refusal = str(error)
                time.sleep(AGAIN)
                self._wake.set()

    def _renew(self) -> None:
        """The key as well: whoever may write to etcd can remove it while the lease lasts, and another then leads."""
        begun = awake()
        if self.etcd.renew(self.lease) and self.etcd.get(self.leader).get(self.leader) == self.token.encode():
            self.safe_until = begun + SAFE
        else:
            self._lose()

    def _write(self, entry: LogEntry) -> None:
        key = f"{self.first}{entry.generation:016d}-{self._number:010d}"  # the same where an answer was lost
        changes = [put(key, msgspec.json.encode(entry))]
        if len(self._keys) == KEEP:
            changes.append(delete(self.first, self._keys[1]))
        if not self.etcd.put_if(has(self.leader, self.token), *changes):
            return self._lose()
        self._number += 1
        self._keys.append(key)
        self._waiting.popleft()

    def _lose(self) -> None:
        self.lost = f"the lease of {self} is over, and another launcher may lead by now: this one stops"


def awake() -> float:
    """Seconds on a clock that also runs while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
