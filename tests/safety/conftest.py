"""Tests on real processes get a room, and must leave it empty."""

from __future__ import annotations

from tests.real.conftest import room

__all__ = ["room"]
