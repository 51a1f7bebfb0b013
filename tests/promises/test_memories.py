"""What a checkpoint holds of every strategy: whatever a role forgets to remember, a resumed run begins anew with."""

from __future__ import annotations

from typing import Any

import pytest

from covey.program import Memory, Node
from tests.conftest import Golden
from tests.real.test_resume import ALL, COMPRESSED
from tests.worlds import mlp, run, sgd


def test_the_names_of_what_is_remembered(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = []
    remember = Node.remember
    for spec in (*ALL, *COMPRESSED):
        names: dict[str, set[str]] = {}

        def keep(node: Node, name: str, value: Any, names: dict[str, set[str]] = names, **more: Any) -> Memory[Any]:
            names.setdefault(node.address.role, set()).add(name)
            return remember(node, name, value, **more)

        monkeypatch.setattr(Node, "remember", keep)
        run(mlp(sgd(momentum=0.0 if "hogwild" in spec else 0.5)), spec, 4, steps=1)
        lines += [spec, *(f"    {role}: {', '.join(sorted(kept))}" for role, kept in sorted(names.items()))]
    golden("memories.txt", "\n".join(lines) + "\n")
