"""Which answers are known already? Those to the inputs that were asked for last."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor


class AnswerCache:
    """Answers by the hash of their inputs; beyond `most`, the one that was asked for longest ago is dropped."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._known: OrderedDict[str, Tensor] = OrderedDict()

    def find(self, key: str) -> Tensor | None:
        found = self._known.get(key) if key else None
        if found is not None:
            self._known.move_to_end(key)
        return found

    def keep(self, key: str, answer: Tensor) -> None:
        if not key or not self.most:
            return
        self._known[key] = answer.clone()  # a row of a batch would keep the whole batch
        self._known.move_to_end(key)
        while len(self._known) > self.most:
            self._known.popitem(last=False)

    def __len__(self) -> int:
        return len(self._known)
