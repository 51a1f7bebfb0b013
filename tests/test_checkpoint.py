"""How a run is kept: whole or not at all, and refused with the reason when it is not what it was."""

from __future__ import annotations

import json
import math
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from covey.checkpoint import KEEP, CheckpointDirectory, RoleState, RunRecord
from covey.checkpoint.blocks import read_index
from covey.checkpoint.packing import pack, unpack
from covey.errors import CheckpointError
from covey.message import Address, Message
from covey.model.named import members, named_numbers
from covey.model.replica import Replica
from covey.vector import Piece, Vector

BEFORE = Path(__file__).parent / "golden" / "checkpoint_2"
ME = Address("worker", 2)


class Kept(Message):
    """A message that waits in a mailbox."""

    wire_name = "test.checkpoint.kept"

    step: int
    share: float
    model: Vector


@dataclass(slots=True)
class Ledger:
    clocks: dict[int, int] = field(default_factory=dict)
    version: int = 0


def run(**given: Any) -> RunRecord:
    plain: dict[str, Any] = {
        "strategy": "bsp", "workers": 2, "servers": 1, "seed": 0, "samples": 10, "batch_size": 2, "limits": [5, None],
        "progress": {"seconds": 1.5},
    }  # fmt: skip
    return RunRecord(**{**plain, **given})


def state(**given: Any) -> RoleState:
    plain: dict[str, Any] = {
        "done": 3, "seconds": 1.25, "memories": {}, "replica": {}, "rng": Random(1), "mailbox": [],
    }  # fmt: skip
    return RoleState.of(**{**plain, **given})


def there_and_back(directory: Path, kept: RoleState) -> RoleState:
    kept.write(directory, ME)
    return RoleState.read(directory, ME)


