"""What goes around a codec, in a SPEC and in numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import covey
from covey import catalog, compose
from covey.errors import PlanError
from covey.exchange.codec import Codec, error_feedback
from covey.exchange.codecs.bits import Int8, TwoBit, cast
from covey.exchange.codecs.by_name import CODECS, WRAPPERS
from covey.exchange.codecs.dgc import Dgc
from covey.exchange.codecs.qsgd import Qsgd
from covey.exchange.codecs.sbc import Sbc
from covey.exchange.codecs.sparse import TopK
from covey.exchange.codecs.strom import Strom
from covey.exchange.codecs.wrappers import clipped, warmed_up, with_momentum
from covey.run.options import options
from covey.run.request import request
from covey.spec import SpecError, parse
from covey.vector import Vector
from tests.exchange.coders import flat, form, matrix, normal, places, together, waiting, whole
from tests.worlds import adam, cloud, mlp, sgd

TOP = TopK(density=0.1).codec()


def named(spec: str) -> Codec:
    """The codec that a SPEC's strategy is given."""
    asked = parse(f"bsp + {spec}")
    found = compose.codec(asked, catalog.STRATEGIES)
    assert found is not None
    return found


def told(codec: Codec, *vectors: Vector, count: int = 0) -> list[list[float]]:
    coder = codec.made(flat(vectors[0].numel), 3)
    memory, found = coder.memory, []
    for vector in vectors:
        wire, memory = coder.encode(vector, memory)
        found.append(coder.decode(wire).parts[0].tolist())
    return found


def one(*numbers: float) -> Vector:
    return Vector([torch.tensor(numbers)])


# -- in a SPEC --------------------------------------------------------------------------------------------------------


def test_wrappers_stand_anywhere_and_the_first_is_the_outermost() -> None:
    """Clipped first, what is cut off is gone; clipped last, it waits."""
    far = one(30.0, 40.0)
    for spec, left in (("clip(norm=5) + error_feedback + fp16", 0), ("error_feedback + fp16 + clip(norm=5)", 45)):
        coder = named(spec).made(flat(2), 0)
        wire, memory = coder.encode(far, coder.memory)
        assert coder.decode(wire).parts[0].tolist() == [3, 4]
        assert sum(abs(number) for number in _waits(memory)) == pytest.approx(left and 63, abs=1e-2)
    assert catalog.resolve("bsp + clip(norm=5) + topk(density=0.1)", 2).text == "bsp + clip(norm=5) + topk(density=0.1)"


def _waits(memory: Any) -> list[float]:
    try:
        return waiting(memory).tolist()
    except AssertionError:
        return []


@pytest.mark.parametrize(
    ("spec", "at", "why"),
    [
        ("bsp + topc", 6, "no codec 'topc'; did you mean 'topk'"),
        ("bsp + topk + int8", 13, "one codec is enough: topk and int8 do not combine; around one go error_feedback"),
        ("bsp + clip(norm=2)", 6, "clip goes around a codec: say one too, such as '\\+ topk'"),
        ("bsp + topk(density=2)", 6, "topk\\(density=2\\): a share of all numbers, more than 0 and up to 1"),
        ("bsp + clip(norm=0) + topk", 6, "clip\\(norm=0\\): must be more than 0"),
        ("bsp + warmup + topk", 6, "warmup needs one of steps=… and epochs=…"),
        ("bsp + warmup(steps=2, epochs=1) + topk", 6, "warmup needs one of"),
        ("bsp + momentum_correction(momentum=1) + topk", 6, "momentum=1\\): 0 or more, and less than 1"),
        ("bsp + momentum_correction + dgc", 6, "momentum would count twice; omit momentum_correction"),
        ("bsp + dorefa(bits=9)", 6, "dorefa\\(bits=9\\): 1 to 8"),
        ("bsp + terngrad(scope=all)", 15, "scope must be layer or global, not all"),
    ],
)
def test_what_cannot_work_is_said_at_its_place(spec: str, at: int, why: str) -> None:
    with pytest.raises(SpecError, match=why) as refused:
        catalog.resolve(spec, 2)
    assert refused.value.at == at


@pytest.mark.parametrize("spec", ["dgc(warmup=0)", "momentum_correction + topk", "clip + momentum_correction + topk"])
def test_momentum_twice_is_refused_before_anything_starts(spec: str) -> None:
    for optimizer in (sgd(momentum=0.9), adam()):
        with pytest.raises(PlanError, match="brings the momentum itself.*SGD without momentum, or use topk"):
            request(mlp(optimizer), f"bsp + {spec}", 2, options({"steps": 2}))
    request(mlp(sgd()), f"bsp + {spec}", 2, options({"steps": 2}))
    request(mlp(sgd(momentum=0.9)), "bsp + dgc(momentum=0)", 2, options({"steps": 2}))


