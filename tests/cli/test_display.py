from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from math import nan

import pytest
from rich.console import Console

from covey.cli.progress.display import Lines, Silent, shown
from covey.cli.progress.live import Live
from covey.cli.progress.run_history import RunHistory
from covey.observe.progress import Progress, RoleProgress

Maker = Callable[..., Progress]


def terminal(width: int = 80, height: int = 24) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, height=height, highlight=False, record=True)


def test_rates_are_differences(progress: Maker) -> None:
    moments = RunHistory()
    assert moments.speed is None
    moments.add(progress(1.0))
    moments.add(progress(3.0, samples=500, bytes=9000))
    assert moments.speed == 200
    assert moments.traffic == 4000
    assert moments.left == 2.5


def test_rates_stand_still_with_the_clock(progress: Maker) -> None:
    moments = RunHistory()
    for second in (1.0, 2.0, 2.0, 2.0):
        moments.add(progress(second))
    assert moments.speed == 100


def test_only_notable_waits_are_named(progress: Maker) -> None:
    moments = RunHistory()
    roles = {
        f"worker {rank}": RoleProgress(step=1, samples=1, bytes=1, waiting="Pull", waited=waited)
        for rank, waited in enumerate((0.01, 3.0, 9.0, 1.0))
    }
    moments.add(progress(1.0, roles=roles))
    assert [name for name, _ in moments.longest_waits(2)] == ["worker 2", "worker 1"]


def test_another_run_begins_without_the_scores_of_the_one_before(progress: Maker) -> None:
    moments = RunHistory()
    for second, score in ((1.0, 0.1), (2.0, 0.5), (0.5, 0.2), (1.5, 0.3)):
        assert moments.add(progress(second, metrics={"a": score}))
    assert [scores["a"] for scores in moments.scores] == [0.2, 0.3]


def test_scores_draw_a_line_and_survive_nan(progress: Maker) -> None:
    moments = RunHistory()
    scored = [moments.add(progress(1.0 + n, metrics={"a": a})) for n, a in enumerate((0.1, nan, nan, 0.5, 0.9))]
    assert scored == [True, True, False, True, True]
    assert moments.spark("a", 10) in ("▁▄█", "▁▅█")
    assert moments.spark("b", 10) == ""


def test_lines_come_now_and_then_and_with_each_score(progress: Maker) -> None:
    now = [0.0]
    console = Console(file=io.StringIO(), width=80, record=True, highlight=False)
    lines = Lines(console, "bsp · 2 workers · local", clock=lambda: now[0])
    for tick in range(50):  # ten a second
        now[0] = tick / 10
        lines.update(progress(1.0 + tick / 10, metrics={"accuracy": 0.5 if tick < 15 else 0.9}))
    lines.say("worker 1 waits")
    text = console.export_text().splitlines()
    assert text[0] == "bsp · 2 workers · local"
    assert len(text) == 5  # the title, two scores, one after two silent seconds, what was said
    assert "1 s  100 samples (10%)  loss 1  accuracy 0.5" in text[1]
    assert "100 samples/s  1 kB/s  staleness 1.9  waiting: worker 1 for Params from server 0 (4.2 s)" in text[2]
    assert text[-1] == "worker 1 waits"


def test_verbose_lines_have_one_for_each_role(progress: Maker) -> None:
    console = Console(file=io.StringIO(), width=80, record=True, highlight=False)
    Lines(console, "bsp", verbose=True).update(progress(2.0))
    text = console.export_text()
    assert "worker 0   step 20  100 samples  1 kB sent\n" in text
    assert "waits for Params from server 0 (4.2 s)" in text


def test_live_picture_fits_80_columns(progress: Maker) -> None:
    console = terminal()
    live = Live(console, "easgd(period=4) · 4 workers · local", "accuracy:0.95", verbose=True)
    with live:
        for second in (1.0, 2.0, 3.0):
            live.update(progress(second, metrics={"accuracy": second / 4}))
    console.export_text()
    console.print(live.picture())
    text = console.export_text()
    assert all(len(line.rstrip()) <= 80 for line in text.splitlines())
    for part in ("easgd(period=4)", "training 3 s", "300 of 1,000 samples", "30%", "7 s left", "accuracy 0.75",
                 "until >= 0.95", "loss 0.3333", "100 samples/s", "1 kB/s", "staleness 1.9", "waiting: worker 1",
                 "worker 0", "waits for"):  # fmt: skip
        assert part in text, f"{part!r} is not in\n{text}"


@pytest.mark.parametrize("verbose", [False, True])
def test_live_picture_stays_as_high_as_the_terminal(progress: Maker, verbose: bool) -> None:
    console = terminal(width=60, height=20)
    live = Live(console, "a title that is much too long " * 4, None, verbose=verbose)
    roles = {f"worker {n}": RoleProgress(step=1, samples=1, bytes=1, waiting="x" * 90, waited=n) for n in range(1000)}
    live._moments.add(progress(1.0, roles=roles, metrics={f"metric {n}": 0.5 for n in range(20)}))
    console.print(live.picture())
    lines = console.export_text().splitlines()
    assert len(lines) <= (20 if verbose else 5)
    assert all(len(line) <= 60 for line in lines)


def test_live_without_a_budget(progress: Maker) -> None:
    console = terminal()
    with Live(console, "bsp", None) as live:
        live.update(progress(1.0, budget=None, loss=None, metrics={}, staleness=None, roles={}))
    assert "not scored yet" in console.export_text()


def test_live_leaves_the_terminal_intact(progress: Maker) -> None:
    console = terminal()

    def interrupted() -> None:
        with Live(console, "bsp", None) as live:
            live.update(progress(1.0))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    output = console.file.getvalue()  # type: ignore[attr-defined]
    assert output.rindex("\x1b[?25h") > output.rindex("\x1b[?25l"), "the cursor is shown again"


def test_quiet_and_pipes_get_no_live_display() -> None:
    with shown("bsp", None, "quiet") as silent:
        assert isinstance(silent, Silent)
    with shown("bsp", None, "normal") as lines:
        assert isinstance(lines, Lines)


def test_on_a_terminal_it_is_live() -> None:
    code = """
from covey.cli.progress.display import shown
from covey.observe.progress import Progress
with shown("bsp · 2 workers", "accuracy:0.9", "normal") as watcher:
    watcher.update(Progress(phase="training", seconds=1.0, samples=320, budget=1000))
    watcher.say("said on the way")
print("after")
"""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    done = subprocess.run(
        [sys.executable, "-c", code], stderr=theirs, stdout=subprocess.PIPE, env=environment, check=True, timeout=60
    )
    os.close(theirs)
    seen = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert done.stdout == b"after\n"
    assert "bsp · 2 workers" in seen and "said on the way" in seen
    assert seen.rindex("\x1b[?25h") > seen.rindex("\x1b[?25l")
