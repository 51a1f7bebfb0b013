"""Where does the model of a run go?"""

from __future__ import annotations

import os
from pathlib import Path

from covey import atomic_file
from covey.errors import SaveError
from covey.model import scored
from covey.names import option
from covey.observe.result import Result

Place = str | os.PathLike[str] | None


def check_save(to: Place) -> None:
    """Refuse, before anything runs, a place where no model can be saved."""
    if to:
        atomic_file.check(Path(to), option("save", to), "model.safetensors", makes_folders=True)


def save_model(result: Result, to: Place) -> SaveError | None:
    """Save the model of the result there, if that was asked for, and its average beside it.

    That of a federated run without a committed round is not saved: nothing was trained.
    Returned is what to raise when the run is over in order.
    """
    try:
        if to and not result.uncommitted:
            file = atomic_file.meant(Path(to))
            scored.save(result.weights, file)
            if result.ema:
                scored.save(result.ema, scored.averages_beside(file))
    except OSError as error:
        return SaveError(f"{option('save', to)} could not be written: {error.strerror or error}", result)
    return None
