"""A member that sends well-formed nonsense is refused, and named; in virtual time too, where it can happen there."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import covey
from covey.central.layers.rounds import Outputs
from covey.engines.transport.frames import OPEN, Frame
from covey.engines.transport.inbox import Inbox, ReplayWindow
from covey.engines.transport.outbox import Outbox, OutgoingMessage, SendOrder
from covey.errors import WireError
from covey.exchange.codecs.bits import truncated
from covey.message import Address, Message, check_finite, pack
from covey.model.flat import Form
from covey.vector import Vector
from tests.safety.members import A, B, Load, two

TOKEN = bytes(range(16))


class Search(Message, kw_only=True):
    """A kind that may be infinite, and means it."""

    wire_name = "test.nonsense.search"

    what: Vector

    finite = False


# --- shapes and dtypes: torch would stretch one number to a thousand, and convert what is none of ours


def arrived(what: torch.Tensor, mine: int = 4) -> tuple[Vector, Vector]:
    """A vector as it comes from worker 0, and one of ours."""
    with two(insecure=True) as pair:
        pair.a.offer(B, Load(sender=A, what=Vector([what])))
        got: list[Any] = []
        pair.until(lambda: bool(got), lambda: got.extend(pair.b.poll(0.01)[0]))
        return got[0].what, Vector([torch.zeros(mine)])


WRONG = {
    "one number for all": torch.ones(1), "too few": torch.ones(3), "too many": torch.ones(5),
    "another dtype": torch.ones(4, dtype=torch.float64), "another shape": torch.ones(1, 4), "none": torch.ones(0),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG.values(), ids=list(WRONG))
def test_wrong_shapes_are_refused_with_the_senders_name(what: torch.Tensor) -> None:
    theirs, mine = arrived(what)
    uses = (
        lambda: mine.copy_(theirs), lambda: mine.add_(theirs), lambda: mine.lerp_(theirs, 0.5), lambda: mine - theirs,
        lambda: theirs.add_(mine), lambda: mine.copy_(theirs.map(torch.clone)),
    )  # fmt: skip
    for use in uses:
        with pytest.raises(WireError, match="worker 0 sent Vector"):
            use()
    assert mine.parts[0].tolist() == [0, 0, 0, 0]


def test_what_fits_is_used() -> None:
    theirs, mine = arrived(torch.ones(4))
    assert mine.add_(theirs).parts[0].tolist() == [1, 1, 1, 1]


# --- NaN


NOT_FINITE = [math.nan, math.inf, -math.inf]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("value", NOT_FINITE)
def test_one_number_that_is_none_is_found(dtype: torch.dtype, value: float) -> None:
    part = torch.ones(5000).to(dtype)
    assert Vector([torch.ones(3), part]).finite()
    part[4999] = value
    assert not Vector([torch.ones(3), part]).finite()
    with pytest.raises(WireError, match="worker 0 sent server 0 a Load of step 3 with NaN or infinite numbers"):
        check_finite(Load(sender=A, step=3, what=Vector([part])), Address("server", 0))
    with pytest.raises(WireError, match="sent server 0 an Outputs of step 3 with NaN"):
        check_finite(Outputs(sender=A, step=3, values=Vector([part])), Address("server", 0))
    check_finite(Search(sender=A, what=Vector([part])), B)


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_large_numbers_are_numbers(values: list[float]) -> None:
    """Their sum may be infinite although none of them is."""
    assert Vector([torch.tensor(values, dtype=torch.float32)]).finite()


def test_what_shows_itself_only_when_decoded() -> None:
    coder = truncated().made(Form.plain(Vector([torch.zeros(4)])), 0)
    wire, _ = coder.encode(Vector([torch.tensor([1.0, 2.0, math.nan, 4.0])]), None)
    assert wire.parts[0].dtype == torch.int16
    with pytest.raises(WireError, match="worker 0 sent a gradient with NaN"):
        coder.decode(Vector(wire.parts, origin=A))


@pytest.mark.parametrize(
    "strategy", ["bsp", "asynchronous", "allreduce", "easgd(period=1)", "gosgd(probability=1.0)", "dpsgd"]
)
def test_in_virtual_time_too(strategy: str) -> None:
    """All workers diverge: the learning rate is beyond reason."""
    data = torch.randn(64, 6), torch.randint(0, 3, (64,))
    task = covey.Task(
        model=lambda: torch.nn.Linear(6, 3), data=data, loss=lambda out, y: out.pow(4).sum(), batch_size=8,
        optimizer=lambda params: torch.optim.SGD(params, lr=1e3),
    )  # fmt: skip
    with pytest.raises(WireError, match=r"^(worker|server|master) \d sent \w+ \d an? \w+( of step \d+)? with NaN"):
        covey.fit(task, strategy, 2, steps=50, engine="simulated")


# --- replays, and how much may be under way


@given(st.lists(st.integers(0, 2 * ReplayWindow.WINDOW), max_size=200))
def test_each_number_is_new_once(numbers: list[int]) -> None:
    seen, before = ReplayWindow(), set[int]()
    for number in numbers:
        first = seen.first(number)
        assert not (first and number in before)
        if number not in before and max(before, default=0) - number < ReplayWindow.WINDOW:
            assert first, "what comes late, but in the window, is taken"
        if first:
            before.add(number)


def test_a_number_out_of_this_world_takes_no_memory() -> None:
    seen = ReplayWindow()
    assert seen.first(2**64 - 1) and not seen.first(2**64 - 1) and not seen.first(5)


def test_messages_are_numbered_as_they_leave() -> None:
    """So that what a higher priority held back, for however long, does not look like a replay."""
    outbox, left, inbox = Outbox(), 0, Inbox([A, B], 1 << 20, TOKEN)
    parcels = [OutgoingMessage(SendOrder(-priority, n), 0, Load(sender=A, step=n), 1 << 16, loan=False, latest=False)
               for n, priority in enumerate([0, *[1] * 1000])]  # fmt: skip
    for parcel in parcels:
        outbox.put(parcel)
    steps = []
    while (parcel := outbox.next()) is not None:
        head = parcel.opening(left, TOKEN).pack() + parcel.head
        outbox.opened(parcel)
        left += 1
        frame = Frame(OPEN, 0, len(head) - 40, left - 1, 0, TOKEN)
        message = inbox.open(frame, memoryview(head)[40:])
        assert isinstance(message, Load)
        steps.append(message.step)
    assert steps == [*range(1, 1001), 0]


def test_what_is_half_way_has_only_so_much_room() -> None:
    inbox = Inbox([A, B], 1 << 20, TOKEN)
    header, _ = pack(Load(sender=A, what=Vector([torch.empty(100_000, device="meta")])))
    for number in range(2):
        assert inbox.open(Frame(OPEN, 0, len(header), number, 0, TOKEN), memoryview(header)) is None
    with pytest.raises(WireError, match="worker 0 opened a .* all the room"):
        inbox.open(Frame(OPEN, 0, len(header), 2, 0, TOKEN), memoryview(header))
