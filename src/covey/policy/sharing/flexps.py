"""FlexPS (Huang et al. 2018): a job is a sequence of stages, each with a number of workers of its own."""

from __future__ import annotations

import re

from covey.errors import PlanError
from covey.policy.sharing.allocation import Allocation
from covey.policy.sharing.job_view import JobStage, JobsView, JobView
from covey.policy.sharing.queues import in_order

_STAGE = re.compile(r"([0-9]{1,6})(?:@([0-9]{1,3})%)?")
EXAMPLE = "--stages '1@30%, 4': one worker for 30 % of the samples, then four"


def flexps(view: JobsView) -> Allocation:
    """In the order of arrival each job gets what its stage wants; nobody overtakes."""
    return in_order(view, stage_workers)


def stage_workers(job: JobView) -> int:
    """What the stage wants that the job is in; without stages as many as it can use."""
    done = job.done / job.total if job.total else 0.0
    return next((stage.workers for stage in job.stages if done < stage.until), _last(job))


def _last(job: JobView) -> int:
    return job.stages[-1].workers if job.stages else job.most


def parse_stages(text: str) -> tuple[JobStage, ...]:
    """Stages as a person writes them: how many workers up to which share of the samples; the last to the end.

    >>> parse_stages("1@30%, 4")
    (JobStage(until=0.3, workers=1), JobStage(until=1.0, workers=4))
    """
    stages: list[JobStage] = []
    parts = text.split(",")
    for place, part in enumerate(parts, 1):
        match = _STAGE.fullmatch(part.strip())
        if match is None or int(match[1]) < 1 or (match[2] is None) != (place == len(parts)):
            raise PlanError(f"--stages {text!r}: {part.strip()!r} cannot be read; write {EXAMPLE}")
        until = int(match[2]) / 100 if match[2] else 1.0
        if until <= (stages[-1].until if stages else 0.0) or until > 1 or (match[2] and until == 1):
            raise PlanError(f"--stages {text!r}: the shares rise from stage to stage, between 0 and 100 %")
        stages.append(JobStage(until, int(match[1])))
    return tuple(stages)
