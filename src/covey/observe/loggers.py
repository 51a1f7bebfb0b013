"""`--log KIND:WHERE`: what a run reports, in the form that other tools read; docs/loggers.md lists names and units."""

from __future__ import annotations

import csv
import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from io import StringIO
from math import isnan
from pathlib import Path
from threading import BoundedSemaphore, Thread, Timer
from typing import Any

from covey import atomic_file
from covey.errors import PlanError
from covey.names import meant
from covey.observe.callbacks import Callback
from covey.observe.facts import RunFacts
from covey.observe.progress import Progress, Row
from covey.observe.result import Result

OURS = ("seconds", "samples", "bytes")


def logger(text: str) -> Callback:
    """The logger that `KIND:WHERE` names; refused before a run starts if it cannot work."""
    kind, _, where = text.partition(":")
    if kind not in LOGGERS:
        raise PlanError(f"--log {text}: there is no logger {kind!r}{meant(kind, sorted(LOGGERS))}; {HOW}")
    return LOGGERS[kind](where)


def scores(row: Row) -> dict[str, float]:
    """The metrics of a line of history, and its loss."""
    numbers = {name: float(value) for name, value in row.items() if name not in OURS and value is not None}
    return {name: value for name, value in numbers.items() if not isnan(value)}  # nan: before the first step


def totals(now: Progress) -> tuple[int, int, int]:
    """What only grows."""
    return now.samples, now.updates, now.bytes


def rates(before: Progress | None, now: Progress) -> dict[str, float]:
    """What is reported between two scores."""
    found = {"train/samples": float(now.samples), "train/updates": float(now.updates), "train/bytes": float(now.bytes)}
    if now.loss is not None:
        found["train/loss"] = now.loss
    if now.staleness is not None:
        found["train/staleness"] = now.staleness
    if before and now.seconds > before.seconds and now.phase != "ended":  # then only the clock has gone on
        found["train/samples_per_second"] = (now.samples - before.samples) / (now.seconds - before.seconds)
    return found


class CsvLogger(Callback):
    """One line for each score, in a file that is whole at any time."""

    name = "--log csv"

    def __init__(self, where: str) -> None:
        if not where:
            raise PlanError("--log csv: name the file, as in --log csv:scores.csv")
        atomic_file.check(Path(where), f"--log csv:{where}", "scores.csv")
        self.path, self.rows = atomic_file.meant(Path(where)), list[Row]()

    def scored(self, row: Row) -> None:
        if self.rows and self.rows[-1]["samples"] == row["samples"]:
            self.rows.pop()
        self.rows.append(row)
        self._write(self.rows)

    def ended(self, result: Result | None, why: str) -> None:
        if rows := result.history if result else self.rows:
            self._write(rows)

    def _write(self, rows: Sequence[Row]) -> None:
        names = list(dict.fromkeys(name for row in rows for name in row))
        text = StringIO()
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        atomic_file.write(self.path, text.getvalue())


class SteppedLogger(Callback):
    """A logger of named numbers over samples: what all loggers but csv have in common."""

    def __init__(self) -> None:
        self.before: Progress | None = None

    def reported(self, progress: Sequence[Progress]) -> None:
        now, before = progress[-1], totals(self.before) if self.before else (0, 0, 0)
        if (now.phase == "training" and now.samples > before[0]) or (now.phase == "ended" and totals(now) > before):
            self.log(rates(self.before, now), now.samples)
            self.before = now

    def scored(self, row: Row) -> None:
        self.log(scores(row), int(row["samples"] or 0))

    def log(self, numbers: Mapping[str, float], samples: int) -> None:
        raise NotImplementedError


class TensorboardLogger(SteppedLogger):
    """Scalars in double precision, in an event file of a folder."""

    name = "--log tensorboard"

    def __init__(self, where: str) -> None:
        super().__init__()
        if not where:
            raise PlanError("--log tensorboard: name the folder, as in --log tensorboard:logs")
        needed("tensorboard", "tensorboard")
        try:
            self.writer = import_module("torch.utils.tensorboard").SummaryWriter(where)
        except OSError as error:
            why = error.strerror or error
            raise PlanError(f"--log tensorboard:{where} cannot be written: {why}; choose another place") from None

    def log(self, numbers: Mapping[str, float], samples: int) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, samples, new_style=True, double_precision=True)
        self.writer.flush()

    def started(self, facts: RunFacts) -> None:
        self.writer.add_text("command", facts.command or facts.strategy)

    def ended(self, result: Result | None, why: str) -> None:
        self.writer.close()