MODELS = (
    "sparknet", "crossbow", "mpca", "easgd", "eamsgd", "tree_easgd", "dpsgd", "adpsgd", "butterfly", "gosgd", "sgp",
)  # fmt: skip
"""Strategies in which models travel as changes of what was told before."""


@pytest.mark.parametrize("codec", ["error_feedback + int8", "momentum_correction + fp16", "dgc(warmup=0)"])
def test_where_changes_of_models_travel_a_codec_remembers_no_gradients(codec: str) -> None:
    """Neither what it dropped nor momentum: to the strategies above, and to whatever comes back from servers."""
    pulling = [f"{name} + {codec} + pull" for name, entry in catalog.STRATEGIES.items() if entry.codecs == "pushes"]
    for spec in (*pulling, *(f"{name} + {codec}" for name in MODELS)):
        with pytest.raises(SpecError, match="use a codec without it, such as topk or int8"):
            catalog.resolve(spec, 4)


@pytest.mark.parametrize("name", [*CODECS, *WRAPPERS])
def test_every_name_has_words_and_settings(name: str) -> None:
    owner = (CODECS | WRAPPERS)[name]  # type: ignore[operator]
    assert owner.__doc__ and owner.__doc__[0].isupper() | owner.__doc__[0].isdigit() | (owner.__doc__[0] == "-")


# -- error feedback ---------------------------------------------------------------------------------------------------


def test_what_carries_on_already_is_left_alone() -> None:
    assert named("error_feedback + dgc").traits == named("dgc").traits, "it carries on what it drops already"
    carried = error_feedback(TOP)
    assert error_feedback(carried) is carried and carried.carrying() is carried
    unbiased = Int8().codec().carrying()
    assert unbiased.traits.feedback == "none", "of what is right on average nothing has to be carried on"
    assert error_feedback(Int8().codec()).traits.feedback == "own", "but it may be, when somebody says so"


def test_a_wrapper_leaves_error_feedback_to_what_is_inside() -> None:
    """Momentum and clipping are for gradients: around what waits they would change it again and again."""
    around = "clip(norm=1) + topk", "clip(norm=1) + error_feedback + topk", "error_feedback + clip(norm=1) + topk"
    implied, inside, outside = (named(spec).carrying() for spec in around)
    vectors = [normal(flat(50), seed, 1.0) for seed in range(4)]
    assert told(implied, *vectors) == told(inside, *vectors) != told(outside, *vectors)
    assert implied.name == "clip(norm=1) + topk"


# -- momentum, norms, warm-up -----------------------------------------------------------------------------------------


def test_momentum_gathers_before_anything_is_left_out() -> None:
    """With everything sent it is SGD with momentum; without masking it is dgc without masking."""
    codec, u = with_momentum(TopK(density=1.0).codec(), 0.9).carrying(), torch.zeros(20)
    coder = codec.made(flat(20), 0)
    memory = coder.memory
    for seed in range(4):
        wire, memory = coder.encode(normal(flat(20), seed), memory)
        u = 0.9 * u + normal(flat(20), seed).parts[0]
        torch.testing.assert_close(coder.decode(wire).parts[0], u)
    first, second = one(4, 1, 0), one(0, 0, 0)
    few = with_momentum(TopK(density=0.34).codec(), 0.5).carrying()
    assert told(few, first, second, second) == [[4, 0, 0], [2, 0, 0], [0, 1.75, 0]]
    masked = Dgc(density=0.34, momentum=0.5, warmup=0.0).codec().made(matrix(1, 3), 0)
    wire, memory = masked.encode(first, masked.memory)
    wire, memory = masked.encode(second, memory)
    assert masked.decode(wire).parts[0].tolist() == [0, 1.5, 0], "what was sent does not come again"


