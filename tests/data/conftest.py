"""What the tests of data share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from covey.data.stripe_cache.read_counts import notes


@pytest.fixture(autouse=True)
def nothing_read_is_left() -> Iterator[None]:
    """What a test reads by itself is not told in a run of the next one."""
    yield
    notes()
