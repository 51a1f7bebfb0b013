"""A server that lies is refused by its clients, and a client that lies by the server; both are named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from covey.errors import PlanError, SumAbandoned, WireError
from covey.message import Message
from covey.privacy.randomness import SeededRandomness
from covey.privacy.secagg import SumClient
from covey.privacy.secagg.messages import (
    AdvertiseKeys,
    ClientKeys,
    DeliveredShares,
    Endorsement,
    KeyList,
    MaskedInput,
    RevealedShare,
    SealedShares,
    ShareKeys,
    SignedBy,
    SurvivorList,
    UnmaskShares,
)  # fmt: skip
from covey.privacy.secagg.round_keys import (
    FIELD,
    SMALL_ORDER,
    KeyPair,
    ShareBox,
    advertisement,
    masks_statement,
    survivors_statement,
    transcript,
    usable,
)  # fmt: skip
from covey.privacy.secagg.shamir import PRIME, SHARE
from covey.vector import Vector
from tests.privacy.sums import Sum, identity

VICTIM = 2
CLIENTS = 5


def asked(phase: int, drops: tuple[int, ...] = ()) -> tuple[Sum, Any]:
    """A sum in which the server has a message for the victim; who is in `drops` sent no masked numbers."""
    sums = Sum(range(CLIENTS))
    sent = sums.begin()
    for now in range(phase):
        sent = sums.step({client: one for client, one in sent.items() if now < 2 or client not in drops})
    for client, one in sent.items():
        if phase < 2 or client not in drops:
            sums.server.receive(client, one)
    return sums, sums.server.advance()[VICTIM]


def refuses(sums: Sum, message: Message, why: str) -> None:
    """The victim names the server, and knows nothing afterwards that it could tell."""
    victim = sums.clients[VICTIM]
    with pytest.raises(WireError, match=f"^the server .*{why}.*: client {VICTIM} takes no further part in this sum$"):
        sums.answer(VICTIM, message)
    assert victim.phase == "over" and victim._secrets is None


# -- a server that lies ------------------------------------------------------------------------------------------------


def forged(sums: Sum, message: KeyList, client: int, **changed: Any) -> KeyList:
    """The list with other keys in a client's name."""
    keys = tuple(replace(one, **changed) if one.client == client else one for one in message.keys)
    return replace(message, keys=keys)


def resigned(sums: Sum, message: KeyList, client: int, box: bytes, mask: bytes) -> KeyList:
    """The same, signed by that client, who is in league with the server."""
    signature = identity(client).sign(advertisement(sums.terms, client, box, mask))
    return forged(sums, message, client, box_key=box, mask_key=mask, signature=signature)


def test_keys_that_nobody_signed() -> None:
    own = KeyPair.of(bytes(range(32))).public
    for changed in ({"box_key": own}, {"mask_key": own}, {"signature": bytes(64)}, {"signature": b""}):
        sums, message = asked(0)
        refuses(sums, forged(sums, message, 4, **changed), "keys that client 4 has not signed")


def test_a_signature_of_another_round_client_or_terms() -> None:
    old, other = Sum(range(CLIENTS), seed=1), Sum(range(CLIENTS), threshold=0.9)
    for stolen in (old.clients[4].advertise(), other.clients[4].advertise()):
        sums, message = asked(0)
        changed = {"box_key": stolen.box_key, "mask_key": stolen.mask_key, "signature": stolen.signature}
        refuses(sums, forged(sums, message, 4, **changed), "client 4 has not signed")
    sums, message = asked(0)
    wrong = KeyPair.of(bytes([1]) * 32).public, KeyPair.of(bytes([2]) * 32).public
    signature = identity(3).sign(advertisement(sums.terms, 3, *wrong))
    changed = {"box_key": wrong[0], "mask_key": wrong[1], "signature": signature}
    refuses(sums, forged(sums, message, 4, **changed), "client 4 has not signed")


def test_another_writing_of_a_key_is_not_another_key() -> None:
    key = KeyPair.of(bytes(range(32))).public
    number = int.from_bytes(key, "little")
    assert usable(key) and not usable((number | 1 << 255).to_bytes(32, "little"))
    assert usable((9).to_bytes(32, "little")) and not usable((FIELD + 9).to_bytes(32, "little"))


