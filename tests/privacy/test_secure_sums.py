"""Secure sums: exact for every pattern of drop-outs, or nothing is opened; and masked numbers look like noise."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable
from functools import cache
from itertools import combinations_with_replacement, product
from random import Random
from typing import Any

import pytest
import torch

from covey.errors import PlanError, SumAbandoned
from covey.privacy.randomness import SYSTEM, SeededRandomness
from covey.privacy.secagg import FixedPoint, SumClient, SumServer, client, round_keys, server, sum_terms
from covey.privacy.secagg.masks import add_masks_, unsigned
from covey.privacy.secagg.messages import MaskedInput, UnmaskShares
from covey.privacy.secagg.round_keys import KeyPair, common_mask, own_mask
from covey.privacy.secagg.terms import Neighbourhood, needed
from covey.vector import Vector
from tests.privacy.sums import NEVER, Sum, drawn, identity

PHASES = range(NEVER + 1)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agreements and signatures of the same keys are worked out once."""
    monkeypatch.setattr(KeyPair, "agree", cache(KeyPair.agree))
    signed = cache(round_keys.signed)
    for module in (client, server):
        monkeypatch.setattr(module, "signed", signed)


def check(drops: dict[int, int], neighbours: int = 0) -> bool:
    """One sum: exact, or abandoned with nothing that could be opened. Whether it was opened."""
    sums = Sum(range(len(drops)), neighbours=neighbours)
    try:
        outcome = sums.run(drops)
    except SumAbandoned:
        assert sums.server.outcome is None
        assert neighbours or not any(opened(sums, which) for which in ("seeds", "mask_keys")), drops
        assert not opened(sums, "seeds") & opened(sums, "mask_keys"), drops
        return False
    assert outcome.clients == tuple(client for client, phase in drops.items() if phase > 2)
    assert outcome.total.equal(sums.plain(outcome.clients)), drops
    assert not opened(sums, "seeds") & opened(sums, "mask_keys"), drops
    return True


def opened(sums: Sum, which: str) -> set[int]:
    """Whose secrets of one kind the server could put together from all that clients told it."""
    shares = Counter(one.client for _, message in sums.revealed for one in getattr(message, which))
    return {client for client, count in shares.items() if count >= sums.server._places.needed(client)}


def possible(drops: Iterable[int]) -> bool:
    """Whether a sum of all with all can be opened: enough clients are left in every phase (2/3 of the invited)."""
    phases = list(drops)
    there = [sum(phase > after for phase in phases) for after in range(5)]
    return all(left >= needed(len(phases), 2 / 3) for left in there)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("count", [2, 3, 4, 5, 6])
def test_every_pattern_of_drop_outs(count: int) -> None:
    """In one order of clients each, drawn anew; `test_every_order` has all."""
    opened = 0
    for pattern in combinations_with_replacement(PHASES, count):
        phases = Random(str(pattern)).sample(pattern, count)
        assert check(dict(enumerate(phases))) == possible(phases), phases
        opened += possible(phases)
    assert opened >= (1 if count == 2 else 6)


@pytest.mark.usefixtures("quick")
def test_every_pattern_of_drop_outs_around_a_circle() -> None:
    """With two neighbours each: two of three holders open a secret, and four of six must have signed."""
    opened = 0
    for pattern in combinations_with_replacement(PHASES, 6):
        phases = Random(str(pattern)).sample(pattern, 6)
        found = check(dict(enumerate(phases)), neighbours=2)
        assert not found or sum(phase > 3 for phase in phases) >= 4, phases
        opened += found
    assert opened >= 10


@pytest.mark.full
@pytest.mark.timeout(2400)
@pytest.mark.usefixtures("quick")
def test_every_order_around_a_circle() -> None:
    """Four of five must sign, and of three in a row one may be missing at the end.

    So 46 are opened: all sign and at most one is silent afterwards (6), one never came and at most one of the four
    others is silent at the end (25), or one drops out in a phase between and nobody else does (15).
    """
    assert sum(check(dict(enumerate(phases)), neighbours=2) for phases in product(PHASES, repeat=5)) == 46


