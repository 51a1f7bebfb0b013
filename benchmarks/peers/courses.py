"""What is raced: tasks with the score that ends a race. Only Fashion-MNIST was ever tuned for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from covey.target import Target, parse_target
from covey.task import Task, load_task

LAUNCHER = "COVEY_RACE_LAUNCHER"  # in the environment: the process whose lab is to be watched
FILE = Path(__file__).parent / "course.py"


@dataclass(frozen=True)
class Course:
    """A task of `course.py`."""

    name: str
    wanted: str
    scores: int  # of covey in a pass over the data: about as often as the peers' marks

    @property
    def file(self) -> str:
        return f"{FILE}:{self.name}"

    @property
    def target(self) -> Target:
        return parse_target(self.wanted)

    @property
    def task(self) -> Task:
        return _loaded(self.file)


@cache
def _loaded(file: str) -> Task:
    return load_task(file)


FASHION = Course("fashion", "accuracy>=0.86", 30)  # a mark is 8 steps of 4 workers with 64 samples: 2,048 of 60,000
CHARACTERS = Course("characters", "bits<=3.3", 3)  # 1,024 of 3,304 windows
DIGITS = Course("digits", "accuracy>=0.96", 3)  # 512 of 1,437 pictures
COURSES = {course.name: course for course in (FASHION, CHARACTERS, DIGITS)}
