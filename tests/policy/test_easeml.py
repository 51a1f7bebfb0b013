"""ease.ml: the tenant with the largest gap first, costs count, and nobody starves."""

from __future__ import annotations

import pytest

from covey.policy.easeml import Tenant, easeml, upper_bounds


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


def test_all_is_trained_in_the_end() -> None:
    tenants = [Tenant(costs=[1, 2]), Tenant(costs=[3])]
    for round in range(3):
        found = easeml(tenants, round)
        assert found is not None and found.model not in tenants[found.tenant].trained
        old = tenants[found.tenant]
        tenants[found.tenant] = Tenant(costs=old.costs, trained={**old.trained, found.model: 0.5})
    assert easeml(tenants) is None