@pytest.mark.parametrize("top", [0, 1 << 255])
@pytest.mark.parametrize("point", sorted(SMALL_ORDER))
def test_points_of_small_order(point: int, top: int) -> None:
    key, fine = (point | top).to_bytes(32, "little"), KeyPair.of(bytes(range(32))).public
    assert not usable(key) and usable(fine) and len(SMALL_ORDER) == 7
    with pytest.raises(ValueError, match="shared key"):
        KeyPair.of(bytes(range(32))).agree(key)
    for keys in ((key, fine), (fine, key)):
        sums, message = asked(0)
        refuses(sums, resigned(sums, message, 4, *keys), "a key of client 4 that keeps nothing secret")


@pytest.mark.parametrize("size", [0, 31, 33])
def test_keys_of_another_length(size: int) -> None:
    sums, message = asked(0)
    refuses(sums, resigned(sums, message, 4, b"k" * size, b"m" * 32), "a key of client 4 that keeps nothing secret")


@pytest.mark.parametrize("neighbours", [0, 2, 6])
def test_a_list_of_few_keys_of_many_invited(neighbours: int) -> None:
    """Else the server opens a sum of two of thirty: how many must agree does not depend on what it shows."""
    for shown in (2, 19):
        sums = Sum(range(30), neighbours=neighbours)
        for client, one in sums.begin().items():
            sums.server.receive(client, one)
        message: Any = sums.server.advance()[VICTIM]
        start = min(VICTIM, 30 - shown)
        few = replace(message, keys=message.keys[start : start + shown])
        refuses(sums, few, f"keys of {shown} clients; at least 20 were agreed")
    served = Sum(range(30), neighbours=neighbours)
    for client, one in list(served.begin().items())[:19]:
        served.server.receive(client, one)
    with pytest.raises(SumAbandoned, match="19 clients sent keys; 20 are needed"):
        served.server.advance()


def test_as_many_sign_and_open_when_some_were_not_there_at_all() -> None:
    """Twenty of thirty show keys: the fourteen that are two thirds of those open nothing."""
    sums = Sum(range(30))
    early = dict.fromkeys(range(20, 30), 0)
    assert sums.run(early).total.equal(sums.plain(range(20)))
    for phase in range(1, 5):
        with pytest.raises(SumAbandoned):
            Sum(range(30)).run(early | {0: phase})


def test_one_key_twice() -> None:
    sums, message = asked(0)
    key = KeyPair.of(bytes(range(32))).public
    refuses(sums, resigned(sums, message, 4, key, key), "one key twice")
    sums, message = asked(0)
    refuses(sums, resigned(sums, message, 4, message.keys[1].box_key, key), "one key twice")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda keys: keys[:1], "keys of 1 clients; at least 4 were agreed"),
        (lambda keys: keys[:3], "keys of 3 clients; at least 4 were agreed"),
        (lambda keys: (*keys[:2], *keys[3:]), "no keys of this client"),
        (lambda keys: (*keys, keys[0]), "uninvited clients, or of one twice"),
        (lambda keys: (*keys, keys[-1]), "uninvited clients, or of one twice"),
        (lambda keys: (*keys, ClientKeys(77, b"", b"", b"")), "uninvited clients, or of one twice"),
        (lambda keys: keys[::-1], "uninvited clients, or of one twice"),
    ],
)
def test_lists_of_the_wrong_clients(change: Callable[[Any], Any], why: str) -> None:
    sums, message = asked(0)
    refuses(sums, replace(message, keys=change(message.keys)), why)


def test_other_keys_in_the_name_of_the_client_itself() -> None:
    sums, message = asked(0)
    key = KeyPair.of(bytes(range(32))).public
    refuses(sums, resigned(sums, message, VICTIM, key, message.keys[VICTIM].mask_key), "others in its name")


def test_a_stranger_to_the_directory() -> None:
    sums, message = asked(0)
    sums.clients[VICTIM]._directory = {client: key for client, key in sums.directory.items() if client != 4}
    refuses(sums, message, "client 4 has not signed")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda boxes: (*boxes, boxes[0]), "no neighbours, or twice"),
        (lambda boxes: (*boxes, SealedShares(VICTIM, boxes[0].box)), "no neighbours, or twice"),
        (lambda boxes: (*boxes, SealedShares(99, boxes[0].box)), "no neighbours, or twice"),
        (lambda boxes: boxes[:2], "2 neighbours, too few"),
        (lambda boxes: (SealedShares(0, b""), *boxes[1:]), "a box of 0 bytes from client 0"),
    ],
)
def test_shares_of_the_wrong_clients(change: Callable[[Any], Any], why: str) -> None:
    sums, message = asked(1)
    refuses(sums, replace(message, boxes=change(message.boxes)), why)


