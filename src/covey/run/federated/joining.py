"""Take part in a federated run from here: a client's side, with its own data."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from covey.engines.interrupt import Interrupt, interruptible
from covey.engines.service.dialled_link import DialledLink, LinkLost, ServiceEnded, dialled
from covey.engines.service.greeting import Welcome
from covey.engines.service.guest_keys import GuestKey, read_key
from covey.engines.service.guest_visit import pay_visit
from covey.engines.transport.refusals import shown
from covey.errors import PeerLost, PlanError, WireError
from covey.federated.client import SecureReporting, SumNews, visits
from covey.federated.local_training import ClientTraining, LocalResult, LocalTraining, refuse_settings
from covey.federated.messages import AGGREGATOR, COORDINATOR, ComeBack, Configuration
from covey.federated.reports.report_form import EncodedTraining
from covey.federated.strategies import FederatedStrategy
from covey.message import Address, Message
from covey.model import build
from covey.model.flat import Flat
from covey.observe.instruments import Instrument
from covey.run.federated.client_identities import MAKE_ONE, enrolled_party, told_to_all
from covey.run.federated.federated_options import read_strategy
from covey.run.federated.worker_group import WorkerGroup, check_group
from covey.run.option_parts import at_least_one, readable
from covey.simulate import parse_duration
from covey.simulate.population import CLIENT
from covey.task import Task, import_file, load_task, task_hash
from covey.task.data import check_data
from covey.version import __version__

if TYPE_CHECKING:
    from covey.federated.private.secure_client import EnrolledParty

SHORTEST, LONGEST = 0.5, 30.0  # seconds between two tries to reach the service
DOUBLINGS = 6  # after which the pause between two tries is the longest
A_DAY = 86_400.0  # the longest that a client stays away, whatever the service says


@dataclass(slots=True)
class Attendance:
    """What a client has done: how often it came, and how many of its reports were sent, and refused.

    Of secure sums: why it took no part in the last one that it did not help to open, and the smallest that it did.
    """

    visits: int = 0
    reports: int = 0
    refused: int = 0
    withdrew: str = ""
    smallest: int | None = None


class ToldSums(SumNews):
    """Says of how many clients sums are, and why this one takes no part in one."""

    def __init__(self, done: Attendance, say: Callable[[str], None]) -> None:
        self._done, self._say = done, say

    def opens(self, number: int, clients: int) -> None:
        self._done.smallest = min(clients, self._done.smallest or clients)
        self._say(f"round {number + 1}: its sum has {clients} clients")

    def withdrew(self, number: int, why: str) -> None:
        self._done.withdrew = shown(why)
        self._say(f"round {number + 1}: {shown(why)}")


class ToldTraining:
    """Trains, and says so."""

    def __init__(self, inner: ClientTraining, done: Attendance, say: Callable[[str], None]) -> None:
        self._inner, self._done, self._say = inner, done, say

    def load(self, client: int) -> float:
        return self._inner.load(client)

    def train(self, client: int, given: Configuration) -> LocalResult:
        if given.number < 0:
            raise WireError(f"the service asked for round {given.number}, which there cannot be")
        found = self._inner.train(client, given)
        self._done.reports += 1
        self._say(f"round {given.number + 1}: trained on {found.samples} samples, loss {found.loss:.4g}")
        return found


class ToldRefusals(Instrument):
    """Says why a report was refused."""

    def __init__(self, done: Attendance, say: Callable[[str], None]) -> None:
        self._done, self._say = done, say

    def delivered(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
        if isinstance(message, ComeBack) and message.refused:
            self._done.refused += 1
            self._say(f"the service refused the report: {shown(message.refused)}")


def join(
    service: str, task: str, *, key: str | Path, data: str | None = None, patience: str = "10m",
    identities: str | Path | None = None, fewest: int = 2, workers: int = 1,
    say: Callable[[str], None] = lambda line: None,
) -> Attendance:  # fmt: skip
    """Take part in a federated run until it is over, or until Ctrl-C (docs/federated.md).

    Args:
        service: Where the service listens: "HOST:PORT".
        task: The file of the task, the same as the service's.
        key: The file with this client's key.
        data: A file and the name of this client's data in it: "mine.py:data"; without it, the task's own data.
        patience: For how long the service is dialled again while nobody answers.
        identities: The list by which the clients of secure sums know each other. With it, nothing but secure sums is
            taken part in.
        fewest: It takes no part in secure sums that fewer clients can open.
        workers: The processes of this machine that train together as this client.
        say: Hears what happens.
    """
    readable("patience", patience, parse_duration)
    at_least_one(fewest=fewest, workers=workers)
    endpoint, known = dialled(service), read_key(Path(key))
    party = enrolled_party(known, Path(identities), max(2, fewest)) if identities is not None else None
    loaded = load_task(task)
    loaded = replace(loaded, data=data_named(data)) if data else loaded
    refuse_settings(loaded)
    interrupt = Interrupt()
    with interruptible(interrupt):
        joined = JoinedClient(endpoint, known, loaded, task_hash(task), say, interrupt, party, workers)
        return joined.run(parse_duration(patience))


def data_named(where: str) -> Any:
    """What a file calls by a name: "mine.py:data"."""
    path, colon, name = where.rpartition(":")
    if not colon or not name.isidentifier():
        raise PlanError(f"--data {where}: write the file, a colon and the name of the data in it, as in mine.py:data")
    module = import_file(Path(path))
    if not hasattr(module, name):
        raise PlanError(f"--data {where}: {path} has nothing that is called {name}")
    return getattr(module, name)


class JoinedClient:
    """A client that comes again and again, and keeps nothing in between."""

    def __init__(
        self, endpoint: str, key: GuestKey, task: Task, digest: str, say: Callable[[str], None], interrupt: Interrupt,
        party: EnrolledParty | None = None, workers: int = 1,
    ) -> None:  # fmt: skip
        self.endpoint, self.key, self.task, self._digest, self._party = endpoint, key, task, digest, party
        self._secure: SecureReporting | None = None
        self._workers = workers
        self.me, self._say, self.done = Address(CLIENT, key.number), say, Attendance()
        self._data = build.data_of(task)
        self._interrupt = interrupt
        self._told: tuple[str, int] | None = None  # the strategy and the seed for which `_training` is
        self._training: ClientTraining | None = None
        self._module = build.model(task, 0)
        self._size = sum(one.nbytes for one in (*self._module.parameters(), *self._module.buffers()))

    def run(self, patience: float) -> Attendance:
        failures, since = 0, 0.0  # since when nobody answers
        while not self._interrupt.asked:
            try:
                pause = self._visit()
            except ServiceEnded:
                self._say("the run is over")
                break
            except LinkLost as lost:
                if not failures:
                    since = time.monotonic()
                    self._say(f"{lost}; dialling again")
                elif time.monotonic() - since > patience:
                    raise PeerLost(f"{lost}; gave up after {patience:g} s", "the service") from None
                pause = min(LONGEST, SHORTEST * 2 ** min(failures, DOUBLINGS)) * random.uniform(0.5, 1.0)
                failures += 1
            else:
                failures = 0
            self._wait(min(max(0.0, pause), A_DAY) if pause == pause else A_DAY)
        return self.done

    def _visit(self) -> float:
        """Dial, come in, and do what the program of a client does; the seconds until the next time."""
        link = DialledLink(self.endpoint, self.key, self.me, (COORDINATOR, AGGREGATOR), self._size)
        try:
            training = self._trained(link.greet(__version__, self._digest, check_data(self._data)))
            self.done.visits += 1
            told = ToldTraining(training, self.done, self._say)
            program, refusals = visits(told, self._secure), ToldRefusals(self.done, self._say)
            return pay_visit(link, program, lambda: self._interrupt.asked, refusals)
        finally:
            link.close()

    def _trained(self, welcome: Welcome) -> ClientTraining:
        """What trains this client, as the service wants it."""
        wanted = welcome.strategy, welcome.seed
        if self._training is None or self._told != wanted:
            if welcome.seed < 0:
                raise WireError(f"the service has the seed {welcome.seed}: seeds are not negative")
            try:
                strategy, text, _ = read_strategy(welcome.strategy)
            except PlanError as error:
                raise PlanError(f"the service asks for what this covey does not have: {shown(str(error))}") from None
            if strategy.secure and not self._party:
                raise PlanError(f"the service asks for {shown(text)}: secure sums need --identities; {MAKE_ONE}")
            if self._party and not strategy.secure:
                raise PlanError(f"the service asks for {shown(text)}, which it can read: omit --identities if it may")
            count = check_data(self._data)
            self._training = self._made(strategy, count, welcome.seed)
            if self._party:
                from covey.federated.private.secure_client import reporting_securely

                self._secure = reporting_securely(
                    replace(self._party, context=told_to_all(*wanted)), ToldSums(self.done, self._say)
                )
            self._told = wanted
            self._say(f"joined {self.endpoint} as {shown(welcome.name[:64])}: {shown(text)}, with {count} samples")
        return self._training

    def _made(self, strategy: FederatedStrategy, count: int, seed: int) -> ClientTraining:
        form = strategy.form.make(Flat(self._module), seed)
        made: ClientTraining
        if self._workers > 1:
            check_group(strategy, self.task, count, self._workers)
            made = WorkerGroup(self.task, self._module, strategy.local, count, self._workers, seed)
        else:
            samples, restrict = {self.me.rank: torch.arange(count)}, getattr(form, "restrict", None)
            made = LocalTraining(self.task, self._module, self._data, strategy.local, samples, seed, restrict)
        return EncodedTraining(made, form) if form else made

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self._interrupt.asked:
            time.sleep(min(left, 0.2))
