"""Which hosts of replicas are there? Judged by what they say, by their connections, and by a clock that can stop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from covey.engines.process.liveness import Silence
from covey.inference.sites.relay_words import HostBeat, RenewHost, Up

SILENT = 5.0  # seconds after which a host is lost that has said nothing, while this process could hear it
AWAITED = 90.0  # seconds without any host after which none is expected any more


class HostPresence:
    """The hosts that are there, and those that may come again.

    A host whose connection broke is lost, because bytes may be. Each time one is lost its incarnation has another
    number; it is there again when its beats have that number, which it gets when it has ended all of its earlier
    replicas.

    Args:
        count: How many hosts there are; at first none is there.
    """

    def __init__(self, count: int) -> None:
        self._there: dict[int, int] = {}  # how many words came from each host
        self._incarnations = dict.fromkeys(range(count), 0)
        self._ended: set[int] = set()  # hosts that will not come back
        self._silence: Silence[int] = Silence(SILENT)
        self._last = 0.0  # when a host was there last

    @property
    def hosts(self) -> Sequence[int]:
        """Those that are there."""
        return list(self._there)

    @property
    def awaited(self) -> bool:
        """Whether hosts that are not there may come again."""
        return len(self._ended) < len(self._incarnations) and self._silence.awake - self._last < AWAITED

    def hear(self, host: int, word: Up) -> RenewHost | None:
        """A host has said something; what to answer."""
        if host in self._there:
            self._there[host] += 1
        elif isinstance(word, HostBeat) and host not in self._ended:
            if word.incarnation != self._incarnations[host]:
                return RenewHost(self._incarnations[host])
            self._there[host] = 1
        return None

    def silent(self) -> dict[int, str]:
        """The hosts that have said nothing for too long, and what to say of them."""
        found = self._silence.look(self._there)
        if self._there:
            self._last = self._silence.awake
        return {host: f"nothing was heard of it for {self._silence.quiet(host):.1f} s" for host in found}

    def end(self, hosts: Mapping[int, str]) -> None:
        """These hosts will not come back."""
        self._ended |= hosts.keys()

    def lose(self, host: int) -> bool:
        """A host is not there any more; whether it was."""
        if self._there.pop(host, None) is None:
            return False
        self._incarnations[host] += 1
        return True
