"""covey jobs rehearse: which policy would be best? All of them, in virtual time."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covey.cli import json_file, options
from covey.cli.errors import explained
from covey.cli.options import FlagGroup, flag, grouped, teller
from covey.cli.typed_flags import decimal, names_of, typed
from covey.errors import PlanError

if TYPE_CHECKING:
    from covey.jobs.job_sets import JobSet
    from covey.jobs.rehearsal import RehearsalTimes

DRAWN = "Jobs like recorded runs"


@dataclass(frozen=True, kw_only=True)
class DrawnFlags(FlagGroup):
    """Jobs that are drawn, where no file says which there are."""

    runs: Annotated[
        Path | None, flag("--runs", "DIR", "The records of curves to replay. (default: COVEY_RUNS, or runs)", DRAWN)
    ] = None
    count: Annotated[int, flag("--count", "N", "How many jobs: at most 10,000.", DRAWN, least=1)] = 200
    slots: Annotated[int, flag("--slots", "N", "How many workers run at once.", DRAWN, least=1)] = 16
    load: Annotated[
        float, flag("--load", "SHARE", "Of the slots that the jobs keep busy.", DRAWN, parser=decimal)
    ] = 0.9  # fmt: skip
    mean: Annotated[str, flag("--mean", "TIME", "Of a job with one worker.", DRAWN)] = "10m"
    seed: options.Seed = 0

    def check(self) -> None:
        """Refuse more than can be rehearsed."""
        from covey.jobs.job_sets import MOST

        if not 0 < self.load <= 10 or max(self.count, self.slots) > MOST:
            raise PlanError(
                f"--load {self.load} --count {self.count} --slots {self.slots}: a load is above 0 and at most 10, a "
                f"count at most {MOST:,}, and so are slots"
            )

    def jobs(self) -> JobSet:
        """As many jobs as were asked for, each like one of the records."""
        from covey.jobs.job_sets import drawn, recorded_curves
        from covey.simulate.units import parse_duration

        curves = recorded_curves(self.runs or Path(os.environ.get("COVEY_RUNS") or "runs"))
        return drawn(curves, self.count, self.slots, self.load, self.seed, float(parse_duration(self.mean)))


@dataclass(frozen=True, kw_only=True)
class RehearsalFlags(FlagGroup):
    """What is rehearsed."""

    policies: Annotated[str, flag("--policies", "NAME,…", "Which to try. (default: all)", options.RUN)] = ""
    slice: Annotated[str, flag("--slice", "TIME", "How long a job keeps its slots.", options.RUN)] = "60s"
    start: Annotated[str, flag("--start", "TIME", "How long a job takes to start or resume.", options.RUN)] = "4s"

    def names(self) -> list[str]:
        """The policies; refused where one is unknown."""
        from covey.policy.sharing import POLICIES, sharing_policy

        names = [name.strip() for name in self.policies.split(",") if name.strip()] or list(POLICIES)
        for name in names:
            sharing_policy(name)
        return names

    def times(self) -> RehearsalTimes:
        """How long slices and starts take."""
        from covey.jobs.rehearsal import RehearsalTimes
        from covey.simulate.units import parse_duration

        found = RehearsalTimes(slice=float(parse_duration(self.slice)), start=float(parse_duration(self.start)))
        if found.slice <= 0:
            raise PlanError(f"--slice {self.slice}: a job keeps its slots for some time, such as 60s")
        return found


@grouped
def command(
    *,
    context: typer.Context,
    jobs: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="A set of jobs, which --write writes.")] = None,
    drawing: DrawnFlags,
    rehearsal: RehearsalFlags,
    write: Annotated[
        Path | None, flag("--write", "FILE", "Write the set of jobs, rehearse nothing.", options.KEEP)
    ] = None,
    json: options.Json = None,
    quiet: options.Quiet = False,
) -> None:
    """Replay recorded runs as many jobs, under every policy, in virtual time; name the best.

    covey jobs rehearse --count 1000 --slots 32
    """
    with explained("normal"):
        json_file.check(json)
        json_file.check(write, "--write", "jobs.json")
        if jobs is not None and (unread := typed(context, names_of(DrawnFlags))):
            raise PlanError(f"{jobs} says which jobs there are: omit it, or {unread}")
        if write is not None and (unread := typed(context, [*names_of(RehearsalFlags), "json", "quiet"])):
            raise PlanError(f"--write rehearses nothing: omit it, or {unread}")
        import msgspec

        from covey.cli.tables.jobs import print_rehearsals
        from covey.jobs.job_sets import read_set
        from covey.jobs.rehearsal import rehearse

        drawing.check()
        names, times = rehearsal.names(), rehearsal.times()
        chosen = read_set(jobs) if jobs is not None else drawing.jobs()
        if write is not None:
            text = msgspec.json.format(msgspec.json.encode(chosen), indent=1).decode()
            json_file.write(write, f"{text}\n", "--write")
            return
        found = rehearse(chosen, names, times, teller("quiet" if quiet else "normal"))
        if json is not None:
            json_file.write(json, msgspec.json.encode(found).decode() + "\n")
        if not quiet and json != json_file.OUTPUT:
            print_rehearsals(json_file.console(json), chosen, found)
