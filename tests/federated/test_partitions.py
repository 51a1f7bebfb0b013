"""Partitions: every sample once, and clients that differ in the way that was asked for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import Subset, TensorDataset

from covey.data.client_shares import By, ClientPartition, Dirichlet, Even, Labels, UnevenSizes, divided, labels_of
from covey.errors import PlanError

CLASSES = torch.arange(1000) % 10
DATA = TensorDataset(torch.zeros(1000, 2), CLASSES)


def classes_of(partition: ClientPartition, clients: int) -> list[set[int]]:
    return [set(CLASSES[numbers].tolist()) for numbers in divided(partition, DATA, clients, seed=1)]


@pytest.mark.parametrize(
    "partition", [Even(), Dirichlet(alpha=0.1), Dirichlet(alpha=100), Labels(count=3), UnevenSizes()]
)
@pytest.mark.parametrize("clients", [1, 7, 100])
def test_every_sample_belongs_to_one_client_and_nobody_has_none(partition: ClientPartition, clients: int) -> None:
    found = divided(partition, DATA, clients, seed=3)
    assert sorted(torch.cat(found).tolist()) == list(range(1000)) and min(map(len, found)) > 0
    again = divided(partition, DATA, clients, seed=3)
    assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True))
    if clients > 1:
        other_seed = divided(partition, DATA, clients, seed=4)
        assert not all(torch.equal(one, other) for one, other in zip(found, other_seed, strict=True))


def test_a_small_alpha_gives_clients_few_classes_and_a_large_one_all() -> None:
    few = [len(found) for found in classes_of(Dirichlet(alpha=0.05), 20)]
    many = [len(found) for found in classes_of(Dirichlet(alpha=1000), 20)]
    assert np.mean(few) < 5 and min(many) == 10


def test_dirichlet_shares_have_the_spread_of_their_alpha() -> None:
    """A client's share of a class has the variance (1/n)(1 - 1/n) / (n alpha + 1)."""
    clients, alpha = 10, 0.5
    data = TensorDataset(torch.arange(200_000) % 20)
    classes, found = labels_of(data), divided(Dirichlet(alpha=alpha), data, clients, 0)
    sizes = [np.bincount(classes[mine.numpy()], minlength=20) for mine in found]
    shares = np.stack(sizes) / 10_000
    expected = (1 / clients) * (1 - 1 / clients) / (clients * alpha + 1)
    assert shares.var() == pytest.approx(expected, rel=0.25)


def test_no_client_gets_what_is_left_over_of_every_class() -> None:
    """400 classes of one sample each: two clients have about half of them."""
    sizes = [len(mine) for mine in divided(Dirichlet(alpha=100), TensorDataset(torch.arange(400)), 2, 0)]
    assert all(150 <= size <= 250 for size in sizes)


@pytest.mark.parametrize("seed", range(5))
def test_clients_that_are_as_many_as_samples_have_one_each(seed: int) -> None:
    """Whoever has most gives one to each client that got nothing, and keeps one."""
    found = divided(Dirichlet(alpha=0.3), TensorDataset(torch.arange(12) % 2), 12, seed)
    assert [len(mine) for mine in found] == [1] * 12


def test_labels_gives_each_client_so_many_classes_at_most() -> None:
    found = classes_of(Labels(count=2), 50)  # 100 pieces of 10, and 10 pieces for each class
    assert {len(one) for one in found} <= {1, 2} and set.union(*found) == set(range(10))
    assert all(len(classes) == 1 for classes in classes_of(Labels(count=1), 10)), "10 pieces of a class each"
    with pytest.raises(PlanError, match="at least 1 class"):
        Labels(count=0)


def test_sizes_follow_zipf() -> None:
    sizes = sorted((len(one) for one in divided(UnevenSizes(exponent=1.0), DATA, 10, seed=0)), reverse=True)
    expected = [1 / k / sum(1 / j for j in range(1, 11)) * 1000 for k in range(1, 11)]
    assert all(abs(size - want) < 8 for size, want in zip(sizes, expected, strict=True)), sizes


def test_by_makes_a_client_of_each_value_of_a_column() -> None:
    sites = torch.tensor([5, 5, 9, 5, 9, 2])
    data = TensorDataset(torch.zeros(6, 1), torch.zeros(6, dtype=torch.long), sites)
    assert [one.tolist() for one in divided(By(column=2), data, 3, 0)] == [[5], [0, 1, 3], [2, 4]]
    named = TensorDataset(torch.zeros(6, 1))
    named.site = ["a", "b", "b", "a", "c", "c"]  # type: ignore[attr-defined]
    assert [one.tolist() for one in divided(By(column="site"), named, 3, 0)] == [[0, 3], [1, 2], [4, 5]]
    with pytest.raises(PlanError, match="has 3 different values.*--clients 3"):
        divided(By(column=2), data, 4, 0)
    with pytest.raises(PlanError, match="no tensor of this number"):
        divided(By(column=3), data, 3, 0)
    with pytest.raises(PlanError, match="no attribute and no column of this name; it has 0, 1, 2"):
        divided(By(column="town"), data, 3, 0)
    with pytest.raises(PlanError, match="no attribute and no column of this name; it has site, 0"):
        divided(By(column="town"), named, 3, 0)


def test_classes_are_found_in_subsets_and_tables() -> None:
    assert labels_of(Subset(DATA, [3, 12, 27])).tolist() == [3, 2, 7]
    table = TensorDataset(torch.zeros(3, 1))
    table.targets = [2, 0, 1]  # type: ignore[attr-defined]
    assert labels_of(table).tolist() == [2, 0, 1]
    with pytest.raises(PlanError, match="holds no classes"):
        labels_of(TensorDataset(torch.zeros(4, 1)))


def test_what_cannot_be_divided_is_refused() -> None:
    with pytest.raises(PlanError, match="1000 samples are too few for 1001 clients"):
        divided(Even(), DATA, 1001, 0)
    with pytest.raises(PlanError, match="needs 2000 samples"):
        divided(Labels(count=20), DATA, 100, 0)
    with pytest.raises(PlanError, match="alpha must be more than 0"):
        Dirichlet(alpha=0)
