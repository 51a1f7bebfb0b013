"""Whoever is not welcome at a service's port, and what clients with a key may not say: refused by name."""

from __future__ import annotations

import random
import re
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
import torch
import zmq

from covey.engines.service.dialled_link import DialledLink, LinkLost, TurnedAway
from covey.engines.service.guest_connection import parcels
from covey.engines.service.guest_keys import GuestKey
from covey.engines.transport import frames
from covey.engines.transport.keys import new_pair
from covey.engines.transport.token import NONE
from covey.federated.messages import (
    AGGREGATOR,
    COORDINATOR,
    CheckIn,
    ClientReport,
    ComeBack,
    Configuration,
    RoundEnd,
)  # fmt: skip
from covey.membership import Departed
from covey.message import Address, Message, stamped
from covey.servers.goodbye import Goodbye
from covey.vector import Vector
from tests.federated.real_run import RealRun, ended, real_run

ME = Address("client", 0)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealRun]:
    """A service of two clients' rounds that waits, for as long as the tests of this file take."""
    with real_run(tmp_path_factory.mktemp("served"), 8, samples=10) as run:
        run.serve(
            per_round=1, rounds=10_000, selection="300s", reporting="300s", log=[f"csv:{run.folder}/log.csv"],
            most_refused=1 << 30,  # they send wrong reports all the time
        )  # fmt: skip
        yield run


def chosen(link: DialledLink) -> Configuration:
    """Check in, and wait for the model."""
    link.send(COORDINATOR, CheckIn())
    found = answer(link)
    assert isinstance(found, Configuration)
    return found


def answer(link: DialledLink, seconds: float = 100) -> Message:
    """The next message; several may come at once."""
    come: list[Message] = link.__dict__.setdefault("come", [])
    until = time.monotonic() + seconds
    while not come:
        assert time.monotonic() < until, "the service has not answered"
        come += link.poll(0.2)
    return come.pop(0)


def cut_off(link: DialledLink, seconds: float = 100) -> bool:
    """Whether the service ends the link."""
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            link.poll(0.2)
    except LinkLost:
        return True
    return False


def report(given: Configuration, **other: object) -> ClientReport:
    change = given.params.map(torch.zeros_like)
    return msgspec.structs.replace(
        ClientReport(given.number, 5, 0.1, change, given.buffers.map(torch.clone)), **other  # type: ignore[arg-type]
    )


def still_serves(run: RealRun) -> None:
    """The last client can take part in a round."""
    link = run.dial(7)
    try:
        given = chosen(link)
        link.send(given.sender, report(given))
        done = answer(link)
        assert isinstance(done, ComeBack) and not done.refused
    finally:
        link.close()


def test_a_key_that_is_not_enrolled_is_not_let_in(served: RealRun) -> None:
    pair, known = new_pair(), served.key(0)
    with pytest.raises(TurnedAway, match="does not know this key"):
        served.dial(0, GuestKey(0, "stranger", pair.public, pair.secret, known.service))


def test_a_client_with_another_service_in_its_key_reaches_nobody(served: RealRun) -> None:
    """It would speak to an impostor."""
    known = served.key(0)
    with pytest.raises(LinkLost):
        served.dial(0, GuestKey(0, known.name, known.public, known.secret, new_pair().public))


def test_a_task_of_another_hash_is_refused_by_name(served: RealRun) -> None:
    with pytest.raises(TurnedAway, match="its task file is another one"):
        served.dial(0, digest="0" * 64)


def test_a_client_with_more_samples_than_enrolled_is_told_so_at_once(served: RealRun) -> None:
    with pytest.raises(TurnedAway, match="it has 11 samples, and was enrolled with 10: see `keys add --samples`"):
        served.dial(0, samples=11)
    served.dial(0, samples=10).close()


def test_whoever_has_not_said_hello_is_cut_off(served: RealRun) -> None:
    link = served.dial(0, greet=False)
    link.send(COORDINATOR, CheckIn())
    assert cut_off(link)
    link.close()
    still_serves(served)