def test_all_of_a_checkpoint_is_on_the_disk_before_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power cut `latest` names a whole checkpoint: this one, or the one before it."""
    done: list[str] = []
    sync, rename, replace = os.fsync, Path.rename, os.replace

    def synced(handle: int) -> None:
        done.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        sync(handle)

    def renamed(source: Path, target: Path) -> Path:
        done.append(f"-> {target.name}")
        return rename(source, target)

    def replaced(source: Path, target: Path) -> None:
        done.append(f"-> {target.name}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    monkeypatch.setattr(os, "replace", replaced)
    with CheckpointDirectory(tmp_path / "kept") as kept, kept.writing() as place:
        for who in (ME, Address("server", 0)):
            state().write(place, who)
        inside = {path.name for path in place.iterdir()} | {"run.json", place.name, f"{place.name}.latest"}
        final = kept.commit(place, run())
    counts = done.index(f"-> {final.name}")
    assert set(done[:counts]) == inside and done[counts - 1] == place.name, "the folder itself comes last"
    assert done[counts + 1 :] == ["-> latest", "kept"]


# -- a role ------------------------------------------------------------------------------------------------------------


def test_an_optimizer_comes_back(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(model.named_parameters(), lr=0.01, betas=(0.8, 0.9), amsgrad=True)
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    again = torch.optim.Adam(model.named_parameters())
    again.load_state_dict(
        there_and_back(tmp_path, state(replica={"optimizer": optimizer.state_dict()})).replica["optimizer"]
    )
    assert again.param_groups[0]["betas"] == (0.8, 0.9) and again.param_groups[0]["amsgrad"] is True
    for mine, theirs in zip(again.state.values(), optimizer.state.values(), strict=True):
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_chance_goes_on(tmp_path: Path) -> None:
    rng = Random(5)
    rng.gauss(0, 1)  # leaves a second number in the generator
    other = Random()
    there_and_back(tmp_path, state(rng=rng)).restore_chance(other)
    assert [other.gauss(0, 1), other.random()] == [rng.gauss(0, 1), rng.random()]


def test_messages_and_memories_come_back(tmp_path: Path) -> None:
    vector = Vector([torch.arange(4.0), torch.ones(2, dtype=torch.bfloat16), torch.zeros(0, dtype=torch.int64)])
    message = Kept(4, 0.5, vector, sender=ME)
    memories = {"ledger": Ledger({0: 3, 7: 1}, 9), "weight": 0.25, "model": vector, "list": [1, "a"]}
    kept = state(memories=memories, mailbox=[message])
    back = there_and_back(tmp_path, kept)
    assert back.recall("ledger", Ledger()) == Ledger({0: 3, 7: 1}, 9)
    assert back.recall("weight", 1.0) == 0.25
    assert back.recall("list", []) == [1, "a"]
    (waiting,) = back.mailbox
    assert isinstance(waiting, Kept) and (waiting.step, waiting.share, waiting.sender) == (4, 0.5, ME)
    for found in (back.recall("model", vector), waiting.model):
        assert [p.dtype for p in found.parts] == [p.dtype for p in vector.parts]
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(found.parts, vector.parts, strict=True))


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner, inner),
    max_leaves=10,
)


@given(value=plain)
def test_any_plain_value_comes_back(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    back = there_and_back(tmp_path_factory.mktemp("kept"), state(replica={"value": value}))
    assert back.replica["value"] == value


def test_two_names_of_one_tensor_are_kept(tmp_path: Path) -> None:
    base = torch.arange(6.0)
    back = there_and_back(tmp_path, state(replica={"all": base, "part": base[2:4], "across": base.reshape(2, 3).T}))
    assert back.replica["part"].tolist() == [2, 3] and back.replica["across"].shape == (3, 2)


def test_names_that_are_written_alike_keep_tensors_of_their_own(tmp_path: Path) -> None:
    one, two, three, four = (torch.full((2,), float(number)) for number in range(4))
    memories = {"by rank": {1: one, "1": two}, "by name": {"a": {"b": three}, "a/b": four}}
    found = there_and_back(tmp_path, state(memories=memories)).memories
    assert {key: value.tolist() for key, value in found["by rank"].items()} == {1: [0.0, 0.0], "1": [1.0, 1.0]}
    assert found["by name"]["a"]["b"].tolist() == [2.0, 2.0] and found["by name"]["a/b"].tolist() == [3.0, 3.0]


def test_what_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="it contains a object; use numbers, strings"):
        state(memories={"thing": object()}).write(tmp_path, ME)


def test_a_state_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no readable state of worker 2"):
        RoleState.read(tmp_path, ME)


def test_what_is_remembered_begins_in_memory_where_torch_lets_tensors_begin(tmp_path: Path) -> None:
    """Products of MKL differ with that in their last bit on AMD's processors."""
    memories = {"vectors": {str(size): Vector([torch.randn(size)]) for size in (83, 1, 84)}}
    waiting = [Kept(step=1, share=0.5, model=Vector([torch.randn(5)]), sender=ME) for _ in range(3)]
    found = there_and_back(tmp_path, state(memories=memories, mailbox=waiting))
    vectors = [*found.memories["vectors"].values(), *(message.model for message in found.mailbox)]
    assert [vector.parts[0].data_ptr() % 64 for vector in vectors] == [0] * 6


# -- blocks ------------------------------------------------------------------------------------------------------------


def blocks_of(
    replica: Replica, directory: Path
) -> dict[tuple[str, str, str, int], tuple[dict[str, Any], torch.Tensor]]:
    """What an outsider finds in a role's files: each block, and its numbers at its offset."""
    own = {"piece": replica.trained, "members": members(replica)}
    state(replica={**replica.state(), **own}).copied(named_numbers).write(directory, ME)
    data = (directory / "worker-2.safetensors").read_bytes()
    data = data[8 + int.from_bytes(data[:8], "little") :]
    found = {}
    for block in json.loads((directory / "worker-2.json").read_text())["blocks"]:
        inside = bytearray(data[block["offset"] : block["offset"] + block["size"]])
        numbers = torch.frombuffer(inside, dtype=getattr(torch, block["dtype"]))
        found[block["kind"], block["name"], block["key"], block["first"]] = block, numbers
    return found


