"""Which settings are best? Searches over a task's arguments, strategies and codecs; trials can pause and go on."""

from covey.tune.outcomes import StudyResult, TrialRow
from covey.tune.space import Space
from covey.tune.space_reader import parse_space
from covey.tune.studying import tune
from covey.tune.tenants.searching import TenantsResult, tune_tenants

__all__ = ["Space", "StudyResult", "TenantsResult", "TrialRow", "parse_space", "tune", "tune_tenants"]
