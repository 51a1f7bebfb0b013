"""Codecs of bits: what each is, and what its neighbours are not (taxonomy D.1 to D.10)."""

from __future__ import annotations

import math

import pytest
import torch

from covey.exchange.codec import error_feedback
from covey.exchange.codecs.bits import Bf16, Fixed16, Fp16, Int8, Natural, TwoBit, cast, truncated
from covey.exchange.codecs.levels import DoReFa, OneBit, TernGrad
from covey.exchange.codecs.qsgd import Qsgd
from covey.exchange.codecs.sign_sums import pack, unpack
from covey.exchange.codecs.strom import DENSE, STEP, Strom
from covey.model.flat import Form, ParameterRange
from covey.vector import Vector
from tests.exchange.coders import flat, form, matrix, normal, places, roundtrip, together, waiting, whole


def one(*numbers: float) -> Vector:
    return Vector([torch.tensor(numbers)])


# -- narrower floats --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_cast_rounds_to_nearest_even_and_only_once(dtype: torch.dtype) -> None:
    coder = cast("any", dtype).made(flat(1000), 0)
    once = roundtrip(coder, normal(flat(1000)))
    assert torch.equal(once.parts[0], normal(flat(1000)).parts[0].to(dtype).float())
    assert torch.equal(roundtrip(coder, once).parts[0], once.parts[0])


@pytest.mark.parametrize(
    ("number", "half", "brain"),
    [
        (1.0, 1.0, 1.0), (1 + 2**-9, 1.001953125, 1.0), (1 + 2**-8, 1.00390625, 1.0), (1 + 2**-11, 1.0, 1.0),
        (1 + 3 * 2**-8, 1.01171875, 1.015625), (65504.0, 65504.0, 65536.0), (65519.0, 65504.0, 65536.0),
        (65520.0, math.inf, 65536.0), (65537.0, math.inf, 65536.0), (70000.0, math.inf, 70144.0),
        (2.0**-24, 2.0**-24, 2.0**-24), (2.0**-26, 0.0, 2.0**-26),
    ],
)  # fmt: skip
def test_what_fp16_and_bf16_make_of_numbers_that_anyone_can_look_up(number: float, half: float, brain: float) -> None:
    """IEEE binary16 ends at 65,504 and has 11 bits; bfloat16 has float32's exponent and 8 bits; ties go to even."""
    for codec, expected in ((Fp16().codec(), half), (Bf16().codec(), brain)):
        found = roundtrip(codec.made(flat(2), 0), one(number, -number)).parts[0].tolist()
        assert found == [expected, -expected]


def test_truncation_is_toward_zero_and_no_half() -> None:
    vector = normal(flat(1000))
    cut, rounded = (roundtrip(c.made(flat(1000), 0), vector).parts[0] for c in (truncated(), cast("b", torch.bfloat16)))
    assert (cut.abs() <= vector.parts[0].abs()).all() and not torch.equal(cut, rounded)
    assert float(roundtrip(truncated().made(flat(1), 0), one(1e30)).parts[0]) > 9e29, "the exponent of float32"


def test_sums_of_halves_are_rounded_on_every_hop() -> None:
    coders = [cast("fp16", torch.float16).made(flat(1), place) for place in places(3)]
    totals, size = together(coders, [one(2048.0), one(1.0), one(1.0)], [None] * 3)
    assert float(totals[0].parts[0]) == 2048, "2049 is no half, and float32 would have kept it"
    assert size == 2


# -- fixed point ------------------------------------------------------------------------------------------------------


def test_small_updates_arrive_on_average_and_stall_to_nearest() -> None:
    """A thousand times a tenth of a step (Gupta et al. 2015)."""
    step = 2.0**-14
    for rounding, expected in (("random", 100), ("nearest", 0)):
        coder = Fixed16(rounding=rounding).codec().made(flat(200), 1)  # type: ignore[arg-type]
        memory, moved = coder.memory, torch.zeros(200)
        for _ in range(100):
            wire, memory = coder.encode(Vector([torch.full((200,), 0.1 * step)]), memory)
            moved += coder.decode(wire).parts[0] / step
        assert float(moved.mean()) * 10 == pytest.approx(expected, abs=4)