def trained(servers: int = 1, server: int = 0, bare: bool = False, piece: Piece | None = None) -> Replica:
    """A replica that has taken two steps, and holds the piece of one of so many servers."""
    torch.manual_seed(1)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2).double())

    def make(pairs: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam([p for _, p in pairs] if bare else pairs, lr=0.1)

    replica = Replica(module, make)
    replica.keep(piece or replica.pieces(servers)[server], buffers=True)
    for _ in range(2):
        replica.grad.map(lambda part: part.normal_())
        replica.update()
    return replica


@pytest.mark.parametrize("bare", [False, True])
def test_every_tensor_of_the_model_and_its_optimizer_lies_where_its_block_says(tmp_path: Path, bare: bool) -> None:
    replica = trained(bare=bare)
    found = blocks_of(replica, tmp_path)
    wanted = {("parameter", name, ""): value for name, value in replica.module.named_parameters()}
    for name, value in replica.module.named_buffers():
        wanted["buffer" if value.is_floating_point() else "counter", name, ""] = value
    for name, parameter in replica.module.named_parameters():
        for key, value in replica.optimizer.state[parameter].items():
            wanted["optimizer", name, key] = value
    assert {key[:3] for key in found} == wanted.keys() and len(wanted) == 6 + 3 + 6 * 3
    for (kind, name, key, first), (block, numbers) in found.items():
        tensor = wanted[kind, name, key]
        assert first == 0 and block["shape"] == list(tensor.shape)
        assert torch.equal(numbers.view(tensor.shape), tensor), name


def test_servers_say_which_slices_they_hold(tmp_path: Path) -> None:
    parts = dict[tuple[str, str, str], list[tuple[int, int]]]()
    for server in range(2):
        (tmp_path / str(server)).mkdir()
        found = blocks_of(trained(2, server), tmp_path / str(server))
        for (kind, name, key, first), (_, numbers) in found.items():
            if key != "step" and kind in ("parameter", "optimizer"):
                parts.setdefault((kind, name, key), []).append((first, first + len(numbers)))
    sizes = {name: p.numel() for name, p in trained().module.named_parameters()}
    assert {name for _, name, _ in parts} == sizes.keys() and any(len(held) == 2 for held in parts.values())
    for (_, name, _), held in parts.items():
        ends = [0, *(stop for _, stop in held)]
        assert [start for start, _ in held] == ends[:-1] and ends[-1] == sizes[name]


def test_a_server_may_hold_several_slices_of_a_parameter(tmp_path: Path) -> None:
    replica = trained(piece=((1, 3, 5, 9, 14, 20), (0, 2)))
    found = blocks_of(replica, tmp_path)
    assert RoleState.read(tmp_path, ME).done == 3
    slices = {first: len(n) for (kind, name, _, first), (_, n) in found.items() if kind + name == "parameter0.weight"}
    assert slices == {1: 2, 5: 4}
    assert sum(key == "step" and name == "0.weight" for _, name, key, _ in found) == 1


def test_tensors_under_keys_of_equal_text_are_both_kept() -> None:
    tensors: dict[str, torch.Tensor] = {}
    zero, one, two, three = (torch.full((2,), float(number)) for number in range(4))
    tree = pack({1: zero, "1": one, "a": {"b": two}, "a/b": three}, tensors)
    found = unpack(json.loads(json.dumps(tree)), tensors)
    assert [float(got[0]) for got in (found[1], found["1"], found["a"]["b"], found["a/b"])] == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("start", [0, 1, 2, 3, 4])
def test_blocks_that_overlap_are_refused_however_little(start: int) -> None:
    first = {"kind": "buffer", "name": "a", "dtype": "int8", "shape": [3], "offset": 0, "size": 3}
    both = [{**first, "name": "b", "offset": start}, first]
    if start < 3:
        with pytest.raises(ValueError, match="the blocks '[ab]' and '[ab]' overlap"):
            read_index(both, 8)
    else:
        assert [block.name for block in read_index(both, 8)] == ["b", "a"]


def test_a_checkpoint_of_the_format_before_is_read() -> None:
    place, found = CheckpointDirectory(BEFORE).newest()
    assert json.loads((place / "run.json").read_text())["schema"] == "covey.checkpoint/2"
    assert (found.strategy, found.workers) == ("bsp + error_feedback + int8", 2)
    server = RoleState.read(place, Address("server", 0))
    named = {(one.kind, one.name, one.key): one for one in named_numbers(server.replica)}
    assert set(named) == {
        *(("parameter", name, "") for name in ("weight", "bias")),
        *(("optimizer", name, "momentum_buffer") for name in ("weight", "bias")),
    }
    momentum = server.replica["optimizer"]["state"][0]["momentum_buffer"]
    assert torch.equal(named["optimizer", "weight", "momentum_buffer"].numbers, momentum.reshape(-1))


# -- the vault ---------------------------------------------------------------------------------------------------------


def keep(checkpoints: CheckpointDirectory, **given: Any) -> Path:
    with checkpoints.writing() as place:
        state().write(place, ME)
        return checkpoints.commit(place, run(**given))


def test_the_newest_few_stay(tmp_path: Path) -> None:
    checkpoints = CheckpointDirectory(tmp_path / "new" / "folder")
    for seconds in range(KEEP + 3):
        keep(checkpoints, progress={"seconds": seconds})
    place, found = checkpoints.newest()
    assert found.progress == {"seconds": KEEP + 2} and found.limits == [5, None]
    assert RoleState.read(place, ME).done == 3
    assert len(checkpoints.all()) == KEEP
    assert sorted(path.name for path in checkpoints.directory.iterdir()) == [
        *(p.name for p in checkpoints.all()),
        "latest",
    ]


def test_the_newest_that_a_longer_run_can_go_on_from_stays(tmp_path: Path) -> None:
    checkpoints = CheckpointDirectory(tmp_path)
    keep(checkpoints)
    whole = keep(checkpoints)
    for _ in range(KEEP + 1):
        keep(checkpoints, ended=[1])
    assert checkpoints.unended() == whole
    assert checkpoints.all() == [whole, *checkpoints.all()[-KEEP:]] and checkpoints.newest()[1].ended == [1]
    keep(checkpoints)
    assert checkpoints.unended() == checkpoints.newest()[0] and len(checkpoints.all()) == KEEP


def test_numbers_that_are_none_are_kept(tmp_path: Path) -> None:
    keep(CheckpointDirectory(tmp_path), progress={"losses": math.inf, "loss": math.nan})
    found = CheckpointDirectory(tmp_path).newest()[1].progress
    assert found["losses"] == math.inf and math.isnan(found["loss"])


def test_a_write_that_fails_leaves_the_older_one(tmp_path: Path) -> None:
    checkpoints = CheckpointDirectory(tmp_path)
    older = keep(checkpoints)
    with pytest.raises(CheckpointError), checkpoints.writing() as place:
        state(memories={"thing": object()}).write(place, ME)
    assert checkpoints.newest()[0] == older
    assert not list(tmp_path.glob(".partial-*"))


def test_a_crash_while_writing_leaves_the_older_one(tmp_path: Path) -> None:
    checkpoints = CheckpointDirectory(tmp_path)
    older = keep(checkpoints)
    (tmp_path / ".partial-1").mkdir()
    state().write(tmp_path / ".partial-1", ME)
    assert checkpoints.newest()[0] == older
    (tmp_path / ".partial-1").rename(tmp_path / "checkpoint-000009")  # it died before the pointer was moved
    assert checkpoints.newest()[0] == older
    (tmp_path / ".partial-2").mkdir()
    assert keep(checkpoints).name == "checkpoint-000010" and checkpoints.newest()[0].name == "checkpoint-000010"
    assert not list(tmp_path.glob(".partial-*"))


def test_what_is_torn_is_refused(tmp_path: Path) -> None:
    checkpoints = CheckpointDirectory(tmp_path)
    place = keep(checkpoints)
    tensors, values, record = place / "worker-2.safetensors", place / "worker-2.json", place / "run.json"
    for file, data, reason in (
        (tensors, tensors.read_bytes()[:-1], "worker-2.safetensors is torn or was changed"),
        (values, values.read_bytes().replace(b'"done": 3', b'"done": 4'), "worker-2.json is torn or was changed"),
        (values, None, "worker-2.json is torn or was changed"),
        (record, record.read_bytes()[:40], "run.json cannot be read"),
        (record, record.read_bytes().replace(b'"bsp"', b"7"), "run.json is torn or was changed"),
        (record, record.read_bytes().replace(b'"files": {', b'"files": {}, "f": {'), "run.json is torn or was changed"),
        (record, record.read_bytes().replace(b"checkpoint/3", b"checkpoint/4"), "has the format 'covey.checkpoint/4'"),
        (record, None, "run.json cannot be read"),
    ):
        before = file.read_bytes()
        file.unlink() if data is None else file.write_bytes(data)
        with pytest.raises(CheckpointError, match=reason):
            checkpoints.newest()
        file.write_bytes(before)
    assert checkpoints.newest()[0] == place


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch, lambda path: None])
def test_a_place_without_checkpoints(tmp_path: Path, make: Any) -> None:
    make(tmp_path / "place")
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        CheckpointDirectory(tmp_path / "place").newest()


