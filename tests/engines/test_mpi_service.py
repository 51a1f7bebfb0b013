"""What a role may ask of its site's MPI: a sum of what it has laid out, and of nothing beside it."""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field
from typing import Any

import pytest

from covey.engines.native.mpi import TYPES
from covey.engines.native.mpi_service import SIZES, Service, SumRequest
from covey.errors import WireError

ROOM = 4096


@dataclass
class Asked:
    """A site that has come as far as to ask MPI."""

    sites: list[tuple[int, ...]] = field(default_factory=list)

    def _group(self, sites: tuple[int, ...]) -> Any:
        self.sites.append(sites)
        raise LookupError


def asks(request: SumRequest, memory: mmap.mmap | None) -> bool:
    """Whether MPI would be asked for it; else it was refused."""
    pytest.importorskip("mpi4py")
    site: Any = Asked()
    with pytest.raises((WireError, LookupError)) as raised:
        Service._sum(site, request, memory)
    assert (raised.type is LookupError) == bool(site.sites)
    return bool(site.sites)


def test_every_type_of_the_roles_has_its_size() -> None:
    assert {name: dtype.itemsize for dtype, name in TYPES.items()} == SIZES


@pytest.mark.parametrize("kind", SIZES)
def test_no_number_lies_outside_the_memory(kind: str) -> None:
    with mmap.mmap(-1, ROOM) as memory:
        most = ROOM // SIZES[kind]
        assert asks(SumRequest((0, 1), kind, most), memory) and asks(SumRequest((0, 1), kind, 0), memory)
        for count in (most + 1, ROOM, -1):
            assert not asks(SumRequest((0, 1), kind, count), memory)
    assert not asks(SumRequest((0, 1), kind, 1), None)


@pytest.mark.parametrize(("sites", "kind"), [((-1, 0), "FLOAT"), ((), "FLOAT"), ((0, 1), "CHAR"), ((0, 1), "")])
def test_what_cannot_be_summed_is_refused(sites: tuple[int, ...], kind: str) -> None:
    with mmap.mmap(-1, ROOM) as memory:
        assert not asks(SumRequest(sites, kind, 1), memory)