def opens_nothing(message: DeliveredShares, box: bytes, why: str) -> None:
    sums, _ = asked(1)
    victim = sums.clients[VICTIM]
    with pytest.raises(WireError, match=why):
        sums.answer(VICTIM, replace(message, boxes=(SealedShares(0, box), *message.boxes[1:])))
    assert victim._secrets is None and victim.phase == "over"


def test_boxes_that_their_sender_did_not_seal_for_this_client_and_round() -> None:
    _, message = asked(1)
    own = message.boxes[0].box
    damaged = own[:-1] + bytes([own[-1] ^ 1])
    elsewhere = message.boxes[1].box
    for box in (damaged, own[:12] + bytes(len(own) - 12), elsewhere):
        opens_nothing(message, box, "client 0 sealed no shares for client 2 in this box")


@pytest.mark.parametrize("out", [PRIME, PRIME + 1, (1 << (8 * SHARE)) - 1])
def test_shares_out_of_range(out: int) -> None:
    """Sealed by a client that is in league with the server."""
    for shares in ((out, 1), (1, out)):
        sums, message = asked(1)
        way, seen = ShareBox(sums.server._seen, 0, VICTIM), sums.clients[0]
        assert seen._secrets
        agreed = seen._secrets.box.agree(seen._keys[VICTIM].box_key)
        box = way.seal(agreed, shares, SeededRandomness(1))
        assert way.open(agreed, way.seal(agreed, (1, 2), SeededRandomness(1))) == (1, 2)
        opens_nothing(message, box, "client 0 sent a share out of range")


@pytest.mark.parametrize(
    ("survivors", "why"),
    [
        ((0, 1, 3, 4), "not this client"),
        ((0, 1, 2, 2, 3), "survivors twice"),
        ((4, 3, 2, 1, 0), "survivors twice"),
        ((0, 1, 2, 9), "unknown ones"),
        ((1, 2, 3), "listed 3 survivors: at least 4 must be"),
        ((2,), "listed 1 survivors: at least 4 must be"),
    ],
)
def test_lists_of_survivors_that_cannot_be(survivors: tuple[int, ...], why: str) -> None:
    sums, message = asked(2)
    refuses(sums, replace(message, survivors=survivors), why)


def test_a_survivor_whose_shares_never_came() -> None:
    """With it the client has no mask in common: of too many such, the client's own mask would be all that hides it."""
    sums = Sum(range(CLIENTS))
    sent = sums.step(sums.begin())
    for client, one in sent.items():
        sums.server.receive(client, one)
    delivered: Any = sums.server.advance()[VICTIM]
    without = replace(delivered, boxes=delivered.boxes[1:])
    sums.answer(VICTIM, without)
    refuses(sums, SurvivorList(sums.terms.round, (0, 1, 2, 3, 4), ()), "survivors whose shares it never delivered")


def test_a_request_for_both_secrets_of_a_client() -> None:
    sums, message = asked(3)
    refuses(sums, replace(message, dropped=(4,)), "asked for both secrets of client 4")
    sums, message = asked(3)
    refuses(sums, replace(message, dropped=(VICTIM,)), f"asked for both secrets of client {VICTIM}")


def test_a_second_request_of_any_kind() -> None:
    for phase in range(4):
        sums, message = asked(phase)
        sums.answer(VICTIM, message)
        refuses(sums, message, f"sent a {type(message).__name__} again, or after its time")
    sums, message = asked(3)
    sums.answer(VICTIM, message)
    other = replace(message, survivors=(0, 1, 2, 3), dropped=(4,))
    refuses(sums, other, "sent a UnmaskRequest again, or after its time")


def test_messages_before_their_time_or_of_another_round() -> None:
    for phase in range(1, 4):
        _, late = asked(phase)
        sums, _ = asked(0)
        refuses(sums, late, "too early")
    for phase in range(4):
        sums, message = asked(phase)
        refuses(sums, replace(message, round=b"another round..."), "of another round")


def test_another_list_of_survivors_than_was_signed() -> None:
    """Also where enough others have signed it, being in league with the server."""
    sums, message = asked(3)
    lie = (0, 1, 2, 3)
    what = survivors_statement(sums.server._seen, lie)
    by_others = tuple(SignedBy(client, identity(client).sign(what)) for client in lie)
    request = replace(message, survivors=lie, dropped=(4,), endorsements=by_others)
    refuses(sums, request, "another list of survivors than it had")


