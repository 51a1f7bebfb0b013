"""What a notebook shows of a run: a picture that changes at most twice a second, and the report of the result."""

from __future__ import annotations

import ast
import html
import linecache
import re
from math import nan
from pathlib import Path
from types import CodeType, FunctionType, SimpleNamespace

import msgspec
import pytest

import covey
from covey import faults
from covey.engines import handover
from covey.observe.progress import Progress
from covey.run import notebook
from covey.run.notebook import NotebookDisplay

EVIL = "<script>alert(1)</script>"


def shown(title: str = "bsp") -> tuple[NotebookDisplay, list[str], list[float]]:
    pictures, clock = list[str](), [0.0]
    return NotebookDisplay(title, pictures.append, lambda: clock[0]), pictures, clock


def test_it_is_drawn_at_most_twice_a_second() -> None:
    display, pictures, clock = shown()
    for tenth in range(1, 101):
        clock[0] = tenth / 10
        display.update(Progress(phase="training", seconds=clock[0], samples=tenth, metrics={"accuracy": tenth / 100}))
        display.say(f"line {tenth}")
    assert len(pictures) == 1 + 20
    display.close()
    assert len(pictures) == 1 + 20 + 1
    assert "line 96" in pictures[-1] and "line 100" in pictures[-1] and "line 95" not in pictures[-1], "the last five"


def test_it_tells_how_far_the_run_is() -> None:
    display, pictures, _ = shown()
    for now in (1, 2, 3):
        display.update(Progress(phase="training", seconds=now, samples=100 * now, budget=1000, bytes=2048, loss=0.25))
    display.close()
    text = re.sub(r"<[^>]*>", " ", pictures[-1])
    assert all(word in text for word in ("training", "300", "100", "0.25")) and "value='0.300'" in pictures[-1]


def test_the_scores_are_a_curve() -> None:
    display, pictures, _ = shown()
    for now, value in ((1, 0.5), (2, 0.5), (3, 0.9), (4, float("nan")), (5, 0.7)):
        display.update(Progress(phase="training", seconds=now, metrics={"accuracy": value}))
    display.close()
    (points,) = re.findall(r"points='([^']*)'", pictures[-1])
    assert points.split() == ["0.0,46.0", "120.0,2.0", "240.0,24.0"]


def test_a_curve_says_where_it_began_and_where_it_is() -> None:
    """Of an error that falls, the smallest and the largest value would read as if it had risen."""
    display, pictures, _ = shown()
    for value in (0.9, 1.2, 0.1):
        display.update(Progress(phase="training", metrics={"error": value}))
    display.close()
    assert "error: 0.9 → 0.1" in pictures[-1]


def test_text_of_a_run_is_only_text() -> None:
    display, pictures, _ = shown(EVIL)
    display.update(Progress(phase="training", metrics={EVIL: 0.5}))
    display.say(EVIL)
    display.close(EVIL)
    assert EVIL not in pictures[-1] and pictures[-1].count(html.escape(EVIL)) == 4


