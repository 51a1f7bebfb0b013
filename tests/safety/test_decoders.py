"""No bytes from another process bring a decoder to raise anything but its refusal; and no decoder is missing here."""

from __future__ import annotations

import ast
from pathlib import Path

import msgspec
import pytest

import covey
from covey.decoding import WIRE_FORMATS
from covey.errors import WireError
from covey.message import Address, Header, Shape, read_header
from tests.safety.decoders import TARGETS, every_module, fuzz, kinds

SRC = Path(covey.__file__).parent
MOMENT, LONG = 1500, 100_000  # of each target

DECODING = ("loads", "load", "decode", "convert", "unpack", "unpack_from", "Decoder")
"""Calls that make something of bytes, as they end."""

LIBRARIES = ("msgspec", "msgspec.msgpack", "msgspec.json", "json", "tomllib", "struct", "pickle", "safetensors.torch")

ELSEWHERE = {
    "message.py": "bodies of messages: links",
    "engines/transport/frames.py": "prefixes of frames: links",
    "engines/transport/shared/lane.py": "frames in shared memory: links",
    "engines/transport/cipher/records.py": "heads and answers: tests/engines/test_cipher.py",
    "engines/cluster/memory_broker.py": "the kernel's word of a peer, then a number of files: test_memory_broker",
    "engines/cluster/fork_broker.py": "the number of a process: test_fork_broker",
    "engines/native/mpi_service.py": "the kernel's word of a peer",
    "engines/lab/iproute.py": "what the ip command says",
    "engines/process/launcher/roster.py": "tallies of a checkpoint: test_hostile_progress",
    "engines/process/launcher/keeping.py": "seconds of a checkpoint: test_hostile_progress",
    "observe/referee.py": "history of a checkpoint: test_hostile_progress",
    "data/storage/mds.py": "files: tests/data/storage/test_hostile_shards.py",
    "data/storage/tensors.py": "files: tests/data/storage/test_hostile_shards.py",
    "data/storage/packing.py": "what it has just written itself",
    "store/tensors.py": "files by their hash: tests/store/test_hostile_store.py",
    "checkpoint/files.py": "files: test_hostile_checkpoints",
    "checkpoint/record.py": "files: test_hostile_checkpoints",
    "checkpoint/role_state.py": "files: test_hostile_checkpoints",
    "checkpoint/blocks.py": "files: test_hostile_checkpoints",
    "run/virtual_restarts.py": "tallies of a checkpoint: test_hostile_progress",
    "observe/journal.py": "files: tests/observe/test_journal.py",
    "run/federated/service_checkpoints.py": "rounds of a checkpoint: tests/federated/test_service_checkpoints.py",
    "run/own_loop/keeping.py": "what a checkpoint keeps of a loop: test_keeping",
    "inference/planning.py": "files: tests/inference/test_planning.py",
    "inference/path/path_probe.py": "answers of an endpoint of its own: tests/inference/test_path.py",
    "simulate/cluster_file.py": "files: test_fuzz",
    "topology/weights.py": "files: test_directed",
    "parallelism/plan/plan_file.py": "files: tests/parallelism/test_saved_layouts.py",
    "compare/finished_runs.py": "files: tests/compare",
    "exchange/kernels/gpu/choosing.py": "bits of a number of its own",
    "engines/process/role/op_profiler.py": "a file that torch has just written here: tests/real/test_profile.py",
    "engines/handover.py": "the one that unpickles: test_lint",
}
"""Files that decode on their own, and what tests them."""


def calls(file: Path) -> set[str]:
    """Which of those calls a file has; codecs' own and text's `decode` are others."""
    found = set()
    for call in ast.walk(ast.parse(file.read_text())):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in DECODING:
            owner = ast.unparse(call.func.value)
            if owner in LIBRARIES or (owner.startswith("_") and call.func.attr != "decode"):
                found.add(f"{owner}.{call.func.attr}")
    return found


def test_nobody_decodes_elsewhere() -> None:
    """What comes from another process is read by a WireFormat, which is fuzzed; or stands in the list above."""
    found = {str(file.relative_to(SRC)) for file in SRC.rglob("*.py") if calls(file)}
    assert found == set(ELSEWHERE)


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_damaged_is_refused_by_name(name: str) -> None:
    seen = fuzz(name, MOMENT, seed=7)
    assert sum(seen.values()) >= MOMENT // 20, "some must get through, or nothing behind the door was tried"


@pytest.mark.full
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", TARGETS)
def test_many_frames(name: str, seed: int) -> None:
    """Both seeds of the three together: 600,000."""
    seen = fuzz(name, LONG, seed)
    if name == "formats":
        assert {form.name for form in WIRE_FORMATS} == set(seen), "every format was also read"
    if name == "links":
        assert {kind.wire_name for kind in kinds()} <= set(seen), "every kind of message also came through"


@pytest.mark.parametrize("deep", [b"\x91", b"\x81\xa0", b"\x92\xc0"])
def test_two_kilobytes_of_nesting_are_refused(deep: bytes) -> None:
    """They killed their receiver: a RecursionError is no DecodeError."""
    every_module()
    bomb = (deep * 2048)[:2048]
    for form in WIRE_FORMATS:
        if form.form == "msgpack":
            for data in (bomb, b"\x94\xa1x\x92\xa6worker\x01\x90" + bomb, b"\x92\x90" + bomb):
                with pytest.raises(WireError, match=form.name):
                    form.read(data, "worker 1")


def test_what_is_too_long_is_refused_before_it_is_read() -> None:
    every_module()
    (shelves,) = [form for form in WIRE_FORMATS if form.name == "place of numbers in shared memory"]
    with pytest.raises(WireError, match=r"worker 1 sent a place of numbers .* the limit is"):
        shelves.read(bytes(shelves.most + 1), "worker 1")


def test_dimensions_that_torch_cannot_multiply_are_refused() -> None:
    """Beside a dimension of 0 they take no room, and so pass any limit of bytes."""
    dims = Header("shard.pull", Address("worker", 1), (Shape("float32", (0, 1 << 62, 1 << 62)),), msgspec.Raw(b"\x80"))
    with pytest.raises(WireError, match="a tensor that cannot be"):
        read_header(msgspec.msgpack.encode(dims), 1 << 20, Address("worker", 1))
