"""Every test on a cluster engine gets a room, and must leave it empty."""

from __future__ import annotations

from tests.real.conftest import room

__all__ = ["room"]
