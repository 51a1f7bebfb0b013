"""Which hosts are cut off: no other host reaches them, though their sites still speak with the launcher."""

from __future__ import annotations

import errno
import select
import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

PORT = 9  # nobody need listen there: a host that refuses a connection is reached
NEIGHBOURS = 4  # other hosts that a site tries, at most
TRIES = 3  # rounds in a row in which nobody reaches a host, until it is given up
LATE = 5.0  # seconds after which a round does without the answers that are missing


def reached(addresses: Mapping[int, str], patience: float) -> list[int]:
    """Which of these sites' hosts answer within so many seconds."""
    found, waiting = list[int](), dict[int, tuple[socket.socket, int]]()
    poll, until = select.poll(), time.monotonic() + patience
    for number, address in addresses.items():
        probe = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        probe.setblocking(False)
        code = probe.connect_ex((address, PORT))
        if code == errno.EINPROGRESS:
            waiting[probe.fileno()] = probe, number
            poll.register(probe, select.POLLOUT)
            continue
        probe.close()
        found += [number] * (code in (0, errno.ECONNREFUSED))
    while waiting and (left := until - time.monotonic()) > 0:
        for file, _ in poll.poll(left * 1000):
            probe, number = waiting.pop(file)
            poll.unregister(file)
            code = probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            found += [number] * (code in (0, errno.ECONNREFUSED))
            probe.close()
    for probe, _ in waiting.values():
        probe.close()
    return sorted(found)


def cut_off(tried: Mapping[int, Sequence[int]], answers: Mapping[int, Sequence[int]]) -> set[int]:
    """The sites that reach none of those that they tried, and are reached by nobody, while others reach each other."""
    heard = {site: targets for site, targets in tried.items() if site in answers and targets}
    alone = {site for site in heard if not answers[site]}
    tried_by = {site: [other for other, targets in heard.items() if site in targets] for site in alone}
    found = {site for site, others in tried_by.items() if others and not any(site in answers[o] for o in others)}
    return found if any(answers[site] for site in heard.keys() - found) else set()


@dataclass(slots=True)
class ReachRounds:
    """Rounds in which sites try to reach each other, so many seconds apart."""

    every: float
    begun: float = field(default_factory=time.monotonic)
    tried: dict[int, list[int]] = field(default_factory=dict)  # in this round
    answers: dict[int, Sequence[int]] = field(default_factory=dict)
    failures: Counter[int] = field(default_factory=Counter)  # rounds in a row

    def hear(self, number: int, sites: Sequence[int]) -> None:
        if number in self.tried:
            self.answers[number] = [site for site in sites if site in self.tried[number]]

    def ended(self) -> bool:
        """Whether it is time for another round."""
        passed = time.monotonic() - self.begun
        return passed >= self.every and (self.answers.keys() == self.tried.keys() or passed >= self.every + LATE)

    def conclude(self) -> list[int]:
        """End a round; the sites that have been cut off in too many of them."""
        lost = cut_off(self.tried, self.answers)
        self.failures = Counter({site: self.failures[site] + 1 for site in lost})
        return sorted(site for site, count in self.failures.items() if count >= TRIES)

    def begin(self, addresses: Mapping[int, str]) -> dict[int, dict[int, str]]:
        """Another round among these sites: the addresses that each of them tries, all on other hosts than its own."""
        sites, self.begun, self.answers = sorted(addresses), time.monotonic(), {}
        plan: dict[int, dict[int, str]] = {}
        for place, site in enumerate(sites):
            others = [other for other in sites[place + 1 :] + sites[:place] if addresses[other] != addresses[site]]
            plan[site] = {other: addresses[other] for other in others[:NEIGHBOURS]}
        self.tried = {site: list(targets) for site, targets in plan.items() if targets}
        return {site: plan[site] for site in self.tried}
