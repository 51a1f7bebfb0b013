"""How does a strategy write its settings? Those that tell it apart always, the others where they were changed."""

from __future__ import annotations

from dataclasses import fields
from typing import Any


def written(settings: Any, **shown: Any) -> dict[str, Any]:
    """The settings `shown`, with the values they took, and every other one that is not at its default."""
    changed = {
        field.name: getattr(settings, field.name)
        for field in fields(settings)
        if field.name not in shown and getattr(settings, field.name) != field.default
    }
    return {**shown, **changed}
