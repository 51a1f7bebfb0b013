"""Values with secrets, which do not appear in logs and tracebacks."""

from __future__ import annotations

from typing import Any

import msgspec


class Secretive(msgspec.Struct, frozen=True):
    """Something with secrets in it, which have no business in a log or in a traceback."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return []
