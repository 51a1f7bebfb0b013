"""Vectors that travel as what has changed: both ends hold the same shadow, and it comes to the vector."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from covey.errors import PlanError
from covey.exchange.codec import Codec, Coder, Seed, dense
from covey.exchange.codec_traits import CodecTraits
from covey.exchange.codecs.low_rank import PowerSgd
from covey.exchange.codecs.wrappers import warmed_up
from covey.exchange.differences import Shadows, damped, difference_coder, gain, refuse_carrying, refuse_lagging
from covey.model.flat import Form
from covey.model.replica import Replica
from covey.program import Node
from covey.vector import Vector
from tests.exchange.plain_codecs import Exact, Few, Rough
from tests.worlds import perform, vector

GOAL = torch.randn(400, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


def told(codec: Codec, times: int) -> list[tuple[Vector, Vector]]:
    """The shadow of a vector that stands still at `GOAL`, at its sender's and at its receiver's, time after time."""
    found: list[tuple[Vector, Vector]] = []

    async def program(node: Node, replica: Replica) -> None:
        start = Vector([torch.zeros(400, dtype=torch.float64)])
        coder = difference_coder(node, Form.plain(start), codec)
        sender, receiver = (Shadows(node, name, coder, start) for name in ("sent", "heard"))
        for _ in range(times):
            receiver.hear(sender.tell(Vector([GOAL]), 3), 1)
            found.append((sender.of(3).clone(), receiver.of(1).clone()))

    perform(program)
    return found


@pytest.mark.parametrize("codec", [Few(density=0.1), Rough(), Exact()])
def test_both_ends_hold_the_same_shadow(codec: Few | Rough | Exact) -> None:
    assert all(torch.equal(mine.parts[0], theirs.parts[0]) for mine, theirs in told(codec.codec(), 12))


def test_what_is_left_out_comes_later_and_once() -> None:
    errors = [float((mine.parts[0] - GOAL).norm()) for mine, _ in told(Few(density=0.1).codec(), 10)]
    assert errors == sorted(errors, reverse=True) and errors[-1] < 1e-12, "ten times a tenth of the numbers are all"


def test_a_rough_codec_never_leads_a_shadow_away() -> None:
    """Undamped it would: what it says is on average 7 times as far off as there was to say."""
    errors = [float((mine.parts[0] - GOAL).norm()) for mine, _ in told(Rough().codec(), 300)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.3 * errors[0]
    taken = replace(Rough().codec(), traits=CodecTraits(feedback="needed"))  # for one that needs no damping
    wild = told(taken, 30)
    assert float((wild[-1][0].parts[0] - GOAL).norm()) > 1e3 * errors[0]


def test_damping_leaves_what_is_exact_alone() -> None:
    coder = damped(Exact(adds=True).codec().made(Form.plain(vector(0, 0)), 0))
    wire, _ = coder.encode(vector(3.0, -4.0), coder.memory)
    assert coder.decode(wire).parts[0].tolist() == [3.0, -4.0]
    nothing, _ = coder.encode(vector(0.0, 0.0), coder.memory)
    assert coder.decode(nothing).parts[0].tolist() == [0.0, 0.0]


def of(codec: Codec) -> float:
    like = Vector([torch.zeros(20_000)])
    return gain(codec.made(Form.plain(like), 0), like, 1)


def signs() -> Codec:
    """One bit a number, and their mean size (Bernstein et al. 2018)."""

    def make(form: Form, seed: Seed) -> Coder:
        return Coder(
            lambda: None, lambda v, memory: (v.map(lambda part: part.sign() * part.abs().mean()), None), Vector.clone
        )

    biased = CodecTraits(feedback="needed")
    return Codec(name="signs", make=make, nbytes=lambda form: form.like.numel / 8, traits=biased)


def test_the_gain_falls_with_what_a_codec_tells() -> None:
    """Signs tell 2 / pi of the square of normal numbers, the largest hundredth about 8 % of it."""
    assert of(dense) == of(Exact().codec()) == 1
    assert of(signs()) == pytest.approx(1 / (3.14159 - 1), abs=0.01)
    assert of(Few(density=0.01).codec()) == pytest.approx(0.084 / (2 - 0.084), abs=0.005)


def test_codecs_that_carry_on_by_themselves_are_refused() -> None:
    carrying = replace(Few().codec(), traits=CodecTraits(feedback="own"))
    with pytest.raises(PlanError, match="carried on already: use a codec without it, such as topk"):
        refuse_carrying(carrying)
    with pytest.raises(PlanError, match="omit warmup"):
        refuse_lagging(warmed_up(Few().codec(), steps=3))
    with pytest.raises(PlanError, match="powersgd's dense"):  # by what it does, whatever it is called
        refuse_lagging(PowerSgd(dense=3).codec())
    refuse_lagging(Few().codec())