def test_one_key_cannot_speak_for_another_client(served: RealRun) -> None:
    with pytest.raises(LinkLost):
        served.dial(1, served.key(0))
    still_serves(served)


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"samples": 11}, "counts 11 samples, and its client has at most 10"),
        ({"samples": 0}, "has no samples"),
        ({"number": 9999}, "is of round 9999"),
        ({"update": Vector([torch.zeros(3, dtype=torch.float64)])}, "not those of the model"),
        ({"update": Vector([torch.zeros(5, 1).double()])}, "not those of the model"),
        ({"update": Vector([torch.zeros(5)])}, "not those of the model"),
        ({"update": Vector([torch.zeros(5).double()] * 2)}, "not those of the model"),
        ({"update": Vector([torch.full((5,), torch.nan).double()])}, "NaN or infinite"),
    ],
)
def test_a_report_that_cannot_be_is_refused_by_name(served: RealRun, other: dict[str, object], why: str) -> None:
    link = served.dial(2)
    try:
        given = chosen(link)
        assert [tuple(part.shape) for part in given.params.parts] == [(5,)]
        link.send(given.sender, report(given, **other))
        done = answer(link)
        assert isinstance(done, ComeBack) and why in done.refused
    finally:
        link.close()
    still_serves(served)


def test_a_second_report_and_one_that_nobody_asked_for_are_refused(served: RealRun) -> None:
    link, other = served.dial(3), served.dial(4)
    try:
        given = chosen(link)
        other.send(AGGREGATOR, report(given))
        done = answer(other)
        assert isinstance(done, ComeBack) and done.refused == "its client was not chosen"
        for _ in range(2):
            link.send(given.sender, report(given))
        first, second = answer(link), answer(link)
        assert isinstance(first, ComeBack) and isinstance(second, ComeBack) and not first.refused
        # the first report has ended the round: the second one is late, or of another round
        assert second.refused in ("", "its client has reported already") or "is of round" in second.refused
    finally:
        link.close()
        other.close()
    still_serves(served)


@pytest.mark.parametrize(
    "forged",
    [
        RoundEnd(0, True, [0], 0, 0, 0, 1, 0.0, Vector(()), Vector(())), Goodbye(), Departed(1), ComeBack(0.0, 0.0),
    ],
    ids=lambda message: type(message).__name__,
)  # fmt: skip
@pytest.mark.parametrize("to", [COORDINATOR, AGGREGATOR], ids=str)
def test_what_only_the_service_says_is_refused_of_a_client(served: RealRun, forged: Message, to: Address) -> None:
    """A client that could send it would commit a model of its own, or end the service."""
    link = served.dial(5)
    try:
        link.send(to, forged)
        assert cut_off(link)
    finally:
        link.close()
    still_serves(served)


def test_a_replayed_message_cuts_the_client_off(served: RealRun) -> None:
    link = served.dial(5)
    try:
        again = list(parcels(stamped(CheckIn(), Address("client", 5), copy=False), 0, 1, False))
        for _ in range(2):
            link.socket.send_multipart(again[0])
        assert cut_off(link)
    finally:
        link.close()
    still_serves(served)


def test_a_client_that_floods_its_mailbox_is_cut_off(served: RealRun) -> None:
    link = served.dial(5)
    try:
        given = chosen(link)
        for _ in range(400):
            link.send(AGGREGATOR, report(given, number=12345))
        assert cut_off(link)
    finally:
        link.close()
    still_serves(served)


def test_a_message_that_is_too_large_is_refused_before_memory_is_taken(served: RealRun) -> None:
    link = served.dial(5)
    try:
        huge = report(chosen(link), update=Vector([torch.zeros(8 << 20)]))
        link.send(AGGREGATOR, huge)
        assert cut_off(link)
    finally:
        link.close()
    link = served.dial(5)
    link.socket.send(bytes(3 << 20))  # one frame of more than a frame may have
    assert cut_off(link)
    link.close()
    still_serves(served)


def nonsense(chance: random.Random, honest: list[bytes]) -> list[bytes]:
    """A frame that is damaged, cut, joined or invented."""
    kind = chance.randrange(5)
    one = bytearray(chance.choice(honest))
    if kind == 0:
        return [chance.randbytes(chance.randrange(200))]
    if kind == 1:
        for _ in range(chance.randrange(1, 6)):
            one[chance.randrange(len(one))] = chance.randrange(256)
        return [bytes(one)]
    if kind == 2:
        return [bytes(one[: chance.randrange(len(one))])]
    if kind == 3:
        frame = frames.Frame(
            chance.randrange(16), chance.randrange(4), chance.randrange(1 << 32), chance.randrange(1 << 20),
            chance.randrange(1 << 20), NONE, chance.randrange(16),
        )  # fmt: skip
        return [frame.pack() + chance.randbytes(chance.randrange(100))]
    return [bytes(one), *(chance.randbytes(chance.randrange(50)) for _ in range(chance.randrange(3)))]


