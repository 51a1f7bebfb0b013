"""covey jobs rehearse: which policy would be best? All of them, in virtual time."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from covey.cli import json_file, options
from covey.cli.errors import explained
from covey.cli.options import flag, teller
from covey.cli.typed_flags import typed
from covey.errors import PlanError

DRAWN = "Jobs like recorded runs"
OF_DRAWN = ("runs", "count", "slots", "load", "mean", "seed")
OF_REHEARSAL = ("policies", "slice", "start", "json", "quiet")


def command(
    context: typer.Context,
    jobs: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="A set of jobs, which --write writes.")] = None,
    runs: Annotated[
        Path | None, flag("--runs", "DIR", "The records whose curves are replayed. (usual: COVEY_RUNS, or runs)", DRAWN)
    ] = None,
    count: Annotated[int, flag("--count", "N", "How many jobs: at most 10,000.", DRAWN, least=1)] = 200,
    slots: Annotated[int, flag("--slots", "N", "How many workers run at once.", DRAWN, least=1)] = 16,
    load: Annotated[float, flag("--load", "SHARE", "Of the slots that the jobs keep busy.", DRAWN)] = 0.9,
    mean: Annotated[str, flag("--mean", "TIME", "Of a job with one worker.", DRAWN)] = "10m",
    seed: options.Seed = 0,
    policies: Annotated[str, flag("--policies", "NAME,…", "Which to try. (usual: all)", options.RUN)] = "",
    slice: Annotated[str, flag("--slice", "TIME", "How long a job keeps its slots.", options.RUN)] = "60s",
    start: Annotated[str, flag("--start", "TIME", "How long a job takes to start or resume.", options.RUN)] = "4s",
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
        import msgspec

        from covey.cli.tables.jobs import print_rehearsals
        from covey.jobs.job_sets import MOST, drawn, read_set, recorded_curves
        from covey.jobs.rehearsal import RehearsalTimes, rehearse
        from covey.policy.sharing import POLICIES, sharing_policy
        from covey.simulate.units import parse_duration

        if jobs is not None and (unread := typed(context, OF_DRAWN)):
            raise PlanError(f"{jobs} says which jobs there are: omit it, or {unread}")
        if write is not None and (unread := typed(context, OF_REHEARSAL)):
            raise PlanError(f"--write rehearses nothing: omit it, or {unread}")
        if not 0 < load <= 10 or max(count, slots) > MOST:
            raise PlanError(
                f"--load {load} --count {count} --slots {slots}: a load is above 0 and at most 10, a count at most "
                f"{MOST:,}, and so are slots"
            )
        names = [name.strip() for name in policies.split(",") if name.strip()] or list(POLICIES)
        for name in names:
            sharing_policy(name)
        times = RehearsalTimes(slice=float(parse_duration(slice)), start=float(parse_duration(start)))
        if times.slice <= 0:
            raise PlanError(f"--slice {slice}: a job keeps its slots for some time, such as 60s")
        if jobs is not None:
            chosen = read_set(jobs)
        else:
            folder = runs or Path(os.environ.get("COVEY_RUNS") or "runs")
            chosen = drawn(recorded_curves(folder), count, slots, load, seed, float(parse_duration(mean)))
        if write is not None:
            text = msgspec.json.format(msgspec.json.encode(chosen), indent=1).decode()
            json_file.write(write, f"{text}\n", "--write")
            return
        found = rehearse(chosen, names, times, teller("quiet" if quiet else "normal"))
        if json is not None:
            json_file.write(json, msgspec.json.encode(found).decode() + "\n")
        if not quiet and json != json_file.OUTPUT:
            print_rehearsals(json_file.console(json), chosen, found)