@pytest.mark.parametrize("what", ["other list", "other round", "other signer", "garbage", "short"])
def test_a_forged_signature_under_the_survivors(what: str) -> None:
    sums, message = asked(3)
    seen, survivors = sums.server._seen, message.survivors
    signature = {
        "other list": identity(4).sign(survivors_statement(seen, (0, 1, 2, 4))),
        "other round": identity(4).sign(survivors_statement(transcript(Sum(range(5), 1).terms, ()), survivors)),
        "other signer": identity(3).sign(survivors_statement(seen, survivors)),
        "garbage": bytes(64),
        "short": b"",
    }[what]
    forgery = (*message.endorsements[:-1], SignedBy(4, signature))
    refuses(sums, replace(message, endorsements=forgery), "a list of survivors that client 4 has not signed")


def test_too_few_signatures_or_of_the_wrong_clients() -> None:
    sums, message = asked(3)
    refuses(sums, replace(message, endorsements=message.endorsements[:3]), "that 3 have signed; 4 must")
    for extra in (message.endorsements[-1], SignedBy(9, bytes(64))):
        sums, message = asked(3)
        refuses(sums, replace(message, endorsements=(*message.endorsements, extra)), "may not sign, or one twice")


def test_a_signature_of_one_that_dropped_out_does_not_count() -> None:
    """It signed the very list, but sent no numbers: if it counted, fewer survivors could open the sum."""
    for survivors in (4, 3):
        sums, message = asked(3, drops=(4,))
        signature = identity(4).sign(survivors_statement(sums.server._seen, message.survivors))
        signers = (*message.endorsements[:survivors], SignedBy(4, signature))
        refuses(sums, replace(message, endorsements=signers), "may not sign, or one twice")


def test_a_request_for_keys_that_are_not_there() -> None:
    sums, message = asked(3, drops=(4,))
    assert message.dropped == (4,) and message.survivors == (0, 1, 2, 3)
    for dropped in ((9,), (4, 4), (4, 9)):
        sums, message = asked(3, drops=(4,))
        refuses(sums, replace(message, dropped=dropped), "whose shares are not here")


def test_the_right_request_gives_each_client_s_one_share() -> None:
    sums, message = asked(3, drops=(4,))
    answer = sums.answer(VICTIM, message)
    assert [one.client for one in answer.seeds] == [0, 1, 2, 3] and [one.client for one in answer.mask_keys] == [4]


def test_terms_that_a_client_does_not_accept() -> None:
    sums = Sum(range(CLIENTS))
    strict = {"directory": sums.directory, "identity": identity(1), "randomness": SeededRandomness(1)}
    for changed in (
        {"threshold": 0.4}, {"clients": (0, 2)}, {"largest": 1 << 30}, {"round": b""}, {"bits": 8}, {"bits": 48},
        {"length": -1}, {"least": 0}, {"neighbours": -3}, {"threshold": float("nan")}, {"clients": (3, 2, 1)},
    ):  # fmt: skip
        with pytest.raises(WireError, match="^the server proposed"):
            SumClient(1, replace(sums.terms, **changed), **strict)
    with pytest.raises(WireError, match="a sum that 4 clients can open; 5 or more must be needed"):
        SumClient(1, sums.terms, least=5, **strict)
    SumClient(1, sums.terms, least=4, **strict)  # 2/3 of the five must help, whatever `least` of the terms is
    with pytest.raises(WireError, match="proposed a sum without this client"):
        SumClient(1, replace(sums.terms, clients=(0, 2)), **strict)
    with pytest.raises(WireError, match="gave this client other weights, or other terms of reports"):
        SumClient(1, replace(sums.terms, about=b"another model"), **strict)
    with pytest.raises(WireError, match="proposed a simulated sum, with secrets from a seed"):
        SumClient(1, sums.terms, identity(1), sums.directory)


# -- clients that lie --------------------------------------------------------------------------------------------------


def served(phase: int) -> tuple[Sum, Any]:
    """A sum in which all but client 0 have been heard in a phase; and what it would say."""
    sums = Sum(range(4))
    sent = sums.upto(phase)
    for client, message in sent.items():
        if client:
            sums.server.receive(client, message)
    return sums, sent[0]


def turned_away(sums: Sum, message: Message, why: str, client: int = 0) -> None:
    """The server names the client, and goes on as if nothing had come."""
    before = sums.server._total.clone()
    with pytest.raises(WireError, match=f"^client {client} .*{why}"):
        sums.server.receive(client, message)
    assert sums.server._total.equal(before)


def finishes(sums: Sum, honest: Message) -> None:
    """The sum is right after all."""
    sums.server.receive(0, honest)
    sent = {client: sums.answer(client, message) for client, message in sums.server.advance().items()}
    while sent:
        sent = sums.step(sent)
    assert sums.server.outcome and sums.server.outcome.total.equal(sums.plain(range(4)))


