"""Modules that take long to import, and packages that need not be installed: tests skip without them."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest


def needs(*packages: str) -> None:
    """Skip all tests of a file where one of these is not installed."""
    for name in packages:
        if find_spec(name.partition(".")[0]) is None:
            pytest.skip(f"needs {name}", allow_module_level=True)


class LateImport:
    """A module that is imported when the first of its names is used: each process of xdist collects all files of tests,
    and then runs some of them.
    """

    def __init__(self, name: str) -> None:
        needs(name)
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)
