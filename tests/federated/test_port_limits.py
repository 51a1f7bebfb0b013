"""What a port refuses of a guest that was greeted, and what whoever runs a service hears: without any other process."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from typer.testing import CliRunner

from covey.cli import app
from covey.engines.service.dialled_link import DialledLink, LinkLost, TurnedAway
from covey.engines.service.greeting import Hello, Welcome
from covey.engines.service.guest_connection import parcels
from covey.engines.service.guest_keys import KeyFolder, read_key
from covey.engines.service.service_port import UNREAD, PortTerms, ServicePort
from covey.engines.transport.refusals import Refusals
from covey.federated.messages import (
    AGGREGATOR,
    COORDINATOR,
    FROM_CLIENTS,
    CheckIn,
    ComeBack,
    Configuration,
    address,
)  # fmt: skip
from covey.membership import Departed
from covey.message import Address, Message, stamped
from covey.observe.membership import RoundLog, RoundRecord
from covey.run.federated.service_news import NAMED, LeftClients, ServiceNews, reason
from covey.vector import Vector
from tests.federated.real_run import FORKS, awaited

ME, BOB = Address("client", 0), Address("client", 1)


class PortAlone:
    """A port whose messages no program takes, and links to it, on one thread."""

    def __init__(self, folder: Path) -> None:
        keys = KeyFolder(folder / "keys")
        keys.add("alice", 10, folder / "alice.key")
        keys.add("bob", 10, folder / "bob.key")
        bob = read_key(folder / "bob.key").public
        self.key, self.refusals, self.links = read_key(folder / "alice.key"), Refusals(), list[DialledLink]()
        terms = PortTerms(
            listen="tcp://127.0.0.1:0", pair=keys.service(), roles=[COORDINATOR], says=FROM_CLIENTS, largest=1 << 10
        )
        self.port = ServicePort(
            terms, {self.key.public: ME, bob: BOB}, lambda who, hello: Welcome("alice", "", 0), self.refusals
        )

    def link(self) -> DialledLink:
        """One that was greeted."""
        made = DialledLink(self.port.endpoint, self.key, ME, [COORDINATOR], 1 << 10)
        self.links.append(made)
        made.send(COORDINATOR, Hello("1", "hash"))
        for _ in range(400):
            self.port.poll(0.01)
            if made.poll(0.01):
                return made
        raise AssertionError("it was not greeted")

    def refused(self, words: str) -> bool:
        """Whether the port refuses something with these words, before long."""
        for _ in range(200):
            self.port.poll(0.02)
            if any(words in reason for reason in self.refusals.counts):
                return True
        return False


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[PortAlone]:
    made = PortAlone(tmp_path)
    yield made
    for link in made.links:
        link.close()
    made.port.close()


def test_a_guest_has_at_most_a_few_messages_that_no_program_has_taken(alone: PortAlone) -> None:
    link, come = alone.link(), list[Message]()
    for _ in range(UNREAD):
        link.send(COORDINATOR, CheckIn())
    for _ in range(400):
        come += [message for _, message in alone.port.poll(0.01)]
        if len(come) == UNREAD:
            break
    assert len(come) == UNREAD and not alone.refusals.total
    alone.port.taken(come[0])
    for _ in range(2):
        link.send(COORDINATOR, CheckIn())
    assert alone.refused(f"it sent more than {UNREAD} messages without waiting") and ME not in alone.port.present


def test_a_frame_of_too_many_parts_cuts_a_guest_off(alone: PortAlone) -> None:
    link = alone.link()
    (parcel,) = parcels(stamped(CheckIn(), ME, copy=False), 0, 1, False)
    link.socket.send_multipart([*parcel, *[bytes(1000)] * 50])
    assert alone.refused("it sent more parts than a frame has") and ME not in alone.port.present


def test_of_two_clients_with_one_key_the_first_hears_of_the_second(alone: PortAlone) -> None:
    first, second = alone.link(), alone.link()
    with pytest.raises(TurnedAway, match="another client with this key has joined"):
        first.poll(5.0)
    assert alone.refused("two clients with one key") and alone.port.present[ME].greeted
    second.send(COORDINATOR, CheckIn())
    come = [message for _ in range(300) for _, message in alone.port.poll(0.01)]
    assert any(isinstance(message, CheckIn) for message in come)
    assert len(alone.port.connections) == 1, "the first one was cut off"


def say_hello(go: Connection, endpoint: str, key: Path) -> None:
    """Another process: as soon as it is told to, it greets the port."""
    go.recv()
    link = DialledLink(endpoint, read_key(key), BOB, [COORDINATOR], 1 << 10)
    try:
        link.greet("1", "hash")
        go.send("welcome")
    except LinkLost as error:
        go.send(str(error))
    finally:
        link.close()


def there(file: int) -> bool:
    """Whether this process has a file of this number."""
    try:
        os.fstat(file)
    except OSError:
        return False
    return True


def test_whoever_gets_the_file_number_of_one_that_is_cut_off_stays(alone: PortAlone, tmp_path: Path) -> None:
    """A guest sends nonsense and hangs up; before the port has read it, another guest's connection has its number."""
    mine, other = FORKS.Pipe()
    bob = FORKS.Process(target=say_hello, args=(other, alone.port.endpoint, tmp_path / "bob.key"), daemon=True)
    bob.start()
    alice, fillers = alone.link(), list[int]()
    number = alone.port.present[ME].file
    alice.socket.send(b"nonsense")
    time.sleep(0.2)  # the port has it, and has not looked
    alice.close()
    awaited(lambda: not there(number), 10, "the port's end of the link to be closed")
    try:
        while (filler := os.open(os.devnull, os.O_RDONLY)) < number:
            fillers.append(filler)  # all smaller numbers are taken
        os.close(filler)
        assert filler == number
        mine.send("go")
        awaited(lambda: there(number), 30, "the other guest to be let in")
        for _ in range(1000):
            alone.port.poll(0.01)
            if mine.poll():
                break
        assert mine.recv() == "welcome"
        assert any("client 0" in reason for reason in alone.refusals.counts), "the nonsense was refused"
    finally:
        for filler in fillers:
            os.close(filler)
        bob.kill()
        bob.join()


