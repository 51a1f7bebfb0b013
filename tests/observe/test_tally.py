"""Tallies: where the time went, what was sent, and how two of them become one."""

from __future__ import annotations

import math

import msgspec
import torch
from hypothesis import given
from hypothesis import strategies as st

from covey.message import Address, Message
from covey.observe.tally import Tally, Teller, read_loss
from covey.vector import Vector

ME, YOU = Address("worker", 0), Address("server", 0)


class Payload(Message):
    wire_name = "test.tally.payload"

    vector: Vector


class Control(Message):
    wire_name = "test.tally.control"
    counted = False


PAYLOAD = Payload(Vector([torch.zeros(2)]))


def test_time_is_compute_waiting_and_the_rest() -> None:
    teller = Teller()
    teller.computed(0.0, 5.0, ME)
    teller.waited(5.0, 8.0, ME, "Params")
    teller.ended(10.0, ME)
    tally = teller.of(ME)
    assert (tally.compute, tally.waiting, tally.exchange) == (5, 3, 2)


def test_what_was_on_the_wire_is_exchange() -> None:
    teller = Teller()
    teller.waited(0.0, 8.0, ME, "Params", wire=2.0)
    assert (teller.of(ME).waiting, teller.of(ME).exchange) == (6, 2)


def test_waiting_while_computing_is_computing() -> None:
    teller = Teller()
    teller.waited(1.0, 3.0, ME, "Bucket")  # each is told at its end
    teller.computed(0.0, 4.0, ME)
    teller.waited(3.0, 6.0, ME, "Bucket")
    teller.ended(6.0, ME)
    assert (teller.of(ME).compute, teller.of(ME).waiting) == (4, 2)


def test_only_counted_messages_to_others_are_traffic() -> None:
    teller = Teller()
    teller.sent(0.0, ME, YOU, PAYLOAD, 8)
    teller.sent(0.0, ME, YOU, PAYLOAD, 8)
    teller.sent(0.0, ME, YOU, Control(), 0)
    teller.sent(0.0, ME, ME, PAYLOAD, 8)
    assert (teller.bytes, teller.of(ME).bytes, teller.of(ME).messages) == (16, {"server 0": 16}, {"server 0": 2})


def test_notes_find_their_place() -> None:
    teller = Teller()
    notes: list[tuple[str, float]] = [
        ("staleness", 3),
        ("staleness", 3),
        ("staleness", 0),
        ("update", 1),
        ("samples", 32),
    ]
    notes += [("memory", 100), ("memory", 50), ("dropped", 2), ("dropped", 1), ("loss", 1.0), ("loss", 2.0)]
    for kind, value in notes:
        teller.noted(0.0, ME, kind, value)
    tally = teller.of(ME)
    assert (tally.staleness, tally.updates, tally.samples, teller.samples) == ({3: 2, 0: 1}, 1, 32, 32)
    assert (tally.memory, tally.notes) == (100, {"dropped": 3})
    assert read_loss([tally]) == 1.5
    assert math.isnan(read_loss([tally]))


def test_the_memory_of_a_role_is_the_most_that_it_ever_had() -> None:
    whole = Tally(who=ME, seconds=3.0, memory=100)
    whole.merge(Tally(who=ME, seconds=2.0, memory=70))
    assert (whole.memory, whole.seconds) == (100, 3.0)
    whole.merge(Tally(who=ME, seconds=5.0, memory=130))
    assert (whole.memory, whole.seconds) == (130, 5.0)


def test_a_tally_travels() -> None:
    teller = Teller()
    teller.sent(0.0, ME, YOU, PAYLOAD, 8)
    teller.noted(0.0, ME, "staleness", 3)
    for codec in (msgspec.json, msgspec.msgpack):
        assert codec.decode(codec.encode(teller.of(ME)), type=Tally) == teller.of(ME)


@given(
    st.lists(st.tuples(st.sampled_from(["samples", "update", "staleness", "other"]), st.integers(0, 9), st.booleans()))
)
def test_tallies_taken_on_the_way_add_up(notes: list[tuple[str, int, bool]]) -> None:
    whole, parts, merged = Teller(), Teller(), Tally(who=ME)
    for kind, value, take in notes:
        for teller in (whole, parts):
            teller.noted(0.0, ME, kind, value)
            teller.sent(0.0, ME, YOU, PAYLOAD, value)
        if take:
            merged.merge(parts.take(ME))
    merged.merge(parts.take(ME))
    assert merged == whole.of(ME)
