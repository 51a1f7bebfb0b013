"""PowerSGD: factors that all agree on (taxonomy D.17)."""

from __future__ import annotations

import pytest
import torch

from covey.exchange.codec import Seed, error_feedback
from covey.exchange.codecs.low_rank import PowerSgd, orthonormal
from covey.vector import Vector
from tests.exchange.coders import form, matrix, normal, places, roundtrip, together, waiting, whole


def low(rows: int, columns: int, rank: int, seed: int = 0) -> Vector:
    """A matrix of this rank."""
    chance = torch.Generator().manual_seed(seed)
    left, right = (torch.randn(size, rank, generator=chance) for size in (rows, columns))
    return Vector([(left @ right.T).view(-1)])


def test_columns_become_orthonormal_whatever_they_were() -> None:
    chance = torch.Generator().manual_seed(0)
    tall = torch.randn(30, 4, generator=chance)
    tall[:, 2] = tall[:, 0]
    tall[:, 3] = 0
    found = orthonormal(tall)
    torch.testing.assert_close(found.T @ found, torch.eye(4), atol=1e-6, rtol=0)
    torch.testing.assert_close(found[:, 0], tall[:, 0] / tall[:, 0].norm())
    assert torch.equal(found, orthonormal(tall))


@pytest.mark.parametrize(("rows", "columns"), [(6, 9), (9, 6)])
def test_with_as_many_columns_as_there_are_it_is_exact_at_once(rows: int, columns: int) -> None:
    coder = PowerSgd(rank=6, saving=0.0).codec().made(matrix(rows, columns), 0)
    vector = normal(matrix(rows, columns))
    torch.testing.assert_close(roundtrip(coder, vector).parts[0], vector.parts[0], atol=1e-6, rtol=1e-4)


def test_it_finds_a_matrix_of_low_rank_at_once_and_the_largest_part_of_others_with_time() -> None:
    coder = PowerSgd(rank=2).codec().made(matrix(40, 30), 0)
    torch.testing.assert_close(roundtrip(coder, low(40, 30, 2)).parts[0], low(40, 30, 2).parts[0], atol=1e-4, rtol=1e-3)
    vector = low(40, 30, 6)
    whole_matrix = vector.parts[0].view(40, 30)
    u, s, v = torch.linalg.svd(whole_matrix)
    best = u[:, :2] @ torch.diag(s[:2]) @ v[:2]
    memory, wrong = coder.memory, []
    for _ in range(25):
        wire, memory = coder.encode(vector, memory)
        wrong.append(float((coder.decode(wire).parts[0].view(40, 30) - best).norm() / best.norm()))
    assert wrong[0] > 0.2 and wrong[-1] < 0.02, "it begins with the factor of the last time"


def test_all_ranks_tell_the_mean_and_keep_the_rest() -> None:
    """dec + mean of E == mean of M; and it is the low-rank part of the mean, not the mean of low-rank parts."""
    shape, many = matrix(20, 30), 3
    codec = error_feedback(PowerSgd(rank=2).codec())
    coders = [codec.made(shape, place) for place in places(many)]
    memories = [coder.memory for coder in coders]
    vectors = [normal(shape, rank) for rank in range(many)]
    totals, size = together(coders, vectors, memories)
    assert size == 4 * 2 * (20 + 30) + 4 == codec.summed(shape, many)  # type: ignore[misc]
    assert all(torch.equal(totals[0].parts[0], total.parts[0]) for total in totals)
    mean = sum(map(whole, vectors)) / many
    torch.testing.assert_close(whole(totals[0]) / many + sum(map(waiting, memories)) / many, mean, atol=1e-6, rtol=1e-5)
    assert torch.linalg.matrix_rank(totals[0].parts[0].view(20, 30), rtol=1e-4) == 2