def test_fixed_point_saturates_and_its_sums_do_not() -> None:
    coder = Fixed16().codec().made(flat(2), 0)
    assert roundtrip(coder, one(100.0, -100.0)).parts[0].tolist() == [2 - 2**-14, -2.0]
    coders = [Fixed16().codec().made(flat(2), place) for place in places(4)]
    totals, size = together(coders, [one(1.75, -1.0)] * 4, [c.memory for c in coders])
    assert totals[0].parts[0].tolist() == [7.0, -4.0] and size == 8, "whole numbers of 32 bits"


def test_eight_bits_have_a_scale_for_every_block() -> None:
    vector = Vector([torch.cat([torch.full((4,), 1e-3), torch.full((4,), 1e3)])])
    apart = roundtrip(Int8(block=4).codec().made(flat(8), 0), vector).parts[0]
    torch.testing.assert_close(apart, vector.parts[0])
    assert roundtrip(Int8(block=0).codec().made(flat(8), 0), vector).parts[0][:4].max() in (0, 1e3 / 127)


# -- few levels -------------------------------------------------------------------------------------------------------


def test_dorefa_has_no_zero_and_so_many_levels() -> None:
    shape = flat(1000)
    found = roundtrip(DoReFa(bits=2).codec().made(shape, 3), normal(shape)).parts[0]
    top = normal(shape).parts[0].abs().max()
    expected = torch.tensor([-1, -1 / 3, 1 / 3, 1]) * top
    torch.testing.assert_close(found.unique(), expected)


def test_dorefa_has_a_scale_for_every_layer() -> None:
    vector = form().like.map(torch.clone)
    for layer in form().layers[0]:
        vector.parts[0][layer.start : layer.stop] = 10.0 ** -len(layer.shape)
    found = roundtrip(DoReFa(bits=1).codec().made(form(), 3), vector)
    torch.testing.assert_close(found.parts[0], vector.parts[0])
    assert found.parts[0].unique().numel() > 2
    assert (
        roundtrip(DoReFa(bits=1, scope="global").codec().made(form(), 3), vector).parts[0].abs().unique().numel() == 1
    )


def test_natural_numbers_are_powers_of_two_with_an_eighth_of_variance() -> None:
    shape = flat(4000)
    vector, coder = normal(shape), Natural().codec().made(shape, 3)
    memory, wrong = coder.memory, 0.0
    for _ in range(20):
        wire, memory = coder.encode(vector, memory)
        found = coder.decode(wire).parts[0]
        assert torch.equal(found.abs().log2().round().exp2(), found.abs())
        assert ((found / vector.parts[0]).log2().abs() < 1).all(), "one of its two neighbours"
        wrong += float((found - vector.parts[0]).norm() ** 2 / vector.norm() ** 2) / 20
    assert wrong <= 1 / 8
    assert roundtrip(coder, one(*[0.0] * 4000)).norm() == 0


@pytest.mark.parametrize("codec", [Int8, Fixed16])
def test_what_rounds_to_the_nearest_is_biased(codec: type[Int8 | Fixed16]) -> None:
    assert codec(rounding="nearest").codec().traits.feedback == "needed"
    assert codec(rounding="random").codec().traits.feedback == "none"


@pytest.mark.parametrize("workers", [*range(1, 10), 127, 128])
def test_sums_of_signs_do_not_run_into_each_other(workers: int) -> None:
    signs = torch.tensor([1.0, -1.0, 1.0, 1.0, 0.0])
    summed = sum(pack(signs, workers) for _ in range(workers))
    assert isinstance(summed, torch.Tensor)
    assert unpack(summed, 5, workers, workers).tolist() == (workers * signs).tolist()


# -- one bit (Seide et al. 2014) --------------------------------------------------------------------------------------


def test_one_bit_has_two_levels_for_every_output_unit() -> None:
    """Means of what is above and below zero, of each row of torch's matrix: levels of +-1 would not do."""
    coder = OneBit().codec().made(matrix(2, 4), 0)
    found = roundtrip(coder, one(1.0, 3.0, -2.0, -6.0, 5.0, 7.0, 6.0, 2.0)).parts[0].tolist()
    assert found == [2.0, 2.0, -4.0, -4.0, 5.0, 5.0, 5.0, 5.0], "all positive: their mean"


def test_an_output_unit_of_a_convolution_is_its_whole_kernel() -> None:
    like = Vector([torch.zeros(8)])
    coder = OneBit().codec().made(Form(like, ((ParameterRange("kernel", 0, 8, (2, 1, 2, 2)),),)), 0)
    found = roundtrip(coder, one(1.0, 3.0, 5.0, -6.0, -5.0, -7.0, 6.0, 2.0)).parts[0].tolist()
    assert found == [3.0, 3.0, 3.0, -6.0, -6.0, -6.0, 4.0, 4.0]


