"""What may a person ask, where a model is to become a version?"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from covey.errors import PlanError
from covey.names import option
from covey.run.option_parts import OptionPart
from covey.run.record import folder_of_runs
from covey.store.versions import check_name


@dataclass(frozen=True, kw_only=True, slots=True)
class RegisterOptions(OptionPart):
    """Under which name to keep the model, and in which store."""

    register: str | None = None
    store: str | os.PathLike[str] | None = None  # a folder

    def check(self) -> None:
        if self.register is not None:
            check_name(self.register, option("register", self.register))
        elif self.store:
            raise PlanError(f"{option('store', self.store)} is for models: name one with {option('register')}")


def check_store(given: RegisterOptions, runs: str | os.PathLike[str] | Literal[False] | None) -> None:
    """Refuse, before anything runs, a folder in which no model can be kept."""
    if given.register is not None:
        from covey.store.model_store import ModelStore, folder_of_store  # it imports torch

        place = folder_of_store(given.store, folder_of_runs(runs))
        ModelStore(place).check(option("store", place))