def test_how_many_open_a_secret() -> None:
    assert [needed(holders, 2 / 3) for holders in (2, 3, 4, 5, 6, 7, 99, 100)] == [2, 2, 3, 4, 4, 5, 66, 67]
    assert [needed(10, threshold) for threshold in (0.51, 0.6, 0.61, 1.0)] == [6, 6, 7, 10]
    shares = [0.501, 0.55, 2 / 3, 0.9, 1.0]
    assert all(2 * needed(n, share) > n and needed(n, share) <= n for n in range(2, 300) for share in shares)


@pytest.mark.full
@pytest.mark.timeout(2400)
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("count", [3, 4, 5, 6])
def test_every_order(count: int) -> None:
    for phases in product(PHASES, repeat=count):
        assert check(dict(enumerate(phases))) == possible(phases), phases


@pytest.mark.parametrize("drops", [{}, {3: 2, 9: 2}, {1: 1, 5: 4}, {0: 3, 11: 2, 12: 0}])
def test_with_a_few_neighbours_each(drops: dict[int, int]) -> None:
    sums = Sum(range(14), neighbours=6)
    outcome = sums.run(drops)
    assert outcome.total.equal(sums.plain(outcome.clients))
    assert outcome.clients == tuple(client for client in range(14) if drops.get(client, NEVER) > 2)
    held = {len(message.seeds) + len(message.mask_keys) for _, message in sums.revealed}
    assert max(held) <= 7 < 14, "only neighbours and the client itself"


def test_numbers_of_64_bits() -> None:
    sums = Sum([4, 9, 11], bits=64)
    outcome = sums.run({9: 4})
    assert outcome.total.equal(sums.plain([4, 9, 11])) and outcome.total.dtype == torch.int64


def test_the_sum_is_the_quantised_plain_sum_to_the_bit() -> None:
    fixed, chance = FixedPoint(clip=0.5, levels=1 << 20), torch.Generator().manual_seed(1)
    updates = {client: Vector([torch.randn(40, generator=chance) * 0.1]) for client in range(5)}
    sums = Sum(range(5), length=40, numbers={client: fixed.quantise(update) for client, update in updates.items()})
    secure = fixed.restore(sums.run({2: 2}).total, updates[0])
    there = [fixed.quantise(updates[client]).long() for client in (0, 1, 3, 4)]
    assert secure.parts[0].equal(fixed.restore(torch.stack(there).sum(0), updates[0]).parts[0])
    exact = torch.stack([updates[client].parts[0] for client in (0, 1, 3, 4)]).sum(0)
    assert (secure.parts[0] - exact).abs().max() <= 4 * fixed.clip / fixed.levels


def test_survivors_that_fall_into_parts_are_not_opened() -> None:
    """Two parts of a circle whose joints have dropped out: each part's sum could be opened alone."""
    sums = Sum(range(12), neighbours=2, threshold=0.51)
    sums.upto(1)
    places: Neighbourhood = sums.server._places
    order = [0]
    while len(order) < 12:
        order.append(min((places.neighbours[order[-1]] - set(order)), default=0))
    assert places.connected(order) and places.connected(order[:6]) and not places.connected({*order[:4], *order[6:10]})
    with pytest.raises(SumAbandoned):
        Sum(range(12), neighbours=2, threshold=0.51).run({order[2]: 2, order[7]: 2})


def test_who_shares_with_whom_is_decided_by_the_keys_of_all() -> None:
    terms = sum_terms(range(40), 1, FixedPoint(), neighbours=6, randomness=SeededRandomness(1))
    one, other = (Neighbourhood(terms, range(40), seen) for seen in (b"a" * 32, b"b" * 32))
    for places in (one, other):
        assert all(len(near) == 6 and client not in near for client, near in places.neighbours.items())
        assert all(client in places.neighbours[near] for client in range(40) for near in places.neighbours[client])
        assert places.connected(range(40))
    assert one.neighbours != other.neighbours
    assert len({Sum(range(40), seed, neighbours=6).terms.round for seed in range(3)}) == 3


