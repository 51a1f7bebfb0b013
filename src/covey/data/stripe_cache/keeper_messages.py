"""What readers and keepers of stripes say to each other."""

from __future__ import annotations

from covey.data.stripe_cache.stripe import Stripe
from covey.message import Message
from covey.vector import Vector

KEEPER, READER = "keeper", "reader"  # roles


class WantStripe(Message):
    """(To a keeper) Send me these bytes of a stripe."""

    wire_name = "stripes.want"

    stripe: Stripe
    first: int
    last: int


class StripeBytes(Message):
    """(The answer) Here they are."""

    wire_name = "stripes.bytes"

    stripe: Stripe
    first: int
    last: int
    data: Vector

    finite = False


class FetchStripe(Message):
    """(Another answer) No keeper has it: read all of it from its source, and bring it."""

    wire_name = "stripes.fetch"

    stripe: Stripe


class BringStripe(Message):
    """(To a keeper) Here is all of a stripe, for you or whoever should keep it."""

    wire_name = "stripes.bring"

    stripe: Stripe
    data: Vector

    finite = False


class GiveUpStripe(Message):
    """(To a keeper) I was to fetch this stripe, and cannot."""

    wire_name = "stripes.give_up"

    stripe: Stripe


class HungUp(Message):
    """(From the engine) The sender's line has ended: it waits for nothing, and brings nothing."""

    wire_name = "stripes.hung_up"


TO_KEEPERS = WantStripe, BringStripe, GiveUpStripe