def test_only_the_kernel_of_a_notebook_has_a_display(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = SimpleNamespace(get_ipython=SimpleNamespace)
    for ipython in (None, SimpleNamespace(get_ipython=lambda: None), terminal):
        monkeypatch.setitem(notebook.sys.modules, "IPython", ipython)
        with notebook.shown(None, "bsp") as watcher:
            assert watcher is None


def test_the_watcher_that_was_given_is_the_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a notebook, too."""
    mine, _, _ = shown()
    monkeypatch.setattr(notebook, "_display", lambda title: shown()[0])
    with notebook.shown(None, "bsp") as watcher:
        assert isinstance(watcher, notebook.NotebookDisplay) and watcher is not mine
    with notebook.shown(mine, "bsp") as watcher:
        assert watcher is mine


def test_a_run_that_failed_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    display, pictures, _ = shown()
    monkeypatch.setattr(notebook, "_display", lambda title: display)
    with pytest.raises(covey.PlanError), notebook.shown(None, "bsp"):
        raise covey.PlanError("there is no such strategy")
    assert "there is no such strategy" in pictures[-1]


def test_the_display_of_a_run_that_failed_has_no_traceback() -> None:
    """The cell shows it below."""
    display, pictures, _ = shown()
    display.update(Progress(phase="scoring"))
    display.close("RoleFailed: worker 1 failed: no\n\nTraceback (most recent call last):\n  File …")
    assert "worker 1 failed" in pictures[-1] and "Traceback" not in pictures[-1]
    assert ">failed</td>" in pictures[-1] and "scoring" not in pictures[-1]
    display.close("SpecError: bps\n^ no strategy 'bps'")
    assert "no strategy" in pictures[-1], "a sentence may be in the second line"


def test_ipython_is_told_the_users_lines_of_an_error() -> None:
    """Not the twenty frames between `fit` and the place in covey that noticed."""
    with pytest.raises(covey.PlanError) as caught:
        covey.fit("examples/digits.py", "bps", workers=2, engine="simulated")
    first, *lines, last = caught.value._render_traceback_()
    assert first == "Traceback (most recent call last):" and "did you mean 'bsp'?" in last
    assert len(lines) == 1 and __file__ in lines[0] and "covey.fit(" in lines[0]
    assert caught.traceback[-1].path != caught.traceback[0].path, "Python and %debug have them all"


def test_an_error_shows_its_cause_and_its_notes() -> None:
    class Unready:
        def __reduce__(self) -> str:
            raise ValueError("still loading")

    with pytest.raises(covey.PlanError) as caught:
        handover.pack(task=Unready())
    caught.value.add_note("(in worker 3, at 4.98 s)")
    first, raised, *between, own, words, note = caught.value._render_traceback_()
    assert first == "Traceback (most recent call last):" and 'raise ValueError("still loading")' in raised
    assert between == ["ValueError: still loading", "", faults.CAUSED, "", first] and "handover.pack(" in own
    assert words.startswith("PlanError: the task cannot be handed") and note == "(in worker 3, at 4.98 s)"


def test_a_cause_without_a_line_of_the_users_is_not_shown() -> None:
    """The message has its words; and causes may go in a circle."""
    error = covey.PlanError("the file cannot be read: no such file")
    error.__cause__ = OSError("no such file")
    error.__cause__.__cause__ = error
    assert error._render_traceback_() == ["PlanError: the file cannot be read: no such file"]


def test_a_result_is_one_line(result: covey.Result) -> None:
    told = repr(result)
    assert told.startswith("<Result of bsp · 2 workers · simulated: budget after ") and len(told) < 200
    assert f"accuracy {result.history[-1]['accuracy']:.4g}" in told and "2,874 samples" in told


def test_completion_offers_what_is_public() -> None:
    """Also what is not imported yet; and editors, which run nothing, read the same names."""
    assert set(dir(covey)) == {*covey.__all__, "__version__"}
    (typed,) = [one for one in ast.parse(Path(str(covey.__file__)).read_text()).body if isinstance(one, ast.If)]
    imported = [name.name for line in typed.body if isinstance(line, ast.ImportFrom) for name in line.names]
    assert sorted(imported) == sorted(covey.__all__)


def test_a_role_knows_the_code_of_a_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    name, text = "/tmp/ipykernel_1/2.py", "def loss(y, target):\n    return y.reshape(7)\n"
    monkeypatch.setitem(linecache.cache, name, (len(text), None, text.splitlines(keepends=True), name))
    monkeypatch.setitem(linecache.cache, "<attrs generated>", (1, None, ["pass\n"], "<attrs generated>"))
    monkeypatch.setitem(linecache.cache, __file__, (1, None, ["pass\n"], __file__))
    secret, other = "/tmp/ipykernel_1/1.py", ["%env TOKEN=secret\n"]
    monkeypatch.setitem(linecache.cache, secret, (1, None, other, secret))
    (code,) = [one for one in compile(text, name, "exec").co_consts if isinstance(one, CodeType)]
    loss = FunctionType(code, {"__name__": "__main__"})
    handed = handover.opened(handover.pack(task=loss))
    assert list(handed.cells) == [name], "neither other cells, nor what a package has made, nor files that are there"
    monkeypatch.delitem(linecache.cache, name)
    assert handover.of_memory(handed).task.__code__.co_filename == name
    assert linecache.getline(name, 2) == "    return y.reshape(7)\n"
    monkeypatch.setattr(handover, "MOST_CODE", 10)
    assert handover.opened(handover.pack(task=loss)).cells == {}, "too much"


@pytest.fixture(scope="module")
def result() -> covey.Result:
    return covey.fit("examples/digits.py", "bsp", 2, engine="simulated", epochs=2, scores=4, traced=True)


def inside(result: covey.Result) -> tuple[str, str]:
    """The frame of a result, and the page in it."""
    whole = result._repr_html_()
    found = re.fullmatch(r'<iframe sandbox="" [^>]*?srcdoc="([^"]*)"></iframe>', whole)
    assert found, whole[:300]
    return whole, html.unescape(found[1])


def test_a_result_is_its_report_in_a_frame_of_its_own(result: covey.Result) -> None:
    _, page = inside(result)
    assert page.startswith("<!doctype html>") and "<script" not in page
    assert "Accuracy against time" in page and "Where the time went" in page and "What each role did when" in page
    assert f"{result.history[-1]['accuracy']:.4g}" in page and not re.search(r"(src|href)\s*=|url\((?!#)|@import", page)


def test_names_cannot_leave_the_frame(result: covey.Result) -> None:
    evil = f'"></iframe>{EVIL}'
    changed = covey.fit("examples/digits.py", "bsp", 2, engine="simulated", epochs=1, command=evil)
    whole, page = inside(changed)
    assert whole.count("</iframe>") == 1 and EVIL not in page and html.escape(EVIL) in page


def test_the_report_begins_with_the_initial_weights(result: covey.Result) -> None:
    """On real processes their line has a training loss of NaN."""
    rows = [{**row, "loss": nan if at == 0 else row["loss"]} for at, row in enumerate(result.history[:4])]
    _, page = inside(msgspec.structs.replace(result, history=rows))
    assert f"{rows[0]['accuracy']:.4g} at 0<" in page


def test_runs_are_drawn_over_each_other(result: covey.Result) -> None:
    other = covey.fit("examples/digits.py", "easgd", 2, engine="simulated", epochs=1)
    whole = covey.report.overlay(result, other, result)._repr_html_()
    page = html.unescape(whole)
    assert whole.startswith('<iframe sandbox=""') and "3 runs" in page
    assert all(f">{name}<" in page for name in ("bsp (1)", "bsp (2)")) and page.count("<tr><th><i class='dot'") == 3
    assert "Accuracy against time" in page and "examples/digits.py on 2 workers, in virtual time." in page
    assert "Loss against time" in html.unescape(covey.report.overlay(result, other, metric="loss")._repr_html_())
    for wrong, words in (((), "not nothing"), ((result, "bsp"), "not str")):
        with pytest.raises(covey.PlanError, match=words):
            covey.report.overlay(*wrong)
    with pytest.raises(covey.PlanError, match="did you mean 'accuracy'"):
        covey.report.overlay(result, metric="acuracy")


def test_a_long_history_is_a_small_report(result: covey.Result) -> None:
    row = result.history[-1]
    samples = int(row["samples"] or 0)
    result.history += [{**row, "samples": samples + n, "seconds": 1.0 + n, "accuracy": n / 1e4} for n in range(10_000)]
    whole, page = inside(result)
    assert len(whole) < 400_000 and "at 1e+04" in page, "the last score is there"