# -- what the server sees ----------------------------------------------------------------------------------------------


def noise(numbers: Vector) -> float:
    """The chi-squared of its bytes, in standard deviations from what uniform ones have."""
    counts = torch.bincount(torch.frombuffer(bytearray(unsigned(numbers.parts[0]).tobytes()), dtype=torch.uint8).long())
    assert len(counts) == 256
    expected = counts.sum() / 256
    return float((((counts - expected) ** 2 / expected).sum() - 255) / (2 * 255) ** 0.5)


def masked(sums: Sum, client: int) -> Vector:
    found: Any = sums.upto(2)[client]
    assert isinstance(found, MaskedInput)
    return found.numbers


def test_masked_numbers_are_uniform_and_new_in_every_round() -> None:
    zeros = {client: torch.zeros(40_000, dtype=torch.int32) for client in range(4)}
    rounds = [masked(Sum(range(4), seed, 40_000, zeros), 1) for seed in range(4)]
    assert all(abs(noise(numbers)) < 5 for numbers in rounds)
    for one, other in ((0, 1), (0, 2), (2, 3)):
        assert abs(noise(Vector([rounds[one].parts[0] - rounds[other].parts[0]]))) < 5, "also of their differences"


def test_each_of_the_masks_hides_the_numbers_alone() -> None:
    """Take off what a server may learn: all common masks, or the own one; what is left is uniform still."""
    sums = Sum(range(3), 0, 40_000, {client: torch.full((40_000,), 9, dtype=torch.int32) for client in range(3)})
    sums.step(sums.begin())
    one = sums.clients[1]
    secrets, seen, keys = one._secrets, one._seen, one._keys
    assert secrets
    own = own_mask(secrets.seed, seen, 1)
    common = {other: common_mask(secrets.mask, keys[other].mask_key, seen, (1, other)) for other in (0, 2)}
    numbers = masked(Sum(range(3), 0, 40_000, sums.numbers), 1)
    for added, subtracted in (([common[0]], [common[2]]), ([], [own]), ([], [own, common[2]]), ([common[0]], [own])):
        rest = numbers.clone()
        add_masks_(unsigned(rest.parts[0]), added, subtracted)
        assert abs(noise(rest)) < 5
    add_masks_(unsigned(numbers.parts[0]), [common[0]], [own, common[2]])
    assert set(numbers.parts[0].tolist()) == {9}


def test_keys_of_no_two_uses_clients_or_rounds_are_the_same() -> None:
    pair, other = KeyPair.of(bytes(range(32))), KeyPair.of(bytes(range(1, 33))).public
    agreed, made = pair.agree(other), []
    for seen in (b"a" * 32, b"b" * 32):
        made += [own_mask(agreed, seen, client) for client in (1, 2)]
        made += [common_mask(pair, other, seen, ends) for ends in ((1, 2), (1, 3))]
        made += [round_keys._derived(agreed, round_keys.ShareBox(seen, *ends).label) for ends in ((1, 2), (2, 1))]
    assert len(set(made)) == 12
    assert common_mask(pair, other, b"", (1, 2)) == common_mask(pair, other, b"", (2, 1))


def test_every_box_has_a_nonce_of_its_own() -> None:
    way, agreed = round_keys.ShareBox(b"s" * 32, 1, 2), bytes(range(32))
    boxes = {way.seal(agreed, (3, 4), SYSTEM) for _ in range(50)}
    assert len({box[: round_keys.NONCE] for box in boxes}) == len({box[round_keys.NONCE :] for box in boxes}) == 50
    assert all(way.open(agreed, box) == (3, 4) for box in boxes)
    sent: Any = Sum(range(6)).upto(1)
    nonces = [sealed.box[: round_keys.NONCE] for message in sent.values() for sealed in message.boxes]
    assert len(nonces) == len(set(nonces)) == 30


# -- secrets -----------------------------------------------------------------------------------------------------------