def test_every_client_s_message_counts_once_and_in_its_phase() -> None:
    for phase in range(5):
        sums, honest = served(phase)
        other, _ = served((phase + 1) % 5)
        turned_away(other, honest, "not the")
        turned_away(sums, replace(honest, round=b""), "of this round")
        turned_away(sums, honest, "not expected", client=3)
        turned_away(sums, honest, "not expected", client=17)
        finishes(sums, honest)
        turned_away(sums, honest, "not expected")


def test_keys_the_server_refuses() -> None:
    sums, honest = served(0)
    stolen = sums.clients[0]._identity
    assert isinstance(honest, AdvertiseKeys)
    small = (1).to_bytes(32, "little")
    theirs = sums.server._keys[1].mask_key
    for key in (small, theirs, b"", honest.box_key):
        signature = stolen.sign(advertisement(sums.terms, 0, honest.box_key, key))
        turned_away(sums, replace(honest, mask_key=key, signature=signature), "keeps nothing secret, or is another's")
    turned_away(sums, replace(honest, signature=bytes(64)), "has not signed")
    turned_away(sums, replace(honest, box_key=KeyPair.of(bytes(32)).public), "has not signed")
    finishes(sums, honest)


def test_shares_the_server_refuses() -> None:
    sums, honest = served(1)
    assert isinstance(honest, ShareKeys)
    boxes = honest.boxes
    to_itself, empty = SealedShares(0, boxes[0].box), SealedShares(1, b"")
    for wrong in (boxes[1:], (*boxes, boxes[0]), (*boxes[1:], to_itself), (empty, *boxes[1:])):
        turned_away(sums, replace(honest, boxes=wrong), "other shares than one for each of its neighbours")
    turned_away(sums, replace(honest, commitment=b"short"), "a commitment of 5 bytes")
    finishes(sums, honest)


def test_numbers_the_server_refuses() -> None:
    sums, honest = served(2)
    assert isinstance(honest, MaskedInput)
    for parts in (
        [torch.zeros(4, dtype=torch.int32)], [torch.zeros(5, dtype=torch.int64)], [torch.zeros(5)], [],
        [torch.zeros((1, 5), dtype=torch.int32)], [torch.zeros(5, dtype=torch.int32)] * 2,
    ):  # fmt: skip
        turned_away(sums, replace(honest, numbers=Vector(parts)), "where Vector")
    other = identity(0).sign(masks_statement(sums.server._seen, 0, (1,)))
    for signature in (b"", bytes(64), other):
        turned_away(sums, replace(honest, signature=signature), "has not signed with whom it has masks in common")
    finishes(sums, honest)


def test_endorsements_and_shares_the_server_refuses() -> None:
    sums, honest = served(3)
    assert isinstance(honest, Endorsement)
    turned_away(sums, replace(honest, signature=bytes(64)), "has not signed the list")
    sums, told = served(4)
    assert isinstance(told, UnmaskShares)
    turned_away(sums, replace(told, seeds=told.seeds[1:]), "not asked for")
    turned_away(sums, replace(told, mask_keys=told.seeds[:1]), "not asked for")
    for wrong in (b"", b"\xff" * SHARE, PRIME.to_bytes(SHARE, "big")):
        turned_away(sums, replace(told, seeds=(RevealedShare(0, wrong), *told.seeds[1:])), "a share out of range")
    finishes(sums, told)


@pytest.mark.parametrize("which", ["seeds", "mask_keys"])
def test_a_wrong_share_opens_nothing(which: str) -> None:
    """It is in range, so nobody is named, but the secret that comes out is none."""
    sums = Sum(range(4))
    sent = sums.upto(2)
    del sent[3]
    sent = sums.step(sums.step(sent))
    for client, message in sent.items():
        shares = getattr(message, which)
        wrong = RevealedShare(shares[0].client, (5).to_bytes(SHARE, "big"))
        changed = {which: (wrong, *shares[1:])} if client == 1 else {}
        sums.server.receive(client, replace(message, **changed))
    with pytest.raises(SumAbandoned, match="do not fit together"):
        sums.server.advance()
    assert sums.server.outcome is None
    with pytest.raises(SumAbandoned, match="this sum is over"):
        sums.server.advance()


def test_a_seed_of_a_simulation_does_not_reach_a_real_sum() -> None:
    sums = Sum(range(3))
    with pytest.raises(PlanError):
        SumClient(0, replace(sums.terms, simulated=False), identity(0), sums.directory, randomness=SeededRandomness(1))
