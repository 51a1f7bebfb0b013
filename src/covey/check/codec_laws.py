"""What every codec keeps. Each law gives the reason why it is broken, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from covey.exchange.codec import Codec, Coder, Memory
from covey.model.flat import Form
from covey.vector import Vector

DRAWS = 300  # of a codec's chance, over which it has to be right
ERRORS = 4  # standard errors by which the mean of these draws may be off: far beyond what chance makes
ROUNDING = 0.01  # of the vector's norm that rounding may make, beside chance
GIVEN = 500  # vectors, for error feedback
WAITING = 0.2  # of their sum that may still be carried on


def vector(seed: int, dtype: torch.dtype = torch.float32) -> Vector:
    chance = torch.Generator().manual_seed(seed)
    return Vector([torch.randn(37, generator=chance).to(dtype), torch.randn(5, generator=chance).to(dtype)])


def comes_back_in_its_form(codec: Codec) -> str:
    """What is decoded has the shapes and types of what was encoded, and finite numbers; what was given is unchanged."""
    for dtype in (torch.float32, torch.float64):
        given = vector(1, dtype)
        before, coder = given.clone(), codec.made(Form.plain(given), 3)
        wire, _ = coder.encode(given, coder.memory)
        if not all(map(torch.equal, given.parts, before.parts)):
            return "encode changes the vector that it is given"
        back = coder.decode(wire).clone()
        given.zero_()
        aliased = codec.traits.plain or codec.traits.exact_start  # the vector itself travels
        if not aliased and not all(map(torch.equal, coder.decode(wire).parts, back.parts)):
            return "what encode gives changes with the vector: copy what is sent"
        if not back.like(given):
            return f"decode gives {back} for {given}"
        if not back.finite():
            return "decode gives numbers that are not finite"
    return ""


def carries_on(codec: Codec) -> str:
    """With error feedback nothing is lost: of a vector that is given again and again, 80 % has arrived in the end.

    What is carried on is bounded, so its share of the sum falls with every step.
    """
    if codec.traits.feedback == "none" or codec.traits.momentum == "own":  # momentum sends more than there was
        return ""
    made, total, sent = codec.carrying(), vector(0).map(torch.zeros_like), vector(0).map(torch.zeros_like)
    coder: Coder = made.made(Form.plain(total), 3)
    memory: Memory = coder.memory
    for _ in range(GIVEN):
        given = vector(1) * 0.1  # small, for codecs that send a fixed amount
        wire, memory = coder.encode(given, memory)
        total.add_(given)
        sent.add_(coder.decode(wire))
    missing = (total - sent).norm() / total.norm()
    if missing < WAITING:
        return ""
    return (
        f"after {GIVEN} steps {missing:.0%} of the sum never arrived: what a codec drops is added to the next vector, "
        "so it must not drop the same again and again"
    )


def decoded_elsewhere(codec: Codec) -> str:
    """Another role decodes, with another seed: all that it needs travels."""
    if codec.traits.summable:
        return ""  # its coders agree on common numbers
    given, coders = vector(1), [codec.made(Form.plain(vector(1)), seed) for seed in (3, 4)]
    wire, _ = coders[0].encode(given, coders[0].memory)
    same = all(map(torch.equal, coders[0].decode(wire).parts, coders[1].decode(wire).parts))
    return "" if same else "decode uses the seed, which is another one where it runs: send what it needs"


def right_on_average(codec: Codec) -> str:
    """Without error feedback the mean of what is decoded is the vector: within 4 standard errors, and 1 %."""
    if codec.traits.feedback != "none" or codec.traits.momentum == "own":
        return ""
    given, coder = vector(1) * 0.1, codec.made(Form.plain(vector(1)), 3)
    memory, draws = coder.memory, list[Tensor]()
    for _ in range(DRAWS):
        wire, memory = coder.encode(given, memory)
        draws.append(torch.cat(coder.decode(wire).parts).double())
    spread, mean = torch.var_mean(torch.stack(draws), dim=0)
    missing = (torch.cat(given.parts) - mean).norm() / given.norm()
    chance = (spread.sum() / DRAWS).sqrt() / given.norm()
    right = missing <= ERRORS * chance + ROUNDING
    return "" if right else f'{missing:.0%} of a vector never arrives: its traits need feedback="needed"'


def stateless_if_for_weights(codec: Codec) -> str:
    """A codec for weights remembers nothing and leaves nothing to chance."""
    if not codec.traits.weights:
        return ""
    given, coders = vector(1), [codec.made(Form.plain(vector(1)), seed) for seed in (3, 4)]
    wires = [coder.encode(given, coder.memory)[0] for coder in coders]
    if any(coder.memory is not None for coder in coders):
        return "weights=True, but its coders remember something"
    same = all(map(torch.equal, *(wire.parts for wire in wires)))
    return "" if same else "weights=True, but its wires differ with the seed"


def exact_if_it_says_so(codec: Codec) -> str:
    """A codec that is plain, or begins so, gives back the first vector as it was."""
    if not codec.traits.plain and not codec.traits.exact_start:
        return ""
    given, coder = vector(1), codec.made(Form.plain(vector(1)), 3)
    back = coder.decode(coder.encode(given, coder.memory)[0])
    same = all(map(torch.equal, back.parts, given.parts))
    return "" if same else "plain=True or exact_start=True, but the first vector comes back changed"


def size_is_told(codec: Codec) -> str:
    """`nbytes` is about what travels."""
    given = vector(1)
    form = Form.plain(given)
    coder = codec.made(form, 3)
    size, told = coder.encode(given, coder.memory)[0].nbytes, codec.nbytes(form)
    return "" if abs(size - told) <= max(16, 0.5 * size) else f"{size} bytes travel, nbytes says {told:g}"


def adds_if_it_says_so(codec: Codec) -> str:
    """Coders of a summable codec have `total`, and no others."""
    has = codec.made(Form.plain(vector(1)), 3).total is not None
    told = codec.traits.summable
    return "" if has == told else f"summable={told}, but its coders have {'a' if has else 'no'} total"


CODEC_LAWS: Mapping[str, Callable[[Codec], str]] = {
    "comes back in its form": comes_back_in_its_form, "nothing is lost": carries_on, "nbytes is true": size_is_told,
    "summable if it says so": adds_if_it_says_so, "right on average": right_on_average,
    "decoded elsewhere": decoded_elsewhere,
    "exact if it says so": exact_if_it_says_so, "stateless if for weights": stateless_if_for_weights,
}  # fmt: skip