class Recording(SeededRandomness):
    """Remembers which bytes it gave away as keys."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.given: list[bytes] = []

    def take(self, count: int) -> bytes:
        found = super().take(count)
        self.given += [found] if count == 32 else []
        return found


def reachable(root: Any) -> tuple[set[bytes], list[Any]]:
    """The bytes, and all else, that an object refers to; not through modules and classes."""
    seen: dict[int, Any] = {}
    todo = [root]
    while todo:
        one = todo.pop()
        if id(one) not in seen and not isinstance(one, type) and not hasattr(one, "__loader__"):
            seen[id(one)] = one
            todo += gc.get_referents(one) if not callable(one) or hasattr(one, "__self__") else []
    return {one for one in seen.values() if isinstance(one, bytes)}, list(seen.values())


@pytest.mark.parametrize("end", ["done", "refused", "forgotten"])
def test_no_secret_is_left_after_a_round(end: str) -> None:
    sums, chance = Sum(range(3)), Recording(3)
    mine = SumClient(0, sums.terms, identity(0), sums.directory, randomness=chance)
    sums.clients[0] = mine
    sent = sums.upto(3)
    del mine._randomness  # which is the test's own
    assert set(chance.given) <= reachable(mine)[0] and len(chance.given) == 3
    held = {number for one in mine._secrets.held.values() for number in one} if mine._secrets else set()
    assert len(held) == 6
    if end == "forgotten":
        mine.forget()
    elif end == "refused":
        with pytest.raises(Exception, match="too early|again"):
            mine.advertise()
    else:
        for client, message in sums.step(sent).items():
            sums.server.receive(client, message)
        sums.server.advance()
        server_bytes, others = reachable(sums.server)
        assert sums.server.outcome and not set(chance.given) & server_bytes
        assert not [one for one in others if isinstance(one, UnmaskShares | KeyPair)]
    found, others = reachable(mine)
    assert not set(chance.given) & found
    assert not held & {one for one in others if isinstance(one, int)}
    assert not [one for one in others if isinstance(one, KeyPair)]


def test_the_outcome_says_where_secrets_come_from_and_nobody_mixes_them_up() -> None:
    assert Sum(range(3)).run().randomness == "a seed, for simulation only"
    terms = sum_terms(range(3), 5, FixedPoint())
    directory = {client: identity(client).public for client in range(3)}
    with pytest.raises(PlanError, match="secrets from a seed are for simulated sums only"):
        SumClient(0, terms, identity(0), directory, randomness=SeededRandomness(1))
    sums = Sum(range(3))
    sums.terms, sums.server = terms, SumServer(terms, directory)
    sums.clients = {client: SumClient(client, terms, identity(client), directory) for client in range(3)}
    assert sums.run().randomness == SYSTEM.source == "operating system"
    again = [SumClient(client, terms, identity(client), directory) for client in (0, 0, 1, 2)]
    assert len({one.advertise().mask_key for one in again}) == 4


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"threshold": 0.5}, "above 1/2"),
        ({"threshold": 1.01}, "above 1/2"),
        ({"neighbours": 1}, "at least 2"),
        ({"least": 4}, "from 2 to the 3 clients"),
        ({"least": 1}, "from 2 to the 3 clients"),
        ({"length": 0}, "a sum of 0 numbers"),
        ({"clients": [1, 1, 2]}, "once each"),
        ({"clients": [-1, 1, 2]}, "once each"),
        ({"clients": [1]}, "a secure sum of 1 clients"),
    ],
)
def test_terms_that_cannot_be(wrong: dict[str, Any], told: str) -> None:
    given = {"clients": range(3), "length": 4, "numbers": FixedPoint()} | wrong
    with pytest.raises(PlanError, match=told):
        sum_terms(given.pop("clients"), given.pop("length"), given.pop("numbers"), **given)


def test_a_client_sends_nothing_that_does_not_fit() -> None:
    for wrong in (torch.zeros(4, dtype=torch.int32), torch.zeros(5), drawn(1, 5, FixedPoint()) * 2):
        sums = Sum(range(3))
        sums.numbers[1] = wrong
        with pytest.raises(PlanError, match="client 1 wants to add"):
            sums.upto(2)
