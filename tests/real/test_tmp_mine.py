import pytest
import tests.real.test_resume as base

MINE = [
    "adpsgd",
    "sgp",
    "sgp(overlap=2)",
    "malt",
    "ako",
    "hogwild(momentum=drop)",
    "hogwild++(momentum=drop, hold=2)",
    "dogwild",
]


@pytest.mark.parametrize("strategy", MINE)
def test_goes_on(room, strategy):
    base.test_every_strategy_goes_on.__wrapped__(room, strategy) if hasattr(
        base.test_every_strategy_goes_on, "__wrapped__"
    ) else base.test_every_strategy_goes_on(room, strategy)


@pytest.mark.parametrize("strategy", MINE)
def test_all_the_time(room, strategy):
    base.test_checkpoints_all_the_time_stop_nobody(room, strategy)


@pytest.mark.parametrize("strategy", MINE)
def test_some_ended(room, strategy):
    base.test_kept_when_some_have_ended(room, strategy)
