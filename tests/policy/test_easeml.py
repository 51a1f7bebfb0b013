"""ease.ml: the tenant with the largest gap first, costs count, and nobody starves."""

from __future__ import annotations

import pytest

from covey.policy.easeml import EaseMl, Tenant, easeml, upper_bounds


def test_the_tenant_with_most_to_gain_is_served() -> None:
    served = Tenant(costs=[1, 1, 1], trained={0: 0.9, 1: 0.91})
    fresh = Tenant(costs=[1, 1, 1])
    assert easeml([served, fresh]).tenant == 1
    likeness = [[1, 0.99, 0.99], [0.99, 1, 0.99], [0.99, 0.99, 1]]
    known = Tenant(costs=[1, 1, 1], likeness=likeness, trained={0: 0.5})
    unknown = Tenant(costs=[1, 1, 1], trained={0: 0.5})
    assert easeml([known, unknown]).tenant == 1, "models like the trained one promise little"


def test_what_costs_less_is_tried_first() -> None:
    assert easeml([Tenant(costs=[100, 1, 50])]).model == 1
    cheap, dear = upper_bounds(Tenant(costs=[1, 4]), scale=4.0)
    assert cheap == pytest.approx(2.0) and dear == pytest.approx(1.0)


def test_tenants_take_turns_when_nothing_gets_better() -> None:
    tenants = [Tenant(costs=[1, 1]), Tenant(costs=[4, 4], trained={0: 0.9}), Tenant(costs=[9, 9], trained={1: 0.8})]
    assert len({easeml(tenants, round).tenant for round in range(6)}) == 1
    assert [easeml(tenants, round, stalled=3).tenant for round in range(3)] == [0, 1, 2]


def test_what_is_being_trained_is_not_trained_twice_and_counts_as_if_known() -> None:
    likeness = [[1, 0.9, 0], [0.9, 1, 0], [0, 0, 1]]
    idle, busy = Tenant(costs=[1, 1, 1], likeness=likeness), Tenant(costs=[1, 1, 1], likeness=likeness, running={0})
    assert easeml([idle]).model == 0 and easeml([busy]).model == 2, "what is like it will be known soon"
    assert upper_bounds(busy, 1.0)[1] < upper_bounds(idle, 1.0)[1] and upper_bounds(busy, 1.0)[2] == 1.0
    assert Tenant(costs=[1, 1], trained={0: 0.5}, running={1}).done


def test_who_has_nothing_yet_comes_first() -> None:
    served = Tenant(costs=[1e-6, 1e-6], trained={0: 0.9})
    assert easeml([served, Tenant(costs=[1, 1])]).tenant == 1, "though the other's gap is larger"
    assert easeml([served, Tenant(costs=[1, 1], running={0})]).tenant == 0


def test_when_tenants_take_turns_can_be_set() -> None:
    tenants = [Tenant(costs=[1, 1], trained={0: 0.9}), Tenant(costs=[9, 9], trained={0: 0.9})]
    assert [easeml(tenants, 1, stalled, EaseMl(stalled=2)).tenant for stalled in (1, 2)] == [0, 1]


def test_all_is_trained_in_the_end() -> None:
    tenants = [Tenant(costs=[1, 2]), Tenant(costs=[3])]
    for round in range(3):
        found = easeml(tenants, round)
        assert found is not None and found.model not in tenants[found.tenant].trained
        old = tenants[found.tenant]
        tenants[found.tenant] = Tenant(costs=old.costs, trained={**old.trained, found.model: 0.5})
    assert easeml(tenants) is None