def test_a_service_tells_who_joins_and_which_rounds_come_to_nothing() -> None:
    said, log = list[str](), RoundLog(4)
    news = ServiceNews(said.append)
    for client in [*range(NAMED + 5), 0]:
        news.joined(Address("client", client), f"c{client}")
    assert said[0] == "client 0 (c0) has joined" and len(said) == NAMED + 1
    said.clear()
    for number in range(25):
        log.add(RoundRecord(number=0, state="not begun", seconds=number, took=number, there=1))
        news.look(log)
        if number == 12:  # a service that goes on has told of these
            news = ServiceNews(said.append)
            news.resume(log)
    log.add(RoundRecord(number=25, state="committed", seconds=1.0, took=1.0))
    log.add(RoundRecord(number=26, state="abandoned", seconds=1.0, took=1.0, chosen=5, reports=2, dropped=1))
    news.look(log)
    assert said[0] == "round 1 was not begun: too few clients checked in (about 1 are there)"
    assert said[1].startswith("round 1 was not begun") and said[1].endswith("10 times in a row")
    assert said[2] == said[0] and said[3].endswith(", 10 times in a row") and "2 of 5 chosen" in said[4]
    assert len(said) == 5 and log.told().not_begun == 25 and log.begun == 2
    spoilt = RoundRecord(number=3, state="abandoned", seconds=1.0, took=1.0, why="its update is infinite")
    assert reason(spoilt) == "round 4 was abandoned: its update is infinite"


def test_a_folder_without_keys_is_not_listed_as_an_empty_one(tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["federate", "keys", "list", str(tmp_path / "nowhere")])
    assert found.exit_code == 2 and "has no keys" in " ".join(found.output.split())


def test_who_leaves_in_the_middle_of_a_round_is_named() -> None:
    said: list[str] = []
    news, houses = LeftClients(lambda client: f"house-{client.rank}", said.append), [address(one) for one in range(40)]
    chosen, nothing = Configuration(4, 0.0, Vector([]), Vector([])), ComeBack(0.0, 1.0)
    news.delivered(0.0, houses[0], COORDINATOR, Departed(0), 0)
    assert said == [], "it was not chosen"
    for house in houses[:2]:
        news.sent(0.0, AGGREGATOR, house, chosen, 0)
    news.sent(1.0, AGGREGATOR, houses[0], nothing, 0)
    for house in houses[:2]:
        for role in (COORDINATOR, AGGREGATOR):  # both hear of it
            news.delivered(2.0, house, role, Departed(0), 0)
    assert said == ["client 1 (house-1) left in round 5, before it was done"]
    for house in houses:
        news.sent(3.0, AGGREGATOR, house, chosen, 0)
        news.delivered(4.0, house, AGGREGATOR, Departed(0), 0)
    assert len(said) == NAMED + 1 and said[-1] == "further clients that leave are not named"