def fuzz(run: RealRun, frames_sent: int, seed: int) -> None:
    """Send nonsense with a valid key: whoever does is cut off, and the service goes on."""
    chance, link = random.Random(seed), run.dial(6)
    given = report(chosen(link))
    messages: list[Message] = [CheckIn(), given, Goodbye()]
    me, link_ = Address("client", 6), link
    honest = [
        bytes(part) for message in messages for place in (0, 1)
        for parcel in parcels(stamped(message, me, copy=False), place, chance.randrange(4), False) for part in parcel
    ]  # fmt: skip
    for _ in range(frames_sent):
        try:
            link_.poll(0)
            link_.socket.send_multipart(nonsense(chance, honest), zmq.NOBLOCK)
        except (LinkLost, zmq.ZMQError):
            link_.close()
            link_ = dialled_again(run)
    link_.close()
    still_serves(run)


def dialled_again(run: RealRun) -> DialledLink:
    """After the service cut a client off, which it may still be doing."""
    for _ in range(20):
        with suppress(LinkLost):
            return run.dial(6)
        time.sleep(0.1)
    return run.dial(6)


def test_nonsense_from_a_client_ends_its_connection_only(served: RealRun) -> None:
    fuzz(served, 300, seed=1)


@pytest.mark.full
def test_much_nonsense_from_a_client_ends_its_connection_only(served: RealRun) -> None:
    fuzz(served, 20_000, seed=2)


def test_strangers_without_zeromq_take_no_place_of_clients(served: RealRun) -> None:
    """More connections than the port has for strangers, each with a megabyte of nonsense."""
    host, port = served.port.rsplit(":", 1)
    strangers = []
    for _ in range(60):
        stranger = socket.create_connection((host, int(port)))
        stranger.settimeout(1)
        strangers.append(stranger)
        with suppress(OSError):
            stranger.sendall(b"GET / HTTP/1.1\r\n" + bytes(1 << 20))
    still_serves(served)
    for stranger in strangers:
        stranger.close()


def test_a_revoked_client_is_cut_off_while_the_service_runs(served: RealRun) -> None:
    link = served.dial(1)
    try:
        served.keys.revoke("c1")
        assert cut_off(link)
    finally:
        link.close()
    with pytest.raises(TurnedAway):
        served.dial(1)
    still_serves(served)


def test_a_client_can_be_enrolled_while_the_service_runs(served: RealRun) -> None:
    file = served.folder / "late.key"
    number = served.keys.add("late", 5, file).number
    (served.folder / f"c{number}.key").write_bytes(file.read_bytes())
    until = time.monotonic() + 100
    while True:
        try:
            served.dial(number).close()
            break
        except TurnedAway:
            assert time.monotonic() < until
            time.sleep(0.2)


def test_no_update_of_a_client_is_written_to_disk(tmp_path: Path) -> None:
    """Two clients report; what each has changed appears in no file, and neither does its key."""
    with real_run(tmp_path, 2) as run:
        service = run.serve(
            per_round=2, rounds=2, checkpoint=tmp_path / "kept", save=tmp_path / "model.safetensors",
            runs=tmp_path / "runs", log=[f"csv:{tmp_path}/log.csv"],
        )  # fmt: skip
        marks: list[bytes] = []
        links = [run.dial(0), run.dial(1)]
        for number in range(2):
            for link in links:
                link.send(COORDINATOR, CheckIn())
            given = [answer(link) for link in links]
            for place, (link, model) in enumerate(zip(links, given, strict=True)):
                assert isinstance(model, Configuration)
                value = 0.1234567890123 + number + 10 * place
                mark = Vector(torch.full_like(part, value) for part in model.params.parts)
                marks.append(bytes(mark.parts[0].reshape(-1)[:1].numpy().data))
                link.send(model.sender, report(model, update=mark))
            assert all(isinstance(answer(link), ComeBack) for link in links)
        for link in links:
            link.close()
        assert ended(service) == 0
        written = [file for file in tmp_path.rglob("*") if file.is_file() and file.suffix not in (".key", ".pyc")]
        assert any("kept" in str(file) for file in written) and any("runs" in str(file) for file in written)
        for file in written:
            content = file.read_bytes()
            assert not any(mark in content for mark in marks), file
            assert run.keys.service().secret.encode() not in content and run.key(0).secret.encode() not in content


def test_the_result_names_what_was_refused(tmp_path: Path) -> None:
    with real_run(tmp_path, 2, samples=10) as run:
        service = run.serve(per_round=1, rounds=2)
        link = run.dial(0)
        link.send(COORDINATOR, Goodbye())
        assert cut_off(link)
        link.close()
        for samples in (11, 5):
            link = run.dial(1)
            given = chosen(link)
            link.send(given.sender, report(given, samples=samples))
            answer(link)
            link.close()
        assert ended(service) == 0
        failures = "\n".join(run.result()["failures"])
        assert re.search("client 0: it sent a Goodbye, which is not for guests to send", failures), failures


