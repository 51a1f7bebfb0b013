"""covey trace: what did each role do when? As swim lanes, or for a trace viewer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from covey.cli import json_file, options, simulate
from covey.cli.errors import explained
from covey.cli.options import flag, voice
from covey.cli.training import ShownRequest, load_plugins, refuse_early
from covey.errors import PlanError

if TYPE_CHECKING:
    from covey.observe.recording import Recording

Picture = Annotated[Path, flag("--picture", "FILE", "Where the picture goes, an SVG.", options.KEEP)]
Chrome = Annotated[Path | None, flag("--chrome", "FILE", "Also for Chrome's and Perfetto's viewers.", options.KEEP)]
Timetable = Annotated[
    Path | None, flag("--timetable", "FILE", "Of a cut model: its pipeline, the bubble shaded, an SVG.", options.KEEP)
]
Begin = Annotated[str, flag("--from", "TIME", "Where the picture begins.", options.BUDGET)]
Length = Annotated[str | None, flag("--length", "TIME", "How much the picture shows. (usual: all)", options.BUDGET)]
Steps = Annotated[int, flag("--steps", "S", "End a worker after so many steps of its own.", options.BUDGET, least=1)]


def command(
    task: options.Task,
    strategy: options.Strategy = "bsp",
    plugin: options.Plugins = None,
    workers: options.Workers = 3,
    servers: options.Servers = None,
    engine: options.Engine = "simulated",
    seed: options.Seed = 0,
    steps: Steps = 6,
    begin: Begin = "0s",
    length: Length = None,
    picture: Picture = Path("trace.svg"),
    chrome: Chrome = None,
    timetable: Timetable = None,
    cluster: simulate.ClusterFile = None,
    bandwidth: simulate.Bandwidth = None,
    latency: simulate.Latency = None,
    compute: simulate.Compute = None,
    jitter: simulate.Jitter = None,
    slow: simulate.Slow = None,
    json: options.Json = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Run a few steps, and draw what each role did when: computing, waiting, and every message.

    covey trace examples/digits.py --strategy 'ssp(bound=1)' --workers 3 --slow 2:2x --picture ssp.svg
    """
    manner = voice(quiet, verbose)
    with explained(manner):
        imagined = simulate.described(
            cluster, bandwidth=bandwidth, latency=latency, compute=compute, jitter=jitter, slow=slow
        )
        if imagined is not None and engine != "simulated":
            raise PlanError(
                f"--engine {engine} runs on real machines: flags of a simulated cluster need --engine simulated"
            )
        request = ShownRequest(strategy=strategy, workers=workers, engine=engine, until=None, json=json, voice=manner)
        refuse_early(request)
        json_file.check(picture, "--picture", "trace.svg")
        json_file.check(chrome, "--chrome", "trace.json")
        json_file.check(timetable, "--timetable", "timetable.svg")
        load_plugins(plugin, manner)
        from covey.run import fit
        from covey.simulate import parse_duration

        since = parse_duration(begin)
        until = since + parse_duration(length) if length else None
        result = fit(
            task, strategy, workers, servers=servers, engine=engine, steps=steps, seed=seed, cluster=imagined,
            traced=True, command=request.command, runs=False,
        )  # fmt: skip
        assert result.recording is not None, "a traced run has a recording"
        _write(result.recording, picture, chrome, json, since, until)
        if timetable:
            _write_timetable(result.recording, timetable)
        if manner != "quiet" and json != json_file.OUTPUT:
            print("\n".join(str(path) for path in (picture, chrome, timetable, json) if path))


def _write_timetable(recording: Recording, file: Path) -> None:
    from covey.report import gantt
    from covey.report.pipelines import timetable_of

    seen = timetable_of(recording)
    drawn = gantt.draw(seen, f"{recording.strategy} · bubble {seen.bubble():.0%}")
    json_file.write(file, drawn, "--timetable")


def _write(
    recording: Recording, picture: Path, chrome: Path | None, json: Path | None, since: float, until: float | None
) -> None:
    from covey.report import lanes, perfetto

    json_file.write(picture, lanes.draw(recording, since, until), "--picture")
    json_file.write(json, recording.to_json())
    if chrome is not None:
        json_file.write(chrome, perfetto.events(recording), "--chrome")
