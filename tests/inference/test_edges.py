"""What comes from outside: bodies of clients, bytes of replicas, words of a command line."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from typer.testing import CliRunner

from covey.cli import app
from covey.cli.models.serving_flags import objective
from covey.errors import PlanError, WireError
from covey.inference.endpoint import EdgeSettings, Endpoint
from covey.inference.front_driver import FrontDriver
from covey.inference.messages import FRONT, AnsweredBatch, ReplicaReady, RequestBatch
from covey.inference.request_desk import FrontSettings
from covey.inference.schema import InputSchema, key_of
from covey.inference.served_model import ModelPlace, ServedModel, load
from covey.inference.versions.bandit import Exp3
from covey.message import PREFIX, Address, Message, MessageStream, streamed
from covey.page.host_names import own_names
from covey.vector import Vector

PICTURE = InputSchema((2, 2), "float32")
TOKENS = InputSchema((3,), "int64")


def test_inputs_of_the_schema_are_read() -> None:
    assert torch.equal(PICTURE.read(b'{"input": [[1, 2.5], [3, -4e2]]}'), torch.tensor([[1, 2.5], [3, -400]]))
    assert torch.equal(TOKENS.read(b'{"input": [1, 2, 9007199254740993]}'), torch.tensor([1, 2, 9007199254740993]))
    assert TOKENS.read(b'{"input": [16777217.0, 9007199254740993, 1e3]}').tolist() == [16777217, 9007199254740993, 1000]
    assert InputSchema((1, 1), "int64").read(b'{"input": [[9223372036854775807]]}').tolist() == [[2**63 - 1]]
    assert InputSchema((), "float64").read(b'{"input": 0.1}').item() == 0.1
    assert InputSchema((2,), "bool").read(b'{"input": [true, false]}').tolist() == [True, False]
    assert InputSchema((1,), "uint8").read(b'{"input": [255]}').tolist() == [255]
    assert InputSchema((1,) * 6, "float32").read(b'{"input": [[[[[[3]]]]]]}').item() == 3
    assert PICTURE.read(b'{"input": [[1, 2], [3, 3.4028235e38]]}')[1, 1].isfinite()


@pytest.mark.parametrize(
    ("schema", "body", "why"),
    [
        (PICTURE, b"", "JSON object"),
        (PICTURE, b"[1]", "JSON object"),
        (PICTURE, b"[" * 100_000, "JSON object"),
        (PICTURE, b"\xff\xfe", "JSON object"),
        (PICTURE, b'{"inputs": [[1, 2], [3, 4]]}', "must have `input`"),
        (PICTURE, b'{"input": [[1, 2], [3, 4]], "more": 1}', "nothing else"),
        (PICTURE, b'{"input": [[1, 2], [3]]}', "not a tensor"),
        (PICTURE, b'{"input": [1, 2, 3, 4]}', r"shape \[4\]"),
        (PICTURE, b'{"input": [[1, 2], [3, "4"]]}', "not a tensor"),
        (PICTURE, b'{"input": [[1, 2], [3, null]]}', "not a tensor"),
        (PICTURE, b'{"input": [[1, 2], [3, 1e39]]}', "too large for float32"),
        (PICTURE, b'{"input": {"a": 1}}', "not a tensor"),
        (PICTURE, b'{"input": [[true, 2], [3, 4]]}', "true or false, .* other than numbers of float32"),
        (InputSchema((), "float16"), b'{"input": false}', "other than numbers of float16"),
        (TOKENS, b'{"input": [1, 2, 3.5]}', "other than numbers of int64"),
        (TOKENS, b'{"input": [true, false, true]}', "other than numbers of int64"),
        (TOKENS, b'{"input": [1, 2, 99999999999999999999]}', "JSON object"),
        (TOKENS, b'{"input": [1, 2, 9223372036854775808]}', "other than numbers of int64"),
        (TOKENS, b'{"input": [1, 2, 9007199254740993.0]}', "other than numbers of int64"),
        (TOKENS, b'{"input": [1, 2, 9223372036854775808.0]}', "other than numbers of int64"),
        (TOKENS, b'{"input": [1, true, 2]}', "True, which is something other than numbers of int64"),
        (TOKENS, b'{"input": [1, 2, [3]]}', "list, which is something other than numbers of int64"),
        (TOKENS, b'{"input": [1, 2]}', r"another shape than \[3\]"),
        (InputSchema((1,), "uint8"), b'{"input": [256]}', "other than numbers of uint8"),
        (InputSchema((1,), "bool"), b'{"input": [1]}', "other than numbers of bool"),
    ],
)
def test_other_inputs_are_refused(schema: InputSchema, body: bytes, why: str) -> None:
    with pytest.raises(WireError, match=why):
        schema.read(body)


def test_equal_inputs_have_equal_keys() -> None:
    one, other = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5])
    assert key_of(one) == key_of(one.clone()) != key_of(other)


def test_messages_come_out_of_a_stream_however_it_is_cut() -> None:
    rows = Vector([torch.arange(6.0).view(3, 2)])
    data = b"".join(streamed(RequestBatch(number, rows, sender=FRONT)) for number in range(3))
    for piece in (1, 7, len(data)):
        stream = MessageStream(FRONT)
        cut = [data[at : at + piece] for at in range(0, len(data), piece)]
        found: list[Any] = [message for part in cut for message in stream.feed(part)]
        assert [one.number for one in found] == [0, 1, 2]
        assert all(torch.equal(one.rows.parts[0], rows.parts[0]) for one in found)


def test_bytes_that_are_no_message_are_refused() -> None:
    good = streamed(AnsweredBatch(1, Vector([torch.ones(2, 2)]), sender=FRONT))
    long = good[:4] + (20).to_bytes(8) + good[PREFIX:] + bytes(4)
    with pytest.raises(WireError, match="announced tensors of 16 bytes and sent 20"):
        list(MessageStream(FRONT).feed(long))
    short = good[:4] + (3).to_bytes(8) + good[PREFIX:]
    for bad in (b"\xff" * 64, b"\0" * 64, short, good[:PREFIX] + b"\xc1" * 400):
        with pytest.raises(WireError):
            list(MessageStream(FRONT).feed(bad))


def test_objectives_are_a_percentile_and_a_time() -> None:
    assert objective("p99:50ms") == (0.99, 0.05) and objective("p99.9:2s") == (pytest.approx(0.999), 2)
    for bad in ("50ms", "p0:50ms", "p100:1s", "p99", "p99:", "99:50ms", "p99:soon"):
        with pytest.raises(PlanError):
            objective(bad)


def test_models_that_do_not_answer_each_input_are_refused() -> None:
    def served(forward: Any) -> ServedModel:
        return ServedModel("mine", forward, None)  # type: ignore[arg-type]

    rows = torch.ones(2, 3)
    assert torch.equal(served(lambda rows: rows + 1)(rows), rows + 1)
    for bad in (lambda rows: (rows, rows), lambda rows: rows.sum(), lambda rows: rows[:1]):
        with pytest.raises(PlanError, match="mine answers 2 inputs with"):
            served(bad)(rows)
    with pytest.raises(ValueError, match="NaN"):
        served(lambda rows: rows / 0)(rows)


def weights(**more: Tensor) -> dict[str, Tensor]:
    return {"1.weight": torch.zeros(64, 64), "1.bias": torch.zeros(64), "3.weight": torch.zeros(10, 64), **more}


def test_a_file_of_weights_needs_its_task_and_must_fit_it(tmp_path: Path) -> None:
    file, task = tmp_path / "model.safetensors", "examples/digits.py"
    save_file(weights(**{"3.bias": torch.arange(10.0)}), file)
    model = load(ModelPlace(file=str(file), task=task))
    assert torch.equal(model(model.example())[0], torch.arange(10.0))
    assert model.schema() == InputSchema((8, 8), "float32")
    with pytest.raises(PlanError, match="--task FILE"):
        load(ModelPlace(file=str(file)))
    save_file(weights(), file)
    with pytest.raises(PlanError, match=r"only the model has '3\.bias'"):
        load(ModelPlace(file=str(file), task=task))
    file.write_bytes(b"no tensors")
    with pytest.raises(PlanError, match="cannot be read as safetensors"):
        load(ModelPlace(file=str(file), task=task))
    with pytest.raises(PlanError, match="cannot be read as safetensors"):
        load(ModelPlace(file=str(tmp_path / "none.safetensors"), task=task))


DROPOUT = """
import covey, torch
from torch import nn
task = covey.Task(
    model=lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 2)), data=(torch.ones(8, 4), torch.zeros(8, 2)),
    loss=nn.functional.mse_loss, optimizer=lambda params: torch.optim.SGD(params, lr=0.1), batch_size=4,
)
"""


def test_a_served_file_computes_without_dropout(tmp_path: Path) -> None:
    file, task = tmp_path / "model.safetensors", tmp_path / "task.py"
    task.write_text(DROPOUT)
    save_file({"1.weight": torch.ones(2, 4), "1.bias": torch.zeros(2)}, file)
    model = load(ModelPlace(file=str(file), task=str(task)))
    assert torch.equal(model(torch.ones(64, 4)), torch.full((64, 2), 4.0))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("m.safetensors", "--task FILE"),
        ("m.safetensors --task examples/digits.py --slo soon", "--slo soon"),
        ("m.safetensors --task examples/digits.py --slo p99:50ms --deadline 10ms", "at least as long as the objective"),
        ("m.safetensors --task examples/digits.py --port 70000", "65535"),
        ("m.safetensors --task examples/digits.py --canary n.safetensors", "such as digits:4=5%"),
        ("m.safetensors --task examples/digits.py --canary n.safetensors=0%", "not between 0 and 100 %"),
        ("m.safetensors --task examples/digits.py --canary n.safetensors=5% --also o.safetensors", "give one"),
        ("m.safetensors --task examples/digits.py --select exp4", "--also NAME"),
        ("m.safetensors --task examples/digits.py --also n.safetensors --select best", "--select best"),
        ("m.safetensors --task examples/digits.py --engine mpi", "run covey serve on each"),
        ("m.safetensors --task examples/digits.py --engine lab(rate=100mbit)", "omit rate"),
        ("m.safetensors --task examples/digits.py --engine lab(hosts=x)", "hosts must be"),
        ("m.safetensors --task examples/digits.py --engine lab --plan a --prices b", "omit --engine"),
        ("m.safetensors --task examples/digits.py --replicas 0", "the fewest and the most, such as 1:8"),
        ("m.safetensors --task examples/digits.py --replicas 3:2", "the fewest and the most, such as 1:8"),
        ("m.safetensors --task examples/digits.py --tls-key k.pem", "TLS needs both"),
        ("m.safetensors --task examples/digits.py --tls-key k.pem --tls-certificate c.pem", "there is no such file"),
        ("m.safetensors --task examples/digits.py --host 0.0.0.0 --port 0", "can be reached by others"),
        ("m.safetensors --task examples/digits.py --plan examples/arrivals.csv", "a plan needs both"),
        ("m.safetensors --task examples/digits.py --json plan.json", "a plan needs both"),
        ("m.safetensors --task examples/digits.py --plan none.csv --prices examples/prices.toml", "--plan none.csv"),
        ("nothing", "there are no models in"),
    ],
)
def test_requests_that_cannot_be_served_are_refused(
    words: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "mno":
        (tmp_path / f"{name}.safetensors").touch()
    (tmp_path / "examples").symlink_to(Path("examples").absolute())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COVEY_STORE", str(tmp_path / "store"))
    shown = CliRunner().invoke(app, ["serve", *words.split()])
    assert shown.exit_code == 2 and why in shown.output, shown.output


def test_a_token_is_asked_of_everybody() -> None:
    edge = Endpoint(["mine"], PICTURE, None, None, EdgeSettings(token="secret"))  # type: ignore[arg-type]

    def status(method: str, path: str, word: bytes) -> int:
        headers, sent = [(b"authorization", word)] if word else [], []

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        asyncio.run(edge({"type": "http", "method": method, "path": path, "headers": headers}, receive, send))
        return int(sent[0]["status"])

    for wrong in (b"", b"Bearer", b"Bearer secre", b"Bearer secret2", b"Basic secret", b"Bearer \xff"):
        assert status("GET", "/schema", wrong) == status("POST", "/predict", wrong) == 401
    assert status("GET", "/schema", b"Bearer secret") == 200
    assert status("POST", "/predict", b"Bearer secret") == 415


async def call(edge: Endpoint, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, Any]:
    """What an endpoint answers, as a server of ASGI would ask it."""
    sent: list[Any] = []
    given = {"content-type": "application/json"} | headers

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    raw = [(key.lower().encode(), value.encode()) for key, value in given.items()]
    await edge({"type": "http", "method": method, "path": path, "headers": raw}, receive, send)
    return sent[0]["status"], json.loads(sent[1]["body"])


def test_only_who_was_answered_can_judge_the_answer() -> None:
    """A stranger who tries the first numbers changes nothing."""

    async def judged() -> None:
        def send(to: Address, message: Message) -> None:
            assert isinstance(message, RequestBatch)
            reply = AnsweredBatch(message.number, message.rows, sender=to)
            asyncio.get_running_loop().call_soon(driver.deliver, reply)

        driver = FrontDriver(FrontSettings(objective=100.0, deadline=100.0), send, choice=Exp3(2))
        edge = Endpoint(["old", "new"], InputSchema((1,), "float32"), driver, None, EdgeSettings())  # type: ignore[arg-type]
        try:
            for rank in (0, 1):
                driver.deliver(ReplicaReady(sender=Address("replica", rank)))
            told = [(await call(edge, "POST", "/predict", b'{"input": [%d]}' % n))[1] for n in range(20)]
            for number in range(20):
                for guess in (f'"{number:016x}"', str(number)):
                    assert (await call(edge, "POST", "/feedback", b'{"id": %s, "loss": 1}' % guess.encode()))[0] >= 400
            assert list(driver.choice.shares()) == [0.5, 0.5]
            body = json.dumps({"id": told[0]["id"], "loss": 1}).encode()
            assert (await call(edge, "POST", "/feedback", body))[0] == 200
        finally:
            driver.close()

    asyncio.run(judged())


def test_a_page_whose_name_leads_to_this_machine_gets_nothing() -> None:
    settings = EdgeSettings(hosts=own_names("Box", "127.0.1.1"))
    edge = Endpoint(["mine"], PICTURE, None, None, settings)  # type: ignore[arg-type]
    for host in ("127.0.0.1:8480", "localhost", "LOCALHOST:1", "[::1]:8480", "[::1]", "box:80", "127.0.1.1:8480"):
        assert asyncio.run(call(edge, "GET", "/schema", host=host))[0] == 200, host
    for host in ("evil.example:8480", "", "evil", "127.0.0.1.evil.example", "localhost:1:evil", "[::2]:8480", "é",
                 "localhost:evil.com", "localhost:80@evil.com", "localhost:-1", "localhost:8480\n"):  # fmt: skip
        status, told = asyncio.run(call(edge, "GET", "/schema", host=host))
        assert status == 421 and "127.0.0.1" in told["error"], host
    for hosts in (("evil.example", "localhost"), ("localhost", "evil.example"), ("localhost", "localhost")):
        status, told = asyncio.run(call(edge, "GET", "/schema", host=hosts[0], Host=hosts[1]))
        assert status == 400 and "one Host" in told["error"], hosts


def test_feedback_for_one_version_says_what_would_use_it_whatever_was_sent() -> None:
    async def judged() -> list[tuple[int, Any]]:
        driver = FrontDriver(FrontSettings(objective=100.0, deadline=100.0), lambda to, message: None)
        edge = Endpoint(["mine"], PICTURE, driver, None, EdgeSettings())  # type: ignore[arg-type]
        try:
            return [await call(edge, "POST", "/feedback", body) for body in (b'{"id": "1", "loss": 1}', b"{")]
        finally:
            driver.close()

    for status, told in asyncio.run(judged()):
        assert status == 409 and "with --also NAME" in told["error"]


def test_what_a_client_has_sent_is_not_repeated_at_length() -> None:
    edge = Endpoint(["mine", "other"], PICTURE, None, None, EdgeSettings())  # type: ignore[arg-type]
    long = "k" * 500_000
    for path, body in (("/predict", {long: 1}), ("/predict", {"input": long}), ("/feedback", {long[:4000]: 1})):
        status, told = asyncio.run(call(edge, "POST", path, json.dumps(body).encode()))
        assert status == 422 and 10 < len(told["error"]) < 600