def test_what_one_bit_drops_sums_to_nothing_in_every_unit() -> None:
    shape = matrix(7, 30)
    coder = error_feedback(OneBit().codec()).made(shape, 0)
    memory = coder.memory
    for seed in range(4):
        _, memory = coder.encode(normal(shape, seed), memory)
        assert waiting(memory).view(7, 30).sum(1).abs().max() < 1e-5
    assert waiting(memory).norm() > 0.1


def test_one_bit_sends_biases_as_they_are() -> None:
    found = roundtrip(OneBit().codec().made(form(), 0), normal(form()))
    for layer in form().layers[0]:
        same = torch.equal(found.parts[0][layer.start : layer.stop], normal(form()).parts[0][layer.start : layer.stop])
        assert same == (len(layer.shape) == 1)
    assert OneBit().codec().traits.shapes and OneBit().codec().nbytes(matrix(8, 16)) == 8 * 16 / 8 + 2 * 4 * 8
    biases = Form(Vector([torch.zeros(8)]), ((ParameterRange("bias", 0, 8, (8,)),),))
    assert OneBit().codec().nbytes(biases) == 8 * 4, "with two levels each they would be longer"


# -- thresholds -------------------------------------------------------------------------------------------------------


def test_two_bits_release_one_threshold_a_step() -> None:
    coder = error_feedback(TwoBit(threshold=0.5).codec()).made(flat(3), 0)
    memory, told = coder.memory, []
    for vector in (one(1.5, -0.6, 0.2), one(0, 0, 0.2), one(0, 0, 0.2), one(0, 0, 0)):
        wire, memory = coder.encode(vector, memory)
        told.append(coder.decode(wire).parts[0].tolist())
    assert told == [[0.5, -0.5, 0], [0.5, 0, 0], [0.5, 0, 0.5], [0, 0, 0]]


def test_two_bits_are_packed_as_mxnet_does() -> None:
    coder = TwoBit(threshold=1.0).codec().made(flat(5), 0)
    wire, _ = coder.encode(one(1, -1, 0, 2, -3), coder.memory)
    assert wire.parts[0].tolist() == [0b11_10_00_11, 0b10_00_00_00]


