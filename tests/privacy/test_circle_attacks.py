"""A lying server that wants the sum of a few who stand together on the circle, where each has some neighbours only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace

from covey.errors import WireError
from covey.privacy.secagg.messages import (
    MaskedInput,
    SignedBy,
    SignedMasks,
    SurvivorList,
    UnmaskRequest,
)  # fmt: skip
from covey.privacy.secagg.round_keys import masks_statement
from tests.privacy.sums import Sum, identity

CLIENTS = 12  # with two neighbours each; two of three holders open a secret


class Circle:
    """A sum whose clients have shared their secrets, and a server that may deliver, list and ask what it likes."""

    def __init__(self) -> None:
        self.sums = Sum(range(CLIENTS), neighbours=2)
        for client, message in self.sums.upto(1).items():
            self.sums.server.receive(client, message)
        self.delivered: dict[int, Any] = dict(self.sums.server.advance())
        self.places = self.sums.server._places
        self.order = [0, min(self.places.neighbours[0])]
        while len(self.order) < CLIENTS:
            (after,) = self.places.neighbours[self.order[-1]] - {self.order[-2]}
            self.order.append(after)
        self.masked: dict[int, SignedMasks] = {}

    def at(self, *places: int) -> tuple[int, ...]:
        """The clients at some places of the circle."""
        return tuple(sorted(self.order[place % CLIENTS] for place in places))

    def withhold(self, place: int, other: int) -> None:
        """One client never hears from another, and so adds no mask in common with it."""
        (client,), (sender,) = self.at(place), self.at(other)
        message = self.delivered[client]
        self.delivered[client] = replace(message, boxes=tuple(box for box in message.boxes if box.client != sender))

    def mask(self) -> None:
        for client, message in self.delivered.items():
            answer = self.sums.answer(client, message)
            assert isinstance(answer, MaskedInput)
            got = {box.client for box in message.boxes}
            without = tuple(sorted(self.places.neighbours[client] - got))
            self.masked[client] = SignedMasks(client, without, answer.signature)

    def list_for(self, client: int, survivors: tuple[int, ...]) -> SurvivorList:
        near = sorted(self.places.neighbours[client] & set(survivors))
        return SurvivorList(self.sums.terms.round, survivors, tuple(self.masked[one] for one in near))

    def open(self, lists: Mapping[int, SurvivorList]) -> Counter[tuple[str, int]]:
        """Let each client sign its list, and ask those who do for shares: how many came of which secrets."""
        signed: dict[int, SignedBy] = {}
        for client, message in lists.items():
            with suppress(WireError):
                signed[client] = SignedBy(client, self.sums.answer(client, message).signature)
        found: Counter[tuple[str, int]] = Counter()
        for client in signed:
            survivors = lists[client].survivors
            alike = tuple(signed[one] for one in sorted(signed) if lists[one].survivors == survivors)
            dropped = tuple(sorted(self.places.neighbours[client] - set(survivors)))
            with suppress(WireError):
                told: Any = self.sums.answer(client, UnmaskRequest(self.sums.terms.round, survivors, dropped, alike))
                found.update(("seed", one.client) for one in told.seeds)
                found.update(("mask key", one.client) for one in told.mask_keys)
        return found

    def sums_of(self, found: Counter[tuple[str, int]]) -> set[frozenset[int]]:
        """Whose sums the server can work out: parts of those with known seeds that have no unknown mask with others."""
        seeds, keys = ({c for c in self.masked if found[which, c] >= 2} for which in ("seed", "mask key"))
        mates = {c: self.places.neighbours[c] - set(self.masked[c].without) - keys for c in self.masked}
        left, parts = set(seeds), set()
        while left:
            part, edge = set(), {left.pop()}
            while edge:
                part |= edge
                edge = {mate for one in edge for mate in mates[one]} - part
            left -= part
            whole = part <= seeds and all(one in mates[mate] for one in part for mate in mates[one])
            parts |= {frozenset(part)} if whole else set()
        return parts


def test_an_honest_server_gets_all_shares() -> None:
    """Else the attacks below would fail for another reason."""
    circle = Circle()
    circle.mask()
    everybody = circle.at(*range(CLIENTS))
    found = circle.open({client: circle.list_for(client, everybody) for client in everybody})
    assert found == {("seed", client): 3 for client in everybody}
    assert circle.sums_of(found) == {frozenset(everybody)}


@pytest.mark.parametrize("told", ["the truth", "nothing", "a lie", "another's", "of another sum"])
def test_masks_withheld_at_two_borders(told: str) -> None:
    """Three clients have masks only among themselves: with all their seeds the server would have their sum."""
    circle = Circle()
    circle.withhold(1, 0)
    circle.withhold(3, 4)
    circle.mask()
    everybody, few = circle.at(*range(CLIENTS)), circle.at(1, 2, 3)
    old = circle.sums.server._seen[::-1]
    lists = {}
    for client in everybody:
        honest = circle.list_for(client, everybody)
        told_masks = []
        for one in honest.masks:
            if one.client in few and told == "a lie":
                one = replace(one, without=())
            elif one.client in few and told == "another's":
                one = replace(one, without=(), signature=identity(client).sign(b""))
            elif one.client in few and told == "of another sum":
                one = SignedMasks(one.client, (), identity(one.client).sign(masks_statement(old, one.client, ())))
            told_masks.append(one)
        kept = told_masks if told != "nothing" else [one for one in told_masks if one.client not in few]
        lists[client] = replace(honest, masks=tuple(kept))
    found = circle.open(lists)
    assert not circle.sums_of(found)
    borders = circle.at(1, 3)
    assert not any(found["seed", client] for client in borders), "of these nobody tells a share"
    assert not any(found["mask key", client] for client in everybody)


def test_two_lists_of_survivors_at_two_borders() -> None:
    """Each list leaves one client out, and is tied together around the other side; both together cut four out."""
    circle = Circle()
    circle.mask()
    left, right = circle.at(*range(1, 12)), circle.at(*range(5), *range(6, 12))  # without place 0, and without place 5
    lists = {client: circle.list_for(client, left) for client in circle.at(9, 10, 11, 1, 2)}
    lists |= {client: circle.list_for(client, right) for client in circle.at(3, 4, 6, 7, 8)}
    assert all(circle.places.connected(one) and len(one) >= circle.places.least for one in (left, right))
    assert not circle.open(lists), "too few signed either list"


def test_a_short_list_and_two_pieces() -> None:
    circle = Circle()
    circle.mask()
    for survivors in (circle.at(1, 2, 3), circle.at(1, 2, 3, 4, 6, 7, 8, 9, 10)):
        assert not circle.open({client: circle.list_for(client, survivors) for client in survivors})
        circle = Circle()
        circle.mask()


BORDERS = ("none", "inside", "outside", "both", "dropped")


@pytest.mark.parametrize("one", BORDERS)
@pytest.mark.parametrize("other", BORDERS)
def test_every_pair_of_borders_opens_the_sum_of_all_who_are_listed_or_none(one: str, other: str) -> None:
    """Clients 1 to 4 are to be cut out, by withheld masks or by a client that is said to be gone."""
    circle = Circle()
    for kind, inside, outside in ((one, 1, 0), (other, 4, 5)):
        if kind in ("inside", "both"):
            circle.withhold(inside, outside)
        if kind in ("outside", "both"):
            circle.withhold(outside, inside)
    circle.mask()
    gone = [place for kind, place in ((one, 0), (other, 5)) if kind == "dropped"]
    lists = {}
    for place in range(CLIENTS):
        nearest = [0] if place in (9, 10, 11, 1, 2) else [5]
        left_out = [far for far in gone if len(gone) < 2 or far in nearest]
        survivors = circle.at(*(at for at in range(CLIENTS) if at not in left_out))
        (client,) = circle.at(place)
        if client in survivors:
            lists[client] = circle.list_for(client, survivors)
    opened = circle.sums_of(circle.open(lists))
    assert opened <= {frozenset(message.survivors) for message in lists.values()}
    if {one, other} <= {"none", "dropped"} and len(gone) < 2:
        assert len(opened) == 1, "nothing was withheld"