class MlflowLogger(SteppedLogger):
    """A run of MLflow, with the strategy's settings as parameters."""

    name = "--log mlflow"

    def __init__(self, where: str) -> None:
        super().__init__()
        client = needed("mlflow", "mlflow").MlflowClient
        try:
            self.client = client(where or os.environ.get("MLFLOW_TRACKING_URI") or None)
            self.client.search_experiments(max_results=1)
        except Exception as error:  # of whatever store the URI names
            raise PlanError(f"--log mlflow:{where}: {str(error).splitlines()[0]}") from None
        self.run = ""

    def started(self, facts: RunFacts) -> None:
        found = self.client.get_experiment_by_name("covey")
        experiment = found.experiment_id if found else self.client.create_experiment("covey")
        self.run = self.client.create_run(experiment, run_name=facts.strategy).info.run_id
        known = {"task": facts.task, "strategy": facts.strategy, "engine": facts.engine, "workers": facts.workers}
        for name, value in {**known, "seed": facts.seed, **facts.settings}.items():
            self.client.log_param(self.run, name, str(value)[:500])

    def log(self, numbers: Mapping[str, float], samples: int) -> None:
        for name, value in numbers.items():
            self.client.log_metric(self.run, name, value, step=samples)

    def ended(self, result: Result | None, why: str) -> None:
        if self.run:
            self.client.set_terminated(self.run, "FINISHED" if result else "FAILED")


class WandbLogger(SteppedLogger):
    """A run of Weights & Biases; WHERE is the project."""

    name, patience = "--log wandb", 60.0  # its own process starts first, and sends the rest at the end

    def __init__(self, where: str) -> None:
        super().__init__()
        self.wandb, self.project = needed("wandb", "wandb"), where or "covey"
        self.run: Any = None

    def started(self, facts: RunFacts) -> None:
        config = {"task": facts.task, "strategy": facts.strategy, "engine": facts.engine, "workers": facts.workers}
        self.run = self.wandb.init(project=self.project, name=facts.strategy, config={**config, **facts.settings})

    def log(self, numbers: Mapping[str, float], samples: int) -> None:
        self.run.log({**numbers, "samples": samples})

    def ended(self, result: Result | None, why: str) -> None:
        if self.run:
            self.run.finish(exit_code=0 if result else 1)


class BoundedServer(ThreadingHTTPServer):
    """Answers at most a few at a time, each within a few seconds: whoever is silent or slow holds nothing for long."""

    most, patience = 32, 5.0  # connections; seconds that one may last
    request_queue_size = 128  # so that those that are refused do not keep others waiting
    daemon_threads = True

    def __init__(self, *args: Any) -> None:
        self.free = BoundedSemaphore(self.most)
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self.free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        late = Timer(self.patience, partial(_hang_up, request))
        late.daemon = True
        late.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            late.cancel()
            self.free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever asked has hung up, or was too slow: that is no trouble of the run's."""


def _hang_up(request: socket.socket) -> None:
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


class PrometheusLogger(SteppedLogger):
    """The newest numbers for whoever asks http://127.0.0.1:PORT/metrics, while the run lasts."""

    name = "--log prometheus"

    def __init__(self, where: str) -> None:
        super().__init__()
        if not where.isdigit() or not 0 < int(where) < 65536:
            raise PlanError(f"--log prometheus:{where}: name a port, as in --log prometheus:9100")
        self.numbers: dict[str, float] = {}
        self.labels = ""
        try:
            self.server = BoundedServer(("127.0.0.1", int(where)), self._handler())
        except OSError as error:
            raise PlanError(f"--log prometheus:{where}: {error.strerror}; choose another port") from None
        Thread(target=self.server.serve_forever, name="prometheus", daemon=True).start()

    def started(self, facts: RunFacts) -> None:
        strategy = facts.strategy.replace("\\", r"\\").replace('"', r"\"").replace("\n", " ")
        self.labels = f'{{strategy="{strategy}",engine="{facts.engine}"}}'

    def log(self, numbers: Mapping[str, float], samples: int) -> None:
        self.numbers |= numbers

    def ended(self, result: Result | None, why: str) -> None:
        self.server.shutdown()
        self.server.server_close()

    def text(self) -> Iterator[str]:
        for name, value in sorted(self.numbers.items()):
            safe = "covey_" + re.sub(r"[^a-zA-Z0-9_]", "_", name)
            yield f"# TYPE {safe} gauge\n{safe}{self.labels} {value!r}\n"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        logger = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 5  # seconds that a connection may say nothing

            def do_GET(self) -> None:
                known = self.path == "/metrics"
                body = "".join(logger.text()).encode() if known else b"see /metrics\n"
                self.send_response(200 if known else 404)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler


def needed(module: str, extra: str) -> Any:
    """The module, or how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise PlanError(f"--log {extra} needs a package: pip install 'covey[{extra}]' ({error})") from None


LOGGERS: Mapping[str, Callable[[str], Callback]] = {
    "csv": CsvLogger, "tensorboard": TensorboardLogger, "mlflow": MlflowLogger, "wandb": WandbLogger,
    "prometheus": PrometheusLogger,
}  # fmt: skip
HOW = "use csv:FILE, tensorboard:DIR, mlflow:URI, wandb:PROJECT or prometheus:PORT"