def test_the_record_is_plain_json(tmp_path: Path) -> None:
    record = json.loads((keep(CheckpointDirectory(tmp_path)) / "run.json").read_text())
    assert record["schema"] == "covey.checkpoint/3" and set(record["files"]) == {
        "worker-2.json",
        "worker-2.safetensors",
    }
    assert msgspec.convert(record, RunRecord).batch_size == 2


# -- what somebody else does in the folder -----------------------------------------------------------------------------


def test_where_latest_cannot_be_written_nothing_piles_up(tmp_path: Path) -> None:
    checkpoints = CheckpointDirectory(tmp_path)
    first = keep(checkpoints)
    (tmp_path / "latest").unlink()
    (tmp_path / "latest").mkdir()
    for _ in range(3):
        with pytest.raises(OSError, match="Is a directory"):
            keep(checkpoints)
    assert sorted(path.name for path in tmp_path.iterdir()) == [first.name, "latest"]


def test_numbers_go_past_a_million(tmp_path: Path) -> None:
    checkpoints = CheckpointDirectory(tmp_path)
    keep(checkpoints).rename(tmp_path / "checkpoint-999999")
    assert [keep(checkpoints).name for _ in range(2)] == ["checkpoint-1000000", "checkpoint-1000001"]
    assert [path.name for path in checkpoints.all()] == ["checkpoint-1000000", "checkpoint-1000001"]
    assert checkpoints.newest()[0].name == "checkpoint-1000001"


