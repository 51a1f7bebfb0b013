from __future__ import annotations

import io
from functools import partial
from math import nan
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from covey.cli.tables.result import bar, by_kind, print_result
from covey.observe.membership import MembershipEvent
from covey.observe.referee import TargetReached
from covey.observe.result import Result, TimeShares
from tests.cli.conftest import ResultMaker


def printed(result: Result, until: str | None = None, *, encoding: str = "utf-8", **options: Any) -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=file, width=80, highlight=False, record=True)
    print_result(console, result, until, options.pop("files", {}), **options)
    return "\n".join(line.rstrip() for line in console.export_text().splitlines())


def test_the_whole_table(result: ResultMaker) -> None:
    files = {"model": Path("m.safetensors"), "checkpoint": None}
    assert (
        printed(result(), "accuracy:0.95", files=files)
        == """\
strategy   easgd(period=4, pull=0.225), 4 workers, local
stopped    the target was reached
target     accuracy>=0.95 reached after 7.1 s and 30,720 samples
final      accuracy 0.9532  loss 0.13
speed      4,096 samples/s: 51,200 samples in 12.5 s, 800 updates
traffic    105 MB in 3,200 messages
           master->worker 52.4 MB
           worker->master 52.4 MB
staleness  mean 1.93, max 7
model      m.safetensors

          time spent        █ compute  ▒ exchange  ░ waiting  memory
worker 0  ████████████▒▒░░        75%         12%        12%  210 MB
master 0  ▒▒▒▒░░░░░░░░░░░░         0%         25%        75%"""
    )


def test_an_unreached_target_stands_out(result: ResultMaker) -> None:
    text = printed(result(stopped="budget", reached=None), "loss<=0.05")
    assert "it ran to the end" in text
    assert "loss<=0.05 NOT reached: the best was 0.13, after 12 s" in text


@pytest.mark.parametrize("history", [[], [{"seconds": 1.0, "samples": 3, "bytes": 0, "accuracy": nan, "loss": None}]])
def test_a_target_that_was_never_scored(result: ResultMaker, history: list[Any]) -> None:
    text = printed(result(stopped="budget", reached=None, history=history), "accuracy:0.9")
    assert "NOT reached: the model was never scored" in text


def test_a_target_that_the_initial_weights_meet(result: ResultMaker) -> None:
    text = printed(result(reached=TargetReached("accuracy", 0.05, 0.0, 0)), "accuracy:0.05")
    assert "accuracy>=0.05 is met by the initial weights: nothing was trained" in text


def test_an_empty_run(result: ResultMaker) -> None:
    text = printed(result(seconds=0.0, samples=0, updates=0, history=[], roles={}, stopped="interrupted", reached=None))
    assert "interrupted" in text and "0 samples in 0 s" in text


def test_virtual_seconds_are_called_so(result: ResultMaker) -> None:
    assert "in 12.5 s of virtual time" in printed(result(engine="simulated"))


def test_many_roles_are_shown_by_kind(result: ResultMaker) -> None:
    workers = {
        f"worker {n}": TimeShares(compute=0.5, exchange=0.1, waiting=0.4 if n == 7 else 0.2, memory=1)
        for n in range(1000)
    }
    roles = {**workers, "server 0": TimeShares(compute=0, exchange=0.5, waiting=0.5, memory=1)}
    assert list(by_kind(roles)) == ["all 1,000 workers", "idlest: worker 7", "server 0"]
    assert "…" not in printed(result(roles=roles)), "everything fits"
    assert len(printed(result(roles=roles), everything=True).splitlines()) > 1000


@pytest.mark.parametrize("shares", [(1.0, 0.0, 0.0), (0.0, 0.0, 1.0), (0.33, 0.33, 0.34), (0.7, 0.6, 0.5)])
def test_a_bar_never_grows_too_long(shares: tuple[float, float, float]) -> None:
    compute, exchange, waiting = shares
    drawn = bar(TimeShares(compute=compute, exchange=exchange, waiting=waiting, memory=0))
    assert len(drawn) == 16


def test_old_terminals_get_plain_characters(result: ResultMaker) -> None:
    assert printed(result(), "accuracy:0.9", encoding="ascii").isascii()


def test_where_far_data_was_read_is_said(result: ResultMaker) -> None:
    read = {"backend bytes": 105_000_000, "peer bytes": 1_500_000, "cached bytes": 210_000_000}
    assert "data       105 MB from the store, 1.5 MB from other hosts, 210 MB from the cache" in printed(
        result(notes=dict(read))
    )
    assert "from the store" not in printed(result())


def test_what_auto_chose_is_said(result: ResultMaker) -> None:
    times = {"seconds to exchange dense": 0.4, "seconds to exchange int8": 0.1}
    assert "codec      auto chose int8: 100 ms an exchange, plain 400 ms" in printed(
        result(notes={"codec int8": 4, **times})
    )
    off = printed(result(notes={"codec dense": 4, **times}))
    assert "codec      auto found none that pays: plain numbers, 400 ms an exchange" in off
    assert "codec " not in printed(result())


def test_who_came_and_went_is_shown(result: ResultMaker) -> None:
    found, event = result(), partial(MembershipEvent, view=1, who="worker 1", cause="", stalled=0.0)
    found.tell_membership(
        [
            event(event="leave", seconds=2.0, workers=3), event(event="join", seconds=9.5, workers=4),
            event(event="rebirth", seconds=11.0, workers=4),
        ],
        repeated=0,
    )  # fmt: skip
    shown = " ".join(printed(found).split())
    assert "restarts 1; " in shown
    assert "workers worker 1 left after 2 s (3 workers); worker 1 joined after 9.5 s (4 workers)" in shown
