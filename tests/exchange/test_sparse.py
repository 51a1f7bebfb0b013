"""Codecs that choose numbers: what each is, and what its neighbours are not (taxonomy D.11 to D.15)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from covey.errors import PlanError
from covey.exchange.codec import Codec, Seed, error_feedback
from covey.exchange.codecs.bit_codes import golomb_bits
from covey.exchange.codecs.dgc import Dgc
from covey.exchange.codecs.random_k import RandomK
from covey.exchange.codecs.random_k import places as drawn
from covey.exchange.codecs.sbc import Sbc
from covey.exchange.codecs.sparse import Entropy, MsTopK, Threshold, TopK
from covey.model.flat import Form, ParameterRange
from covey.run.options import options
from covey.run.request import request
from covey.vector import Vector
from tests.exchange.coders import flat, form, matrix, normal, places, roundtrip, together, waiting, whole
from tests.worlds import adam, mlp, run, sgd


def one(*numbers: float) -> Vector:
    return Vector([torch.tensor(numbers)])


def told(codec: Codec, *vectors: Vector) -> list[list[float]]:
    """What arrives of one vector after the other, with error feedback."""
    coder = error_feedback(codec).made(flat(vectors[0].numel), 3)
    memory, found = coder.memory, []
    for vector in vectors:
        wire, memory = coder.encode(vector, memory)
        found.append(coder.decode(wire).parts[0].tolist())
    return found


# -- the largest ------------------------------------------------------------------------------------------------------


def test_the_largest_leave_and_the_rest_waits() -> None:
    assert told(TopK(density=0.25).codec(), one(1, -4, 3, 2), one(0, 0, 0, 3), one(0, 0, 0, 0)) == [
        [0, -4, 0, 0], [0, 0, 0, 5], [0, 0, 3, 0],
    ]  # fmt: skip


def test_of_equals_the_first_is_taken() -> None:
    assert told(TopK(density=0.5).codec(), one(1, -2, 2, 2))[0] == [0, -2, 2, 0]


def test_all_of_them_lose_nothing_and_places_are_spared() -> None:
    shape = form(torch.float32, torch.float64)
    coder = error_feedback(TopK(density=1.0).codec()).made(shape, 0)
    wire, memory = coder.encode(normal(shape), coder.memory)
    assert torch.equal(whole(coder.decode(wire)), whole(normal(shape))) and waiting(memory).norm() == 0
    assert wire.nbytes == shape.like.nbytes == TopK(density=1.0).codec().nbytes(shape)


def test_what_waits_is_the_smaller_part() -> None:
    """|e|^2 <= (1 - k / D) |v|^2."""
    shape = flat(1000)
    for codec in (TopK(density=0.1).codec(), MsTopK(density=0.1).codec()):
        coder = error_feedback(codec).made(shape, 0)
        _, memory = coder.encode(normal(shape), coder.memory)
        assert waiting(memory).norm() ** 2 <= 0.9 * normal(shape).norm() ** 2


def test_a_layer_or_all_of_them() -> None:
    vector = normal(form(), scale=1.0)
    first = form().layers[0][0]
    vector.parts[0][first.start : first.stop] *= 1e-3
    by_layer, of_all = (
        roundtrip(TopK(density=0.1, scope=scope).codec().made(form(), 0), vector)  # type: ignore[arg-type]
        for scope in ("layer", "global")
    )
    assert int((of_all.parts[0][first.start : first.stop] != 0).sum()) == 0
    for layer in form().layers[0]:
        count = int((by_layer.parts[0][layer.start : layer.stop] != 0).sum())
        assert count == max(1, round(0.1 * (layer.stop - layer.start)))


def test_multiscale_topk_finds_exactly_as_many_and_nearly_the_same() -> None:
    """Shi et al. 2021: for normal numbers the search separates."""
    shape = flat(5000)
    exact = roundtrip(TopK(density=0.02).codec().made(shape, 0), normal(shape)).parts[0] != 0
    about = roundtrip(MsTopK(density=0.02).codec().made(shape, 0), normal(shape)).parts[0] != 0
    assert int(about.sum()) == 100 and int((exact & about).sum()) >= 99
    coarse = roundtrip(MsTopK(density=0.02, rounds=2).codec().made(shape, 0), normal(shape)).parts[0] != 0
    assert int(coarse.sum()) == 100 > int((exact & coarse).sum())


def test_a_threshold_takes_what_reaches_it_as_it_is() -> None:
    assert told(Threshold(value=1.0).codec(), one(0.6, -3, 1, 0, 0), one(0.6, 0, 0, 0, 0)) == [
        [0, -3, 1, 0, 0], [pytest.approx(1.2), 0, 0, 0, 0],
    ]  # fmt: skip


# -- by chance --------------------------------------------------------------------------------------------------------


def test_every_set_of_places_is_as_likely() -> None:
    counts = torch.zeros(40)
    for seed in range(600):
        found = drawn(seed, 4, 40)
        assert found.numel() == found.unique().numel() == 4
        counts[found] += 1
    assert float((counts - 60).square().sum() / 60 / 0.9) == pytest.approx(39, abs=5 * math.sqrt(2 * 39))
    assert torch.equal(drawn(5, 30, 40), drawn(5, 30, 40).sort().values)


def test_no_place_travels_and_any_rank_finds_them() -> None:
    shape = flat(1000)
    mine, theirs = (RandomK(density=0.1).codec().made(shape, Seed(own, 77, own, 2)) for own in (0, 1))
    wire, _ = mine.encode(normal(shape), mine.memory)
    assert wire.nbytes == 8 + 4 * 100
    found = theirs.decode(wire).parts[0]
    chosen = found != 0
    assert int(chosen.sum()) == 100 and torch.equal(found[chosen], normal(shape).parts[0][chosen])
    other, _ = theirs.encode(normal(shape, 1), theirs.memory)
    assert torch.equal(mine.decode(other).parts[0] != 0, chosen), "the same places on all ranks"


def test_random_numbers_add_up_by_themselves() -> None:
    """k numbers travel; the total is the sum at the chosen places, and the rest waits on each rank."""
    shape = flat(50)
    coders = [error_feedback(RandomK(density=0.2).codec()).made(shape, place) for place in places(3)]
    vectors, memories = [normal(shape, rank) for rank in range(3)], [coder.memory for coder in coders]
    totals, size = together(coders, vectors, memories)
    chosen = totals[0].parts[0] != 0
    assert size == 40 and int(chosen.sum()) == 10
    torch.testing.assert_close(totals[0].parts[0][chosen], sum(v.parts[0] for v in vectors)[chosen])
    for vector, memory in zip(vectors, memories, strict=True):
        torch.testing.assert_close(waiting(memory), whole(vector) * ~chosen)


def test_without_error_feedback_what_is_sent_counts_for_the_rest() -> None:
    plain, scaled = RandomK(density=0.25).codec(), RandomK(density=0.25, unbiased=True).codec()
    one_of_four = [roundtrip(c.made(flat(8), 0), one(*range(1, 9))).parts[0] for c in (plain, scaled)]
    assert torch.equal(one_of_four[0] * 4, one_of_four[1])
    carried = roundtrip(error_feedback(scaled).made(flat(8), 0), one(*range(1, 9))).parts[0]
    assert torch.equal(carried, one_of_four[0]), "carried on, nothing has to be made up for"


# -- entropy ----------------------------------------------------------------------------------------------------------


def test_the_more_even_the_sizes_the_more_are_sent() -> None:
    codec = Entropy(low=0.01, high=0.2, correction=False).codec()

    def count(numbers: torch.Tensor) -> int:
        return int((roundtrip(codec.made(flat(6400), 0), Vector([numbers])).parts[0] != 0).sum())

    signs = torch.where(torch.arange(6400) % 2 == 0, 1.0, -1.0)
    assert count(signs) == 64, "all of one size"
    assert count(signs * torch.linspace(1e-4, 1, 6400)) == pytest.approx(1280, rel=0.01)
    assert 64 < count(normal(flat(6400)).parts[0]) < 1280


def test_what_few_numbers_tell_counts_less() -> None:
    """By the share of the norm that they have, as a smaller learning rate would do; what waits is what was not sent."""
    vector = one(3.0, 4.0, *[0.0] * 8, 12.0)
    codec = replace(Entropy(low=0.0909, high=0.0909).codec())
    coder = error_feedback(codec).made(flat(11), 0)
    wire, memory = coder.encode(vector, coder.memory)
    assert coder.decode(wire).parts[0][-1] == pytest.approx(12 * 12 / 13)
    assert waiting(memory).tolist() == [3, 4, *[0] * 9]
    wire, _ = coder.encode(one(*[0.0] * 11), memory)
    assert coder.decode(wire).parts[0][1] == pytest.approx(4 * 4 / 5), "of all that waited, not of this gradient"


# -- DGC --------------------------------------------------------------------------------------------------------------

PLAIN = Dgc(density=0.1, momentum=0.0, warmup=0.0)


def test_without_momentum_it_is_topk_with_error_feedback() -> None:
    shape = matrix(10, 20)
    mine, theirs = PLAIN.codec().made(shape, 0), error_feedback(TopK(density=0.1).codec()).made(shape, 0)
    one_memory, other = mine.memory, theirs.memory
    for seed in range(6):
        wire, one_memory = mine.encode(normal(shape, seed), one_memory)
        expected, other = theirs.encode(normal(shape, seed), other)
        torch.testing.assert_close(mine.decode(wire).parts[0], theirs.decode(expected).parts[0])


def test_with_all_numbers_it_is_sgd_with_momentum() -> None:
    """Masking would make it plain SGD, so density 1 goes without."""
    shape, u = matrix(4, 5), torch.zeros(20)
    coder = Dgc(density=1.0, momentum=0.9, warmup=0.0).codec().made(shape, 0)
    memory = coder.memory
    for seed in range(5):
        wire, memory = coder.encode(normal(shape, seed), memory)
        u = 0.9 * u + normal(shape, seed).parts[0]
        torch.testing.assert_close(coder.decode(wire).parts[0], u)


def test_nesterov_too() -> None:
    shape, u = matrix(4, 5), torch.zeros(20)
    coder = Dgc(density=1.0, momentum=0.9, warmup=0.0, nesterov=True).codec().made(shape, 0)
    memory = coder.memory
    for seed in range(5):
        g = normal(shape, seed).parts[0]
        wire, memory = coder.encode(normal(shape, seed), memory)
        u = 0.9 * (u + g)
        torch.testing.assert_close(coder.decode(wire).parts[0], u + g)


@pytest.mark.parametrize("nesterov", [False, True])
def test_a_clipped_gradient_is_clipped_wherever_it_counts(nesterov: bool) -> None:
    """Four workers: each may have half of the norm that the mean may have. What is shorter stays as it is."""
    shape, clip = matrix(4, 5), 3.0
    place = Seed(0, workers=4)
    settings = {"density": 1.0, "momentum": 0.9, "warmup": 0.0, "nesterov": nesterov}
    clips, plain = (Dgc(**settings, clip=limit).codec().made(shape, place) for limit in (clip, None))
    clipped, given = clips.memory, plain.memory
    for seed, size in enumerate((10.0, 0.01, 10.0)):
        vector = normal(shape, seed) * size
        short = vector * min(1.0, clip / 2 / vector.norm())
        wire, clipped = clips.encode(vector, clipped)
        expected, given = plain.encode(short, given)
        torch.testing.assert_close(clips.decode(wire).parts[0], plain.decode(expected).parts[0])


def test_what_is_sent_loses_its_momentum_and_all_else_gathers() -> None:
    """sum of what was sent + v == sum of u; where something was sent both u and v are 0."""
    shape, gathered, sent = matrix(10, 20), torch.zeros(200), torch.zeros(200)
    coder = Dgc(density=0.05, momentum=0.9, warmup=0.0).codec().made(shape, 0)
    memory, u = coder.memory, torch.zeros(200)
    for seed in range(8):
        wire, memory = coder.encode(normal(shape, seed), memory)
        found = coder.decode(wire).parts[0]
        u = 0.9 * u + normal(shape, seed).parts[0]
        gathered, sent = gathered + u, sent + found
        u[found != 0] = 0
        moving, left = memory[0].parts[0], memory[1].parts[0]
        assert moving[found != 0].abs().max() == left[found != 0].abs().max() == 0
        torch.testing.assert_close(moving, u)
    torch.testing.assert_close(sent + left, gathered)


def test_biases_go_as_they_are_with_ordinary_momentum() -> None:
    coder = Dgc(density=0.05, momentum=0.5, warmup=0.0).codec().made(form(), 0)
    _, memory = coder.encode(normal(form(), 0), coder.memory)
    wire, _ = coder.encode(normal(form(), 1), memory)
    found, expected = coder.decode(wire).parts[0], 0.5 * normal(form(), 0).parts[0] + normal(form(), 1).parts[0]
    for layer in form().layers[0]:
        inside = slice(layer.start, layer.stop)
        if len(layer.shape) == 1:
            torch.testing.assert_close(found[inside], expected[inside])
        else:
            assert int((found[inside] != 0).sum()) == max(1, round(0.05 * (layer.stop - layer.start)))


def test_each_worker_clips_to_its_share() -> None:
    """A norm of 2 among 4 workers is 1 each."""
    coder = replace(PLAIN, density=1.0, clip=2.0).codec().made(matrix(2, 2), Seed(0, 0, 0, 4))
    found = roundtrip(coder, one(30.0, 0, 0, 40.0)).parts[0]
    torch.testing.assert_close(found, torch.tensor([0.6, 0, 0, 0.8]))
    assert roundtrip(coder, one(0.3, 0, 0, 0.4)).parts[0].tolist() == pytest.approx([0.3, 0, 0, 0.4])


def test_the_warm_up_of_the_paper() -> None:
    """75, 93.75, 98.4375 and 99.6 % are left out in the first four epochs, then 99.9 %."""
    left_out = [1 - Dgc().density_at(step, 10) for step in (0, 10, 20, 30, 40, 1000)]
    assert left_out == pytest.approx([0.75, 0.9375, 0.984375, 0.996, 0.999, 0.999], abs=1.5e-3)
    coder = Dgc(density=0.01).codec().made(replace(matrix(20, 50), epoch=2), 0)
    memory, counts = coder.memory, []
    for seed in range(12):
        wire, memory = coder.encode(normal(flat(1000), seed), memory)
        counts.append(wire.parts[0].numel() or 1000)
    assert counts == [398, 398, 158, 158, 63, 63, 25, 25, 10, 10, 10, 10]


def test_an_epoch_has_to_be_known() -> None:
    with pytest.raises(PlanError, match="dgc\\(warmup=4\\): the length of an epoch is unknown here; use warmup=0"):
        Dgc().codec().made(replace(matrix(2, 2), epoch=0), 0)


# -- SBC --------------------------------------------------------------------------------------------------------------


def test_one_value_and_one_sign_for_every_layer() -> None:
    """The side whose largest numbers have the larger mean; its sibling STC would keep both."""
    assert told(Sbc(density=0.2).codec(), one(5, 1, -2, 3, -7, 0, 0, -1.5, 0.5, 2))[0] == [
        0,
        0,
        -4.5,
        0,
        -4.5,
        *[0] * 5,
    ]
    every = roundtrip(Sbc(density=0.1).codec().made(form(), 0), normal(form())).parts[0]
    for layer in form().layers[0]:
        assert every[layer.start : layer.stop].unique().numel() == 2, "one value, and 0"
    assert every.unique().numel() == len(form().layers[0]) + 1


def test_the_first_and_the_last_number_of_a_layer_get_its_own_value() -> None:
    x = one(5.0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 3)
    layers = tuple(ParameterRange(name, 4 * place, 4 * place + 4, (4,)) for place, name in enumerate("abc"))
    assert roundtrip(Sbc(density=0.25).codec().made(Form(x, (layers,)), 0), x).parts[0].tolist() == x.parts[0].tolist()


def test_the_momentum_of_what_was_sent_stops() -> None:
    """u = 0.5 u + g, v += u; one of four leaves with its value, its v loses that, and its u begins anew."""
    coder = Sbc(density=0.25, momentum=0.5).codec().made(flat(4), 3)
    memory, sent = coder.memory, []
    for _ in range(3):
        wire, memory = coder.encode(one(4, 3, 1, 0), memory)
        sent.append(coder.decode(wire).parts[0].tolist())
    # u: 4 3 1 -> v 4 3 1, the first leaves; u: 4 4.5 1.5 -> v 4 7.5 2.5, the second; u: 6 3 1.75 -> v 10 3 4.25
    assert sent == [[4, 0, 0, 0], [0, 7.5, 0, 0], [10, 0, 0, 0]]
    waits, moves = (part.parts[0].tolist() for part in memory)
    assert waits == [0, 3, 4.25, 0] and moves == [0, 3, 1.75, 0]
    plain = Sbc(density=0.25).codec().carrying().made(flat(4), 3)
    assert plain.encode(one(4, 3, 1, 0), plain.memory)[1].parts[0].tolist() == [0, 3, 1, 0]


def test_everybodys_momentum_cannot_be_stopped_for_what_one_has_sent() -> None:
    """Server and all-reduce: the codec brings it; workers with optimizers of their own: theirs is stopped."""
    moving, plain = (mlp(sgd(0.1, momentum=momentum)) for momentum in (0.9, 0.0))
    for name in ("bsp", "allreduce"):
        with pytest.raises(PlanError, match="must reset the momentum of the values it sends.*(momentum=0.9)"):
            request(moving, f"{name} + sbc", 2, options({"steps": 2}))
        with pytest.raises(PlanError, match="sbc.* brings the momentum itself"):
            request(moving, f"{name} + sbc(momentum=0.9)", 2, options({"steps": 2}))
        request(plain, f"{name} + sbc(momentum=0.9)", 2, options({"steps": 2}))
        request(plain, f"{name} + sbc", 2, options({"steps": 2}))
    request(moving, "local_sgd(period=2) + sbc", 2, options({"steps": 2}))


@pytest.mark.parametrize("name", ["local_sgd(period=4)", "diloco(period=4)"])
@pytest.mark.parametrize(("make", "key"), [(sgd(0.1, momentum=0.9), "momentum_buffer"), (adam(), "exp_avg")])
def test_workers_that_send_their_changes_stop_their_own_momentum_there(name: str, make: Any, key: str) -> None:
    """Sattler et al. 2019; a codec that does not mask leaves no zero in it."""
    for codec, masked in (("sbc(density=0.2)", True), ("topk(density=0.2)", False)):
        world = run(mlp(make), f"{name} + {codec}", 2, steps=4)
        for replica in world.workers():
            states = [state[key] for state in replica.optimizer.state.values()]
            zeros = sum(int((state == 0).sum()) for state in states)
            assert (0.05 < zeros / replica.flat.numel <= 0.25) == masked and (zeros == 0) == (not masked)


def test_places_take_the_bits_that_golomb_says() -> None:
    shape = flat(50_000)
    coder = Sbc(density=0.01).codec().made(shape, 0)
    wire, _ = coder.encode(normal(shape), coder.memory)
    assert 8 * wire.parts[2].numel() / 500 == pytest.approx(golomb_bits(0.01), rel=0.02)
    assert golomb_bits(0.01) == pytest.approx(8.1, abs=0.02) and wire.nbytes < 500 * 4, "less than places alone"