def test_sums_of_two_bits_are_exact_counts() -> None:
    """Of 7 workers in 4 bits a number, of 100 in 8."""
    for workers, bits in ((7, 4), (100, 8)):
        coders = [TwoBit(threshold=0.5).codec().made(flat(8), place) for place in places(workers)]
        vectors = [one(1, -1, 0, 1, -1, 1, 1, float(rank % 2)) for rank in range(workers)]
        totals, size = together(coders, vectors, [coder.memory for coder in coders])
        n = workers * 0.5
        assert totals[0].parts[0].tolist() == [n, -n, 0, n, -n, n, n, workers // 2 * 0.5]
        assert size == 8 * bits / 8 + 4


def test_strom_decodes_to_what_two_bits_do() -> None:
    shape = flat(500)
    words = error_feedback(Strom(threshold=0.3, adaptive=False).codec()).made(shape, 0)
    bits = error_feedback(TwoBit(threshold=0.3).codec()).made(shape, 0)
    mine, theirs = words.memory, bits.memory
    for seed in range(6):
        wire, mine = words.encode(normal(shape, seed), mine)
        other, theirs = bits.encode(normal(shape, seed), theirs)
        torch.testing.assert_close(words.decode(wire).parts[0], bits.decode(other).parts[0])
        count = int((bits.decode(other).parts[0] != 0).sum())
        assert wire.nbytes == 4 + (4 * count if count * DENSE <= 500 else 125), "a word each, or two bits for all"


def test_a_word_has_31_bits_of_place_and_one_of_sign() -> None:
    coder = Strom(threshold=0.5, adaptive=False).codec().made(flat(100), 0)
    vector = Vector([torch.zeros(100)])
    vector.parts[0][7], vector.parts[0][99] = 0.5, -0.7
    wire, _ = coder.encode(vector, coder.memory)
    assert wire.parts[1].tolist() == [7 << 1, 99 << 1 | 1] and wire.parts[0].tolist() == [0.5]


def test_the_threshold_follows_what_is_sent() -> None:
    """DL4J: by 2^(1/20) a step, toward a share of 1e-4 to 1e-2."""
    coder = error_feedback(Strom(threshold=0.001).codec()).made(flat(10_000), 0)
    memory = coder.memory
    for step in range(3):
        _, memory = coder.encode(normal(flat(10_000), step), memory)
    assert memory[1] == [pytest.approx(0.001 * STEP**3)]
    small = Vector([torch.full((10_000,), 1e-9)])
    _, memory = coder.encode(small, coder.memory)
    assert memory[1] == [pytest.approx(0.001 / STEP)]


def test_a_threshold_stays_one_that_can_travel() -> None:
    """A part without a gradient, such as a frozen layer, says nothing of the threshold; a tiny one ends at a floor."""
    coder = error_feedback(Strom(threshold=0.001).codec()).made(flat(1000), 0)
    _, memory = coder.encode(Vector([torch.zeros(1000)]), coder.memory)
    assert memory[1] == [0.001]
    tiny = torch.zeros(1000)
    tiny[0] = 1e-45
    memory = (memory[0], [1e-37])
    for _ in range(200):
        wire, memory = coder.encode(Vector([tiny]), memory)
        coder.decode(wire)
    assert Strom().next(3e38, 1.0) < math.inf and Strom().next(3.4e38, 1.0) < 3.403e38


# -- TernGrad and QSGD ------------------------------------------------------------------------------------------------


def test_ternary_levels_are_a_layers_largest_number_once_clipped() -> None:
    shape = flat(2000)
    vector = normal(shape)
    vector.parts[0][0] = 100.0
    found = roundtrip(TernGrad().codec().made(shape, 1), vector).parts[0]
    scale = 2.5 * float(vector.parts[0].std(correction=0))
    assert found.abs().unique().tolist() == [0, pytest.approx(scale, rel=1e-5)]
    found = roundtrip(TernGrad(clip=0.0).codec().made(shape, 1), vector).parts[0]
    assert found.abs().unique().tolist() == [0, 100]


def test_every_layer_has_a_scale_of_its_own() -> None:
    """Layers whose gradients are a hundred times as large as others' leave the others' levels alone."""
    layers, vector = form().layers[0], normal(form())
    for number, layer in enumerate(layers):
        vector.parts[0][layer.start : layer.stop] *= 100.0 ** (number % 2)
    for clip in (0.0, 2.5):
        found = roundtrip(TernGrad(clip=clip).codec().made(form(), 1), vector).parts[0]
        for layer in layers:
            mine = vector.parts[0][layer.start : layer.stop]
            top = float(mine.abs().max())
            scale = min(top, clip * float(mine.std(correction=0))) if clip else top
            levels = found[layer.start : layer.stop].abs().unique().tolist()
            assert all(level == 0 or level == pytest.approx(scale, rel=1e-5) for level in levels), layer.name
            assert max(levels) > 0
    one_scale = roundtrip(TernGrad(scope="global", clip=0.0).codec().made(form(), 1), vector).parts[0]
    assert one_scale.abs().unique().tolist() == [0, pytest.approx(float(vector.parts[0].abs().max()))]


def test_before_they_share_a_scale_all_clip_by_their_own_deviation() -> None:
    """Worker 0's outlier is cut to 2.5 of its own deviations, though worker 1's scale would leave room for more."""
    shape, turns = flat(400), 400
    vectors = [normal(shape, 0, 0.1), normal(shape, 1, 1.0)]
    vectors[0].parts[0][7], vectors[1].parts[0][7] = 1.5, 0.0
    limits = [2.5 * float(vector.parts[0].std(correction=0)) for vector in vectors]
    coders = [TernGrad().codec().made(shape, place) for place in places(2)]
    memories, mean = [coder.memory for coder in coders], 0.0
    for _ in range(turns):
        totals, _ = together(coders, vectors, memories)
        scales = totals[0].parts[0].abs().unique()
        assert float(scales[1]) == pytest.approx(max(limits), rel=1e-5), "the largest scale, once clipped"
        mean += float(totals[0].parts[0][7]) / turns
    deviation = math.sqrt(limits[0] * (limits[1] - limits[0]) / turns)
    assert abs(mean - limits[0]) < 5 * deviation < abs(1.5 - limits[0])


def test_a_shared_scale_makes_sums_of_whole_numbers() -> None:
    """Everybody takes the largest; the mean of many totals is the sum of all that was given."""
    shape, mean, turns = flat(100), torch.zeros(100), 300
    coders = [TernGrad(clip=0.0).codec().made(shape, place) for place in places(3)]
    vectors = [normal(shape, rank, scale) for rank, scale in enumerate((0.1, 1.0, 0.3))]
    memories = [coder.memory for coder in coders]
    top = max(vector.parts[0].abs().max() for vector in vectors)
    for _ in range(turns):
        totals, _ = together(coders, vectors, memories)
        counts = totals[0].parts[0] / top
        torch.testing.assert_close(counts, counts.round(), atol=1e-5, rtol=0)
        mean += totals[0].parts[0] / turns
    expected = sum(vector.parts[0] for vector in vectors)
    assert float((mean - expected).norm() / expected.norm()) < 0.2


def test_the_last_layer_may_stay_as_it_is() -> None:
    found = roundtrip(TernGrad(dense_last=True).codec().made(form(), 1), normal(form())).parts[0]
    for layer in form().layers[0]:
        same = torch.equal(found[layer.start : layer.stop], normal(form()).parts[0][layer.start : layer.stop])
        assert same == layer.name.startswith("last.")


def test_ternary_without_clipping_is_qsgd_of_one_level_of_the_largest() -> None:
    """The same levels, with the same probabilities."""
    shape, turns = flat(300), 150
    means = []
    for codec in (TernGrad(clip=0.0).codec(), Qsgd(levels=1, bucket=0, norm="max").codec()):
        coder = codec.made(shape, 1)
        memory, there = coder.memory, torch.zeros(300)
        for _ in range(turns):
            wire, memory = coder.encode(normal(shape), memory)
            found = coder.decode(wire).parts[0]
            there += (found != 0) / turns
        assert found.abs().unique().tolist() == [0, pytest.approx(float(normal(shape).parts[0].abs().max()))]
        means.append(there)
    assert float((means[0] - means[1]).abs().max()) < 5 * math.sqrt(0.5 / turns)


def test_the_variance_of_qsgd_is_bounded() -> None:
    """E|dec - g|^2 <= min(d / s^2, sqrt(d) / s) |g|^2, and with one level about sqrt(d) numbers are not 0."""
    shape = flat(2000)
    vector = normal(shape)
    for levels in (1, 4, 50):
        coder = Qsgd(levels=levels, bucket=0).codec().made(shape, 1)
        memory, wrong, there = coder.memory, 0.0, 0.0
        for _ in range(30):
            wire, memory = coder.encode(vector, memory)
            found = coder.decode(wire).parts[0]
            wrong += float((found - vector.parts[0]).norm() ** 2 / vector.norm() ** 2) / 30
            there += int((found != 0).sum()) / 30
        bound = min(2000 / levels**2, math.sqrt(2000) / levels)
        assert 0.4 * bound < wrong <= bound if levels < 50 else wrong <= bound
        assert levels > 1 or there <= math.sqrt(2000)


@pytest.mark.parametrize(("levels", "bits"), [(1, 0.35), (22, 2.8)])
def test_qsgd_is_as_short_as_the_paper_says(levels: int, bits: float) -> None:
    """sqrt(d) levels: at most 2.8 d bits and the norms; one level: of the order sqrt(d) log d."""
    shape = flat(20_480)
    made = Qsgd(levels=levels).codec()
    coder = made.made(shape, 1)
    wire, _ = coder.encode(normal(shape), coder.memory)
    assert 8 * wire.parts[2].numel() <= bits * 20_480 and wire.parts[0].numel() == 40


def test_packed_levels_say_the_same_in_equal_bits() -> None:
    shape = flat(1000)
    short, long = (Qsgd(levels=3, coding=coding).codec().made(shape, 1) for coding in ("elias", "packed"))  # type: ignore[arg-type]
    assert torch.equal(whole(roundtrip(short, normal(shape))), whole(roundtrip(long, normal(shape))))
    assert Qsgd(levels=3, coding="packed").codec().nbytes(shape) == 1000 * 3 / 8 + 2 * 4


@pytest.mark.parametrize("levels", [1, 2, 4, 7, 8, 16, 128])
def test_the_highest_level_fits_into_its_bits(levels: int) -> None:
    coder = Qsgd(levels=levels, norm="max", coding="packed").codec().made(flat(3), 1)
    assert roundtrip(coder, one(-3.0, 3.0, 0.0)).parts[0].tolist() == [-3.0, 3.0, 0.0]


def test_a_part_of_a_parameter_has_no_rows() -> None:
    """A server's slice of a matrix is flat: one bit needs whole ones, and says so."""
    assert OneBit().codec().nbytes(Form.plain(Vector([torch.zeros(64)]))) == 4 * 64
