"""A real endpoint: processes, sockets, clients."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.inference.running import TASK, RunningEndpoint, asked, children, serving, until


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEndpoint]:
    """Patient: on a busy machine it may take long until a replica is back."""
    with serving(tmp_path_factory.mktemp("served"), deadline="100s") as endpoint:
        yield endpoint


def test_requests_are_answered_or_refused_with_what_is_expected(endpoint: RunningEndpoint) -> None:
    assert endpoint.predict(1, 2.5) == (200, {"output": [2.0, 5.0], "model": "model.safetensors"})
    expected = {"input": {"shape": [2], "dtype": "float32"}}
    assert endpoint.ask("GET", "/schema") == (200, {"model": "model.safetensors", **expected})
    assert endpoint.ask("GET", "/health") == (200, {"model": "model.safetensors", "replicas": 2})
    status, told = endpoint.predict(1, 2, 3)
    assert status == 422 and told == {"error": "`input` has the shape [3]", "expected": expected}
    assert endpoint.predict(1, -1) == (500, {"error": "ValueError: a negative number"})
    assert endpoint.ask("POST", "/predict", b" " * 20_000)[0] == 413
    assert endpoint.ask("POST", "/predict", b'{"input": [1, 2]}', Content_Type="text/plain")[0] == 415
    assert endpoint.ask("GET", "/schema", Host=f"evil.example:{endpoint.port}")[0] == 421
    assert endpoint.ask("GET", "/predict")[0] == endpoint.ask("GET", "/")[0] == 404
    status, told = endpoint.ask("POST", "/feedback", b'{"id": "0000000000000000", "loss": 0.5}')
    assert status == 409 and "serve others too, with --also NAME" in told["error"]
    assert endpoint.ask("POST", "/feedback", b'{"id": "1", "loss": 0.5}') == (status, told)
    assert endpoint.ask("GET", "/stats")[1]["answers"]["500"] == 1
    until(lambda: [(one.replicas, one.answers.get("500")) for one in endpoint.shown()] == [(2, 1)])


def test_a_body_that_grows_without_being_announced_is_cut_off(endpoint: RunningEndpoint) -> None:
    with socket.create_connection(("127.0.0.1", endpoint.port), timeout=60) as link:
        link.sendall(
            b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        link.sendall(b"1000\r\n" + b" " * 4096 + b"\r\n" + b"2000\r\n" + b" " * 8192 + b"\r\n")
        assert link.recv(100).startswith(b"HTTP/1.1 413")


def test_replicas_that_are_killed_under_load_cost_no_answer(endpoint: RunningEndpoint) -> None:
    with asked(endpoint, lambda number: [2.0 * number, 2.0]) as found:
        for victim in (0, 1):
            before = sum(found.values())
            until(lambda before=before: sum(found.values()) > before + 100)  # type: ignore[misc]
            os.kill(endpoint.replicas()[victim], signal.SIGKILL)
            until(lambda lost=victim + 1: endpoint.standing() == (2, lost))  # type: ignore[misc]
            assert endpoint.logged("lost") == endpoint.logged("back") == victim + 1
    assert set(found) == {(200, True)}


def test_an_input_that_ends_its_replica_is_given_up_and_others_are_answered(endpoint: RunningEndpoint) -> None:
    found: list[tuple[int, Any]] = []
    deadly = threading.Thread(target=lambda: found.append(endpoint.predict(1e6, 1)))
    deadly.start()
    answers = [endpoint.predict(number, 0)[0] for number in range(50)]
    deadly.join()
    assert set(answers) == {200}
    assert found == [(500, {"error": "2 replicas ended while they computed it"})]


def test_it_ends_well_and_leaves_no_process(endpoint: RunningEndpoint) -> None:
    until(lambda: endpoint.ask("GET", "/health")[1]["replicas"] == 2)
    replicas = endpoint.replicas()
    endpoint.process.terminate()
    assert endpoint.process.wait(30) == 0
    assert endpoint.shown() == [], "the page does not show it any more"
    assert len(replicas) == 2 and not any(Path(f"/proc/{pid}").exists() for pid in replicas)


def test_replicas_come_with_the_load_and_go_after_it(tmp_path: Path) -> None:
    """24 clients ask all the time, and a replica takes 2 ms for at most 4 of them."""
    with serving(tmp_path, deadline="100s", replicas="1:3", more="--slo p99:20ms --largest-batch 4") as endpoint:
        assert endpoint.standing() == (1, 0)
        over = threading.Event()

        def client() -> None:
            while not over.is_set():
                assert endpoint.predict(1, 2)[0] == 200

        with ThreadPoolExecutor(24) as clients:
            asked = [clients.submit(client) for _ in range(24)]
            until(lambda: endpoint.standing()[0] > 1)
            over.set()
            for one in asked:
                one.result()
        until(lambda: endpoint.standing() == (1, 0) and len(endpoint.replicas()) == 1)
        assert endpoint.predict(1, 2)[0] == 200


def test_a_new_version_is_tried_and_promoted(tmp_path: Path) -> None:
    save_file({"scale": torch.tensor([3.0])}, tmp_path / "new.safetensors")
    more = "--canary new.safetensors=40% --canary-requests 40 --slo p99:100s"
    with serving(tmp_path, deadline="100s", replicas="1", more=more) as endpoint:
        found: Counter[tuple[str, float]] = Counter()

        def promoted() -> bool:
            for _ in range(10):
                told = endpoint.predict(sum(found.values()), 1)[1]
                found[told["model"], told["output"][1]] += 1
            return bool(endpoint.ask("GET", "/stats")[1]["versions"]["new.safetensors"] == 1)

        until(lambda: promoted() and sum(map(len, map(children, children(endpoint.process.pid)))) == 1)
        assert set(found) == {("model.safetensors", 2.0), ("new.safetensors", 3.0)}
        assert {endpoint.ask("GET", path)[1]["model"] for path in ("/health", "/schema")} == {"new.safetensors"}
        assert endpoint.process.stdout is not None
        assert endpoint.process.stdout.readline().startswith("new.safetensors is promoted: 0 failed and 0 late of 4")
        status, told = endpoint.ask("POST", "/feedback", b'{"id": "0000000000000003", "loss": 0.5}')
        assert status == 409 and told["error"].startswith("errors and times judge a canary: serve both versions with")
        for bad in (b"{ID}", b'{ID, "loss": 2}', b'{ID, "loss": 0, "label": 1}', b'{"id": "3", "loss": 0}', b"{"):
            assert endpoint.ask("POST", "/feedback", bad.replace(b"ID", b'"id": "0000000000000003"'))[0] == 422


def test_feedback_is_used_once_or_refused(tmp_path: Path) -> None:
    save_file({"scale": torch.tensor([3.0])}, tmp_path / "new.safetensors")
    with serving(tmp_path, deadline="100s", replicas="1", more="--also new.safetensors") as endpoint:
        told = endpoint.predict(1, 2)[1]

        def judge(**given: Any) -> tuple[int, Any]:
            return endpoint.ask("POST", "/feedback", json.dumps(given).encode())

        refused = [judge(id=told["id"], label=1), judge(id="0" * 16, loss=1)]
        assert judge(id=told["id"], loss=1) == (200, {})
        refused.append(judge(id=told["id"], loss=1))
        assert [status for status, _ in refused] == [409] * 3
        assert "exp3 reads losses" in refused[0][1]["error"] and "judged already" in refused[2][1]["error"]
        assert endpoint.ask("GET", "/stats")[1]["versions"][told["model"]] < 0.5


@pytest.mark.full
def test_a_task_with_threads_is_loaded_by_each_replica(tmp_path: Path) -> None:
    """A fork would not have the thread that answers here."""
    thread = """
from queue import SimpleQueue
from threading import Thread
asked, told = SimpleQueue(), SimpleQueue()
Thread(target=lambda: [told.put(asked.get()) for _ in iter(int, 1)], daemon=True).start()
"""
    task = thread + TASK.replace("return rows *", "asked.put(rows)\n        return told.get() *")
    with serving(tmp_path, deadline="100s", task=task) as endpoint:
        assert endpoint.predict(1, 2.5)[1]["output"] == [2.0, 5.0]
        os.kill(endpoint.replicas()[0], signal.SIGKILL)
        until(lambda: endpoint.standing() == (2, 1))
        assert endpoint.predict(1, 2)[0] == 200


def test_a_replica_that_hangs_is_replaced(tmp_path: Path) -> None:
    with serving(tmp_path, deadline="5s") as endpoint:
        os.kill(endpoint.replicas()[0], signal.SIGSTOP)
        with ThreadPoolExecutor(4) as clients:
            answers = Counter(
                status for status, _ in clients.map(lambda number: endpoint.predict(number, 0), range(40))
            )
        assert set(answers) <= {200, 504} and answers[504] <= 4, "only the batch that it had is late"
        until(lambda: endpoint.standing() == (2, 1))
