"""Loggers write what the result says, number by number; the tools themselves read it back."""

from __future__ import annotations

import csv
import json
import select
import socket
import struct
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from math import isnan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import covey
from covey.observe.facts import RunFacts
from covey.observe.loggers import BoundedServer, PrometheusLogger, SteppedLogger, logger, rates
from covey.observe.progress import Progress
from covey.run import launch

DIGITS = "examples/digits.py"


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def run(*log: str) -> covey.Result:
    return covey.fit(DIGITS, "easgd(period=2)", 2, engine="simulated", epochs=2, scores=2, log=log)


def history(result: covey.Result, name: str) -> dict[int, float]:
    rows = json.loads(result.to_json())["history"]
    return {row["samples"]: row[name] for row in rows if row[name] is not None}


def totals(result: covey.Result) -> dict[str, float]:
    """What the last report of every run says."""
    return {"train/samples": result.samples, "train/updates": result.updates, "train/bytes": result.traffic.bytes}


def test_csv(tmp_path: Path) -> None:
    result = run(f"csv:{tmp_path / 'scores.csv'}")
    with (tmp_path / "scores.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(result.history) > 4
    for row, meant in zip(rows, result.history, strict=True):
        assert {name: str(value) for name, value in meant.items()} == row
        assert all(isnan(float(row[name])) or float(row[name]) == value for name, value in meant.items() if value)


def test_tensorboard(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator").EventAccumulator
    util = pytest.importorskip("tensorboard.util.tensor_util")
    result = run(f"tensorboard:{tmp_path}")
    read = accumulator(str(tmp_path))
    read.Reload()
    for name in ("accuracy", "loss"):
        found = {event.step: util.make_ndarray(event.tensor_proto).item() for event in read.Tensors(name)}
        assert found == history(result, name)
    assert {"train/samples", "train/bytes", "train/loss"} <= set(read.Tags()["tensors"])
    (text,) = read.Tensors("command/text_summary")
    assert b"easgd" in util.make_ndarray(text.tensor_proto).item(), "the strategy, where there was no command"
    for name, total in totals(result).items():
        event = read.Tensors(name)[-1]
        assert (event.step, util.make_ndarray(event.tensor_proto).item()) == (result.samples, total)


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    where = (tmp_path / "mlruns").as_uri()
    result = run(f"mlflow:{where}")
    client = mlflow.MlflowClient(where)
    (experiment,) = [one for one in client.search_experiments() if one.name == "covey"]
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED" and found.data.params["period"] == "2"
    for name in ("accuracy", "loss"):
        written = {one.step: one.value for one in client.get_metric_history(found.info.run_id, name)}
        assert written == history(result, name)
    for name, total in totals(result).items():
        assert client.get_metric_history(found.info.run_id, name)[-1].value == total


def stored(file: Path) -> Iterator[bytes]:
    """The records of a file of Weights & Biases, a log as of LevelDB: pieces with a header, in blocks of 32 KiB."""
    data, at, record = file.read_bytes(), 7, b""
    assert data.startswith(b":W&B")
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:  # no header fits
            at += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        if kind == 0:
            return
        record += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # a whole one, or the last piece
            yield record
            record = b""


def whole(file: Path, read: Callable[[bytes], Any]) -> list[Any]:
    """The records, when its process has written the last one: that may be after `finish` has returned."""
    until = time.monotonic() + 30
    while True:
        found = [read(data) for data in stored(file)]
        if any(record.HasField("exit") for record in found) or time.monotonic() > until:
            return found
        time.sleep(0.1)


def test_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline, with its own process and its own file."""
    pytest.importorskip("wandb")
    records = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    for name, value in {"MODE": "offline", "DIR": str(tmp_path), "SILENT": "true"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    result = run("wandb:digits")
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    rows, config, project = [], {}, ""
    for record in whole(file, records.Record.FromString):
        if record.HasField("run"):
            project = record.run.project
            config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        if record.HasField("history"):
            items = record.history.item
            rows.append({item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items})
    assert (project, config["strategy"], config["period"]) == ("digits", result.strategy, 2)
    for name in ("accuracy", "loss"):
        assert {row["samples"]: row[name] for row in rows if name in row} == history(result, name)
    last = [row for row in rows if "train/bytes" in row][-1]
    assert {name: last[name] for name in totals(result)} == totals(result) and last["samples"] == result.samples


@pytest.mark.parametrize("well", [True, False])
def test_other_tools_are_told_whether_the_run_ended_well(well: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[object] = []
    client = SimpleNamespace(
        search_experiments=lambda **_: [], get_experiment_by_name=lambda _: SimpleNamespace(experiment_id="1"),
        create_run=lambda *_, **__: SimpleNamespace(info=SimpleNamespace(run_id="7")), log_param=lambda *_: None,
        set_terminated=lambda run, status: ends.append((run, status)),
    )  # fmt: skip
    finished = SimpleNamespace(finish=lambda *, exit_code: ends.append(exit_code))
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(MlflowClient=lambda _: client))
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **_: finished))
    facts = RunFacts(task="t", strategy="s", taxonomy={}, engine="local", workers=1)
    result = covey.fit(DIGITS, "bsp", 2, engine="simulated", steps=1) if well else None
    for one in map(logger, ("mlflow:there", "wandb")):
        one.started(facts)
        one.ended(result, "" if well else "worker 1 was lost")
    assert ends == ([("7", "FINISHED"), 0] if well else [("7", "FAILED"), 1])


def test_prometheus(port: int) -> None:
    result = run(f"prometheus:{port}")
    serving = logger(f"prometheus:{port}")  # the port is free when the run has ended
    serving.started(result)
    serving.reported([Progress(phase="training", seconds=2.0, samples=640, bytes=77)])
    serving.scored(result.history[-1])
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/")
    serving.ended(result, "")
    found = {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}
    assert found["covey_accuracy"] == result.history[-1]["accuracy"]
    assert (found["covey_train_samples"], found["covey_train_bytes"]) == (640, 77)
    assert any(line.startswith('covey_accuracy{strategy="easgd(') for line in lines)


def test_a_last_report_follows_the_last_score_only_if_it_says_something_new() -> None:
    class Numbers(SteppedLogger):
        def __init__(self) -> None:
            super().__init__()
            self.logged: list[tuple[int, float]] = []

        def log(self, numbers: Mapping[str, float], samples: int) -> None:
            self.logged.append((samples, numbers["train/bytes"]))

    numbers = Numbers()
    for phase, samples, sent in (
        ("starting", 0, 0), ("training", 64, 10), ("training", 64, 20), ("scoring", 128, 20), ("ended", 128, 30),
        ("ended", 128, 30), ("ended", 128, 40),
    ):  # fmt: skip
        numbers.reported([Progress(phase=phase, samples=samples, bytes=sent)])  # type: ignore[arg-type]
    assert numbers.logged == [(64, 10), (128, 30), (128, 40)]
    short = Numbers()
    short.reported([Progress(phase="ended", samples=32, bytes=4)])
    assert short.logged == [(32, 4)], "a run that was over before its first report"


def test_prometheus_keeps_the_speed_of_training(port: int) -> None:
    """While a score is taken only the clock goes on, and a phase may begin a millisecond after a report."""
    serving = PrometheusLogger(str(port))
    phases = [("training", 1.0, 100), ("training", 2.0, 200), ("scoring", 2.5, 200), ("training", 3.0, 300)]
    speeds = []
    for phase, seconds, samples in phases:
        serving.reported([Progress(phase=phase, seconds=seconds, samples=samples)])  # type: ignore[arg-type]
        speeds.append(serving.numbers.get("train/samples_per_second"))
    serving.ended(None, "")
    assert speeds == [None, 100, 100, 100]


def test_what_cannot_work_is_refused_before_the_run(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = {
        "tensorbord:x": "no logger 'tensorbord', did you mean|no logger 'tensorbord'; did you mean",
        "csv": "name the file, as in --log csv:scores.csv",
        f"csv:{tmp_path}": "is a folder",
        "prometheus:many": "name a port",
        "tensorboard:/dev/null/logs": "cannot be written",
    }
    for text, words in refused.items():
        with pytest.raises(covey.PlanError, match=words):
            logger(text)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with pytest.raises(covey.PlanError, match="choose another port"):
            logger(f"prometheus:{port}")
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(covey.PlanError, match=r"pip install 'covey\[wandb\]'"):
        logger("wandb")


def test_scores_are_not_written_where_there_are_none() -> None:
    with pytest.raises(covey.PlanError, match="writes scores, which a script's own loop does not have; tensorboard"):
        launch("examples/own_loop.py", [], "bsp", 2, log=["csv:scores.csv"])


def test_a_logger_before_one_that_is_refused_is_closed(port: int) -> None:
    with pytest.raises(covey.PlanError, match="no logger 'nothing'"):
        run(f"prometheus:{port}", "nothing:x")
    logger(f"prometheus:{port}").ended(None, "")  # the port is free again


def test_a_logger_whose_disk_is_full_is_dropped_and_the_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "full.csv").symlink_to("/dev/full")
    assert run(f"csv:{tmp_path / 'full.csv'}").stopped == "budget"


def test_two_tables_in_one_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "link.csv").symlink_to(tmp_path / "scores.csv")
    with pytest.raises(covey.PlanError, match="another logger writes this file; name two files"):
        run(f"csv:{tmp_path / 'scores.csv'}", f"csv:{tmp_path / 'link.csv'}")
    run(f"csv:{tmp_path / 'link.csv'}")
    assert (tmp_path / "link.csv").is_symlink() and (tmp_path / "scores.csv").read_text()


def test_many_silent_clients_hold_few_threads(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedServer, "patience", 60.0)
    before, served = threading.active_count(), logger(f"prometheus:{port}")
    strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
    refused, until = 0, time.monotonic() + 20
    while refused < 100 - BoundedServer.most and time.monotonic() < until:
        refused = len(select.select(strangers, [], [], 0.05)[0])  # they were hung up on
    assert refused == 100 - BoundedServer.most
    assert threading.active_count() - before <= 2 * BoundedServer.most + 1, "a thread and a timer each, and the server"
    served.ended(None, "")
    for stranger in strangers:
        stranger.close()


def test_slow_clients_do_not_keep_others_out_for_long(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedServer, "patience", 1.0)
    served = logger(f"prometheus:{port}")
    strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(BoundedServer.most)]
    answered, until = False, time.monotonic() + 20
    while not answered and time.monotonic() < until:
        for stranger in strangers:
            with suppress(OSError):
                stranger.send(b"G")  # never silent, and never done
        with suppress(OSError):
            answered = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=2).status == 200
        time.sleep(0.05)
    served.ended(None, "")
    for stranger in strangers:
        stranger.close()
    assert answered


def test_the_last_report_has_no_speed() -> None:
    """After the last sample only the clock goes on, which is not a speed of 0."""
    before = Progress(phase="training", seconds=1.0, samples=100)
    assert rates(before, Progress(phase="training", seconds=2.0, samples=150))["train/samples_per_second"] == 50
    assert "train/samples_per_second" not in rates(before, Progress(phase="ended", seconds=1.1, samples=100))
