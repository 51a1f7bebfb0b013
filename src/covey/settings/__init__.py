"""Which settings (rate, momentum, …) does a loop of the user's own want for a step, and who must have them?

A loop may change `optimizer.param_groups` before any step. Whoever steps an optimizer with the gradient of that step,
in whatever process, does it with these settings.
"""

from covey.settings.gradients import skipping
from covey.settings.history import Agreement, History, SettingsChange
from covey.settings.loop import FIRST, LoopSettings
from covey.settings.schedule import SchedulePace, SteppedScheduler
from covey.settings.values import Settings, SettingsUpdate, after, changed, check_rate, check_rates, read

__all__ = [
    "FIRST",
    "Agreement",
    "SettingsChange",
    "SettingsUpdate",
    "History",
    "LoopSettings",
    "SchedulePace",
    "Settings",
    "SteppedScheduler",
    "after",
    "changed",
    "check_rate",
    "check_rates",
    "read",
    "skipping",
]