@pytest.mark.parametrize("folder", [True, False])
def test_what_only_has_the_name_of_a_checkpoint_takes_no_place(tmp_path: Path, folder: bool) -> None:
    checkpoints = CheckpointDirectory(tmp_path)
    first, strange = keep(checkpoints), tmp_path / "checkpoint-000500"
    strange.mkdir() if folder else strange.write_text("not a checkpoint")
    second = keep(checkpoints)
    assert checkpoints.all() == [first, strange, second]
    third = keep(checkpoints)
    assert checkpoints.all()[-2:] == [second, third] and not first.exists()


def test_latest_that_names_none_is_no_reason_to_find_none(tmp_path: Path) -> None:
    checkpoints = CheckpointDirectory(tmp_path)
    place = keep(checkpoints)
    (tmp_path / "latest").write_text("checkpoint-000000")
    assert checkpoints.newest()[0] == place


def test_a_folder_that_is_removed_under_a_run_is_locked_again(tmp_path: Path) -> None:
    with CheckpointDirectory(tmp_path / "kept") as checkpoints:
        keep(checkpoints)
        shutil.rmtree(checkpoints.directory)
        keep(checkpoints)
        with pytest.raises(CheckpointError, match="another run keeps its checkpoints"):
            CheckpointDirectory(tmp_path / "kept").__enter__()


def test_a_folder_that_another_run_has_taken_over_is_left_to_it(tmp_path: Path) -> None:
    with CheckpointDirectory(tmp_path / "kept") as checkpoints:
        keep(checkpoints)
        (tmp_path / "kept").rename(tmp_path / "moved")
        with CheckpointDirectory(tmp_path / "kept") as others:
            theirs = keep(others)
            with pytest.raises(OSError, match="another run keeps its checkpoints"):
                keep(checkpoints)
        for _ in range(2):
            with pytest.raises(OSError, match="with the checkpoints of another run"):
                keep(checkpoints)
        assert others.all() == [theirs]


def test_a_part_that_cannot_be_read_back_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("covey.checkpoint.files.hashlib.file_digest", fail)
    with pytest.raises(OSError, match="Input/output error"):  # which the supervisor tells, and goes on
        keep(CheckpointDirectory(tmp_path))


@pytest.mark.parametrize(
    "wrong",
    [
        {"ended": [99]}, {"ended": [-1]}, {"ended": [0, 99]}, {"limits": []}, {"limits": [5, -1]}, {"skipped": [3]},
        {"skipped": [3, -1]},
    ],
)  # fmt: skip
def test_records_of_other_workers_than_it_has_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    keep(CheckpointDirectory(tmp_path), **wrong)
    with pytest.raises(CheckpointError, match=r"run.json cannot be read: it (says|does not say)"):
        CheckpointDirectory(tmp_path).newest()