def test_sums_of_momenta_and_of_clipped_vectors() -> None:
    codec = with_momentum(clipped(cast("fp16", torch.float16), 5.0), 0.5)
    coders = [codec.made(flat(2), place) for place in places(2)]
    memories = [coder.memory for coder in coders]
    for expected in ([6.0, 8.0], [9.0, 12.0]):
        totals, _ = together(coders, [one(3, 4), one(30, 40)] if expected[0] == 6 else [one(1.5, 2)] * 2, memories)
        norm = sum(number**2 for number in expected) ** 0.5
        torch.testing.assert_close(totals[0].parts[0], torch.tensor(expected) * min(1, 10 / norm), rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("codec", [Int8().codec(), Strom(threshold=0.05).codec(), Qsgd().codec()])
def test_what_narrow_numbers_drop_of_a_momentum_waits(codec: Codec) -> None:
    """Momentum is reckoned in float32; what arrives as bfloat16 and what waits are together all that was gathered."""
    shape = flat(300, torch.bfloat16)
    coder = with_momentum(error_feedback(codec), 0.9).made(shape, 3)
    memory, sum_of_momenta, arrived = coder.memory, torch.zeros(300).double(), torch.zeros(300).double()
    for seed in range(20):
        wire, memory = coder.encode(normal(shape, seed), memory)
        sum_of_momenta += whole(memory[0])
        arrived += whole(coder.decode(wire))
    torch.testing.assert_close(arrived + whole(memory[1][0]), sum_of_momenta, rtol=0, atol=1e-4)


def test_what_narrow_numbers_drop_of_a_mean_waits() -> None:
    shape = flat(300, torch.bfloat16)
    coder = Sbc(density=0.1, momentum=0.9).codec().made(shape, 3)
    memory, gathered, arrived = coder.memory, torch.zeros(300).double(), torch.zeros(300).double()
    for seed in range(20):
        vector = normal(shape, seed)
        gathered += 0.9 * whole(memory[1]) + whole(vector)
        wire, memory = coder.encode(vector, memory)
        arrived += whole(coder.decode(wire))
    torch.testing.assert_close(arrived + whole(memory[0]), gathered, rtol=0, atol=1e-4)


def test_the_first_vectors_travel_as_they_are() -> None:
    codec = warmed_up(TwoBit(threshold=0.5).codec(), steps=2).carrying()
    assert told(codec, one(0.1, 2), one(0.2, 3), one(0.3, 0.6), one(0.3, 0)) == [
        [pytest.approx(0.1), 2], [pytest.approx(0.2), 3], [0, 0.5], [0.5, 0],
    ]  # fmt: skip
    assert codec.nbytes(flat(8)) == 1 + 2, "a byte says which"


def test_a_warm_up_of_less_than_a_step_is_one_step() -> None:
    codec = warmed_up(TwoBit(threshold=0.5).codec(), epochs=0.1).carrying()
    assert flat(2).epoch == 3
    assert told(codec, one(0.1, 2), one(0.1, 2)) == [[pytest.approx(0.1), 2], [0, 0.5]]


def test_a_warm_up_of_epochs() -> None:
    shape = replace(form(), epoch=3)
    coder = warmed_up(TOP, epochs=1.5).made(shape, 0)
    memory, sizes = coder.memory, []
    for seed in range(6):
        wire, memory = coder.encode(normal(shape, seed), memory)
        sizes.append(wire.nbytes == 1 + shape.like.nbytes)
    assert sizes == [True] * 4 + [False] * 2
    with pytest.raises(PlanError, match="the length of an epoch is unknown here; use steps="):
        warmed_up(TOP, epochs=1.0).made(replace(form(), epoch=0), 0)


def test_a_warm_up_of_sums() -> None:
    codec = warmed_up(TwoBit(threshold=0.5).codec(), steps=1).carrying()
    coders = [codec.made(flat(2), place) for place in places(3)]
    memories = [coder.memory for coder in coders]
    for expected in ([0.3, 6.0], [0.0, 1.5]):
        totals, _ = together(coders, [one(0.1, 2)] * 3, memories)
        torch.testing.assert_close(whole(totals[0]), torch.tensor(expected).double(), atol=1e-6, rtol=1e-6)


# -- in a run ---------------------------------------------------------------------------------------------------------


def moved(spec: str, steps: int, timed: bool = False) -> int:
    """Bytes that travel when a small network in float32 is trained."""
    task = mlp(
        data=cloud(128, dtype=torch.float32),
        model=lambda: torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)),
    )
    return covey.fit(task, spec, 2, steps=steps, engine="simulated", timing_only=timed).traffic.bytes


@pytest.mark.parametrize(
    "spec", ["bsp + twobit", "bsp + onebit", "allreduce + powersgd(rank=1)", "allreduce + terngrad"]
)
def test_a_run_that_is_only_timed_moves_the_same_bytes(spec: str) -> None:
    assert moved(spec, 3) == moved(spec, 3, timed=True)


def test_epochs_are_those_of_the_task() -> None:
    """128 samples in batches of 8 on 2 workers: 8 steps; of 12 the first 8 are dense."""
    spec, dense, few = "bsp + warmup(epochs=1) + onebit", 2 * (4 * 83 + 1), 2 * (1 + 9 + 2 * 4 * 11 + 4 * 11)
    assert moved(spec, 12) - moved(spec, 8) == 4 * (2 * 4 * 83 + few)
    assert moved(spec, 8) - moved(spec, 4) == 4 * (2 * 4 * 83 + dense)
