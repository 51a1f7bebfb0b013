"""covey trace: what did each role do when? As swim lanes, or for a trace viewer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from covey.cli import json_file, options, simulate
from covey.cli.errors import explained
from covey.cli.options import flag
from covey.cli.training import ShownRequest, check_names, load_plugins, refuse_early
from covey.errors import PlanError

if TYPE_CHECKING:
    from covey.observe.recording import Recording

Steps = Annotated[int, flag("--steps", "S", "End a worker after this many steps of its own.", options.BUDGET, least=1)]


@dataclass(frozen=True, kw_only=True)
class TracedTeamFlags(options.TeamFlags):
    """Who trains, and how: more workers than usual, for the picture."""

    workers: options.Workers = 3


@dataclass(frozen=True, kw_only=True)
class PictureFlags(options.FlagGroup):
    """What is drawn, and where that goes."""

    begin: Annotated[str, flag("--from", "TIME", "Where the picture begins.", options.BUDGET)] = "0s"
    length: Annotated[
        str | None, flag("--length", "TIME", "How much the picture shows. (default: all)", options.BUDGET)
    ] = None
    picture: Annotated[
        Path, flag("--picture", "FILE", "Where the picture goes, an SVG.", options.KEEP)
    ] = Path("trace.svg")
    chrome: Annotated[
        Path | None, flag("--chrome", "FILE", "Also for Chrome's and Perfetto's viewers.", options.KEEP)
    ] = None
    timetable: Annotated[
        Path | None,
        flag("--timetable", "FILE", "Of a cut model: its pipeline, the bubble shaded, an SVG.", options.KEEP),
    ] = None


@options.grouped
def command(
    *,
    task: options.Task,
    team: TracedTeamFlags,
    engine: options.Engine = "simulated",
    seed: options.Seed = 0,
    steps: Steps = 6,
    drawn: PictureFlags,
    cluster: simulate.UnevenClusterFlags,
    output: options.OutputFlags,
) -> None:
    """Run a few steps, and draw what each role did when: computing, waiting, and every message.

    covey trace examples/digits.py --strategy 'ssp(bound=1)' --workers 3 --slow 2:2x --picture ssp.svg
    """
    manner, json = output.voice, output.json
    with explained(manner):
        imagined = cluster.described()
        if imagined is not None and engine != "simulated":
            raise PlanError(
                f"--engine {engine} runs on real machines: flags of a simulated cluster need --engine simulated"
            )
        request = ShownRequest(strategy=team.strategy, workers=team.workers, engine=engine, until=None, output=output)
        refuse_early(request)
        json_file.check(drawn.picture, "--picture", "trace.svg")
        json_file.check(drawn.chrome, "--chrome", "trace.json")
        json_file.check(drawn.timetable, "--timetable", "timetable.svg")
        check_names(team.strategy, team.plugin)
        load_plugins(team.plugin, manner)
        from covey.run import fit
        from covey.simulate import parse_duration

        since = parse_duration(drawn.begin)
        until = since + parse_duration(drawn.length) if drawn.length else None
        result = fit(
            task, team.strategy, team.workers, servers=team.servers, engine=engine, steps=steps, seed=seed,
            cluster=imagined, traced=True, command=request.command, runs=False,
        )  # fmt: skip
        assert result.recording is not None, "a traced run has a recording"
        _write(result.recording, drawn, json, since, until)
        if drawn.timetable:
            _write_timetable(result.recording, drawn.timetable)
        if manner != "quiet" and json != json_file.OUTPUT:
            print("\n".join(str(path) for path in (drawn.picture, drawn.chrome, drawn.timetable, json) if path))


def _write_timetable(recording: Recording, file: Path) -> None:
    from covey.report import gantt
    from covey.report.pipelines import timetable_of

    seen = timetable_of(recording)
    drawn = gantt.draw(seen, f"{recording.strategy} · bubble {seen.bubble():.0%}")
    json_file.write(file, drawn, "--timetable")


def _write(recording: Recording, drawn: PictureFlags, json: Path | None, since: float, until: float | None) -> None:
    from covey.report import lanes, perfetto

    json_file.write(drawn.picture, lanes.draw(recording, since, until), "--picture")
    json_file.write(json, recording.to_json())
    if drawn.chrome is not None:
        json_file.write(drawn.chrome, perfetto.events(recording), "--chrome")