def test_gradients_of_one_direction_are_told_by_all() -> None:
    """Everybody's own factors would need three columns for three ranks; those of the sum need one."""
    shape = matrix(20, 30)
    direction = low(20, 30, 1)
    coders = [PowerSgd(rank=1).codec().made(shape, place) for place in places(3)]
    vectors = [direction * (rank + 1) for rank in range(3)]
    totals, _ = together(coders, vectors, [coder.memory for coder in coders])
    torch.testing.assert_close(totals[0].parts[0], 6 * direction.parts[0], atol=1e-4, rtol=1e-3)


def test_ranks_begin_with_the_same_factor_and_others_seeds_do_not_matter() -> None:
    shape = matrix(20, 30)
    first, second, other = (
        PowerSgd().codec().made(shape, Seed(own, common)).memory[2][0] for own, common in ((1, 7), (2, 7), (1, 8))
    )
    assert torch.equal(first, second) and not torch.equal(first, other)


def test_vectors_and_small_matrices_go_as_they_are() -> None:
    codec, factored, raw = PowerSgd(rank=2).codec(), ("first.weight", "middle.weight"), 0
    found = roundtrip(codec.made(form(), 0), normal(form())).parts[0]
    for layer in form().layers[0]:
        inside = slice(layer.start, layer.stop)
        assert torch.equal(found[inside], normal(form()).parts[0][inside]) == (layer.name not in factored)
        raw += 0 if layer.name in factored else layer.stop - layer.start
    assert codec.nbytes(form()) == 4 * (2 * (13 + 21) + 2 * (5 + 27) + raw)
    assert PowerSgd(rank=5).codec().nbytes(form()) == form().like.nbytes, "twice as small, or not at all"


def test_zeros_do_not_stop_it_for_ever() -> None:
    coder = PowerSgd(rank=2).codec().made(matrix(20, 30), 0)
    memory = coder.memory
    for _ in range(2):
        wire, memory = coder.encode(Vector([torch.zeros(600)]), memory)
        assert coder.decode(wire).norm() == 0
    for _ in range(3):
        wire, memory = coder.encode(low(20, 30, 1), memory)
    torch.testing.assert_close(coder.decode(wire).parts[0], low(20, 30, 1).parts[0], atol=1e-4, rtol=1e-3)


def test_it_may_begin_after_dense_steps() -> None:
    coder = PowerSgd(dense=2).codec().carrying().made(matrix(20, 30), 0)
    memory, exact = coder.memory, []
    for seed in range(4):
        wire, memory = coder.encode(normal(matrix(20, 30), seed), memory)
        exact.append(torch.equal(coder.decode(wire).parts[0], normal(matrix(20, 30), seed).parts[0]))
    assert exact == [True, True, False, False]
    assert error_feedback(PowerSgd(dense=2).codec()).traits.summable, "and can still be added up"


def test_alternating_sends_one_factor_at_a_time() -> None:
    """Half the bytes and one sum; the total and what waits are still all that was given."""
    shape, many = matrix(20, 30), 2
    codec = error_feedback(PowerSgd(rank=2, alternating=True).codec())
    coders = [codec.made(shape, place) for place in places(many)]
    memories, sizes, given, told = [c.memory for c in coders], [], torch.zeros(600).double(), torch.zeros(600).double()
    for turn in range(4):
        vectors = [normal(shape, 10 * turn + rank) for rank in range(many)]
        totals, size = together(coders, vectors, memories)
        assert torch.equal(totals[0].parts[0], totals[1].parts[0])
        sizes.append(size - 4)
        given, told = given + sum(map(whole, vectors)), told + whole(totals[0])
    assert sizes == [4 * 2 * 20, 4 * 2 * 30, 4 * 2 * 20, 4 * 2 * 30]
    torch.testing.assert_close(told + sum(map(waiting, memories)), given, atol=1e-5, rtol=1e-4)
    repeated = codec.made(shape, 0)
    memory, target, found = repeated.memory, low(20, 30, 2), torch.zeros(600)
    for _ in range(2):
        wire, memory = repeated.encode(target, memory)
        found += repeated.decode(wire).parts[0]
    torch.testing.assert_close(found, 2 * target.parts[0], atol=1e-3, rtol=1e-2)
