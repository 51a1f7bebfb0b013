"""A run that was stopped, by whatever, goes on where it was kept; bsp and allreduce go on to the very same weights."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from covey import catalog
from covey.checkpoint import CheckpointDirectory, RoleState
from covey.engines.process import control
from covey.engines.process.control_lines import Switchboard
from covey.errors import CheckpointError, PeerLost
from covey.message import Address
from covey.observe.progress import Progress
from tests.real.harness import BATCH_NORM, Room, Watch, differing, fit, interrupt, trained
from tests.test_checkpoint import BEFORE

WRITTEN = [
    "bsp", "ssp(bound=2)", "bounded_delay(delay=2)",
    "asynchronous", "allreduce", "local_sgd(period=3)", "easgd(period=2)",
    "gosgd(probability=0.5)", "dpsgd", "dssp", "quorum", "softsync", "petuum(bound=2)", "essp(bound=2)",
    "dc_asgd(adaptive=true)", "vap", "value_bound", "a_bsp(chunks=2)", "specsync(parts=2)", "gradient_coding",
    "downpour(push=3, fetch=2)", "sandblaster", "sliced", "bigdl", "caffeonspark", "firecaffe", "adpsgd",
    "sgp(overlap=1)", "malt",
    "malt(bound=2)", "ako", "hogwild(momentum=drop)", "hogwild++(momentum=drop, hold=4)", "dogwild", "bmuf(period=5)",
    "diloco(period=5)", "sparknet", "crossbow", "butterfly", "eamsgd(period=2, momentum=0.9)",
    "tree_easgd(up=2, down=4)", "mpca", "p3(slice=50)", "tictac", "bytescheduler(partition=400, credit=800)",
    "bytescheduler(partition=400, credit=800, exchange=allreduce)", "bytescheduler(partition=auto, credit=auto)",
    "staggered", "bosen(bound=2, rate=400kbit, row=50)", "poseidon", "outer_products", "one_weird_trick(scheme=c)",
]  # fmt: skip
ALL = [*WRITTEN, *sorted(set(catalog.for_any_model()) - {spec.partition("(")[0] for spec in WRITTEN})]
"""Strategies as they remember most within a few steps; those that nobody has thought of yet as they are."""
COMPRESSED = [
    "ssp(bound=2) + topk(density=0.1) + pull", "petuum(bound=2) + topk(density=0.1) + pull",
    "essp(bound=2) + int8 + pull", "downpour(push=3, fetch=2) + int8 + pull", "a_bsp(chunks=2) + int8 + pull",
    "sliced + onebit + pull", "p3(slice=50) + int8 + pull", "vap + topk(density=0.1)",
    "local_sgd(period=3) + topk(density=0.1)", "diloco(period=5) + onebit", "easgd(period=2) + topk(density=0.1)",
    "gosgd(probability=0.5) + int8", "dpsgd + onebit", "adpsgd + topk(density=0.1)", "sgp(overlap=1) + int8",
    "sparknet + topk(density=0.1)", "crossbow + onebit", "mpca + int8", "tree_easgd(up=2, down=4) + topk(density=0.1)",
    "ako + topk(density=0.1)", "malt + int8", "butterfly + onebit", "ssp(bound=2) + auto", "local_sgd(period=3) + auto",
]  # fmt: skip
FEW = {"ssp(bound=2)", "gosgd(probability=0.5)", "vap", "hogwild++(momentum=drop, hold=4)"}
OWN_COUNT = ("a_bsp", "gradient_coding", "sandblaster")
"""Strategies in which a worker's steps do not say how many samples it has seen."""
PACE = "time.sleep(0.004)"
SGD, ADAM = "torch.optim.SGD(params, lr=0.05, momentum=0.9)", "torch.optim.Adam(params, lr=0.01)"


def some(names: list[str], quick: set[str]) -> list[Any]:
    return [pytest.param(name, marks=() if name in quick else pytest.mark.full) for name in names]


def hard(room: Room, **given: Any) -> str:
    """A model with dropout, batch norm and a schedule, on shards of unequal size: 24, 23 and 23 samples."""
    options = "rate=lambda progress: 1 - 0.9 * progress, evaluate=score"
    return room.task(**{
        "model": BATCH_NORM, "samples": 70, "batch_size": 8, "before_step": PACE, "options": options, **given
    })  # fmt: skip


# -- the very same weights ---------------------------------------------------------------------------------------------


CARRIED = "bsp + error_feedback + int8"  # remembers what was dropped, and how often it drew
EXACT = [
    (strategy, servers, optimizer, stop)
    for strategy, servers in (
        ("bsp", 1), ("bsp", 2), ("allreduce", None), ("p3(slice=50)", 2), (CARRIED, 2), ("allreduce + powersgd", None),
    )
    for optimizer in (SGD, ADAM)
    for stop in ("interrupt", "kill")
]  # fmt: skip
EXACT += [
    (strategy, servers, SGD, "interrupt")
    for strategy, servers in (
        ("bsp + topk(density=0.1) + pull", 2), ("a_bsp(chunks=1) + int8 + pull", 1), ("sliced + int8 + pull", None),
        ("p3(slice=50) + int8 + pull", 2), ("allreduce + onebit", None), ("local_sgd(period=3) + qsgd", None),
        ("diloco(period=5) + onebit", None), ("sparknet + topk(density=0.1)", None), ("crossbow + onebit", None),
        ("easgd(period=2, mode=synchronous) + topk(density=0.1)", None), ("dpsgd + onebit", None), ("sgp + int8", None),
        ("malt(barrier=true) + onebit", None), ("bytescheduler(partition=400, credit=800, exchange=allreduce)", None),
        ("eamsgd(period=4, momentum=0.5, mode=synchronous)", None), ("one_weird_trick", None),
        ("one_weird_trick(scheme=b, variable=true)", None),
    )
]  # fmt: skip
QUICK = [(CARRIED, 2, ADAM, "interrupt"), ("allreduce", None, SGD, "kill")]


@pytest.mark.parametrize(
    ("strategy", "servers", "optimizer", "stop"),
    [pytest.param(*case, marks=() if case in QUICK else pytest.mark.full) for case in EXACT],
)
def test_the_weights_of_an_uninterrupted_run(
    room: Room, strategy: str, servers: int | None, optimizer: str, stop: str
) -> None:
    # long enough for two checkpoints and a kill before its end, also on a busy machine
    task, kept = hard(room, optimizer=optimizer, before_step="time.sleep(0.015)"), room.path / "kept"
    asked: dict[str, Any] = {"epochs": 12, "servers": servers}
    whole = fit(task, strategy, 3, **asked)
    if stop == "interrupt":
        broken = fit(task, strategy, 3, **asked, checkpoint=kept, watcher=Watch(trained(50), interrupt))
        assert broken.stopped == "interrupted"
    else:
        watch = Watch(lambda now: (kept / "checkpoint-000002").exists(), lambda: room.kill("worker 1"))
        with pytest.raises(PeerLost):
            fit(task, strategy, 3, **asked, checkpoint=kept, every="150ms", watcher=watch)
    past = CheckpointDirectory(kept).newest()[1].progress
    resumed = fit(task, strategy, 3, **asked, resume=kept)
    assert not differing(whole.weights, resumed.weights)
    assert (resumed.stopped, resumed.samples, resumed.updates) == ("budget", whole.samples, whole.updates)
    assert resumed.seconds > past["seconds"] > 0
    assert resumed.history[: len(past["history"])] == past["history"]
    assert resumed.history[-1]["samples"] == whole.samples
    marks = [row["samples"] for row in resumed.history]
    assert marks == sorted(set(marks)), "a run that goes on is not scored at its beginning"
    assert resumed.traffic == whole.traffic, "bytes and messages go on as well"


@pytest.mark.full
def test_interrupted_again_and_again(room: Room) -> None:
    task, kept = hard(room), room.path / "kept"
    whole = fit(task, "bsp", 3, epochs=30)
    once = fit(task, "bsp", 3, epochs=30, checkpoint=kept, watcher=Watch(trained(60), interrupt))
    again = Watch(trained(once.samples + 60), interrupt)
    twice = fit(task, "bsp", 3, epochs=30, checkpoint=kept, resume=kept, watcher=again)
    assert twice.stopped == "interrupted" and 0 < once.samples < twice.samples < whole.samples
    assert not differing(whole.weights, fit(task, "bsp", 3, epochs=30, resume=kept).weights)


# -- every strategy ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", some([*ALL, *COMPRESSED], FEW))
def test_every_strategy_goes_on(room: Room, strategy: str) -> None:
    task, kept = hard(room), room.path / "kept"
    sizes = (35, 35) if strategy.startswith("butterfly") else (24, 23, 23)  # a butterfly has 2, 4, 8... workers
    count = len(sizes)
    broken = fit(task, strategy, count, epochs=40, checkpoint=kept, every="1h", watcher=Watch(trained(150), interrupt))
    place, run = CheckpointDirectory(kept).newest()
    tallied = sum(tally["samples"] for tally in run.progress["tallies"])
    assert broken.stopped == "interrupted" and broken.samples < 40 * 70
    assert broken.samples == tallied, "the model that came out is the one that was kept"
    steps = {rank: RoleState.read(place, Address("worker", rank)).done for rank in range(count)}
    if not strategy.startswith(OWN_COUNT):
        assert sum(samples(steps[rank], size) for rank, size in enumerate(sizes)) == tallied
    if strategy.startswith("gosgd"):
        assert gossip_weight(place) == pytest.approx(1.0)
    if strategy.startswith("ssp"):
        ledger = RoleState.read(place, Address("server", 0)).memories["board"]["$value"]
        assert ledger["clocks"] == {str(rank): step for rank, step in steps.items()}
    resumed = fit(task, strategy, count, epochs=40, checkpoint=kept, resume=kept, every="150ms")
    assert resumed.stopped == "budget" and all_seen(strategy, resumed.samples, 40 * 70)
    if strategy.startswith("gosgd"):
        assert gossip_weight(CheckpointDirectory(kept).newest()[0]) == pytest.approx(1.0)


def samples(steps: int, size: int) -> int:
    """What a worker with a share of `size` has seen, 8 at a time."""
    epochs, rest = divmod(steps, -(-size // 8))
    return epochs * size + rest * 8


def all_seen(strategy: str, seen: int, asked: int) -> bool:
    """In A-BSP the slower workers see fewer samples."""
    return asked // 2 <= seen <= asked if strategy.startswith("a_bsp") else seen == asked


def gossip_weight(place: Path) -> float:
    """All of it: what the workers hold, and what lies in their mailboxes."""
    states = [RoleState.read(place, Address("worker", rank)) for rank in range(3)]
    waiting = [message.weight for state in states for message in state.mailbox if hasattr(message, "weight")]
    return sum(state.memories["weight"] for state in states) + sum(waiting)


@pytest.mark.parametrize("strategy", some(ALL, {"easgd(period=2)"}))
def test_checkpoints_all_the_time_stop_nobody(room: Room, strategy: str) -> None:
    """Shards of 11, 10 and 10 batches: the first worker is still there when the others have ended."""
    task, kept = (
        room.task(samples=31, batch_size=1, before_step="time.sleep(0.002 * (1 + os.getpid() % 3))"),
        room.path / "kept",
    )
    watch = Watch()
    count = 2 if strategy == "butterfly" else 3
    result = fit(task, strategy, count, epochs=8, checkpoint=kept, every="20ms", watcher=watch)
    assert result.stopped == "budget" and all_seen(strategy, result.samples, 8 * 31)
    said = [line for line in watch.said if not line.startswith("starting")]  # which only a busy machine says
    assert len(said) >= 3 and all("wrote checkpoint" in line for line in said)
    assert all_seen(strategy, fit(task, strategy, count, epochs=8, resume=kept).samples, 8 * 31)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "strategy", ["quorum(size=2)", pytest.param("value_bound(bound=0.001)", marks=pytest.mark.full)]
)
def test_words_that_come_late_to_some_workers_do_not_hang_a_checkpoint(
    room: Room, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One hears that it should hold when it has pushed already, and waits for a gradient of others that hold."""
    tell = Switchboard.tell

    def slowly(self: Switchboard, roles: Iterable[Address], word: control.Downward) -> None:
        for address in roles:
            tell(self, [address], word)
            time.sleep(0.03 if isinstance(word, control.AskNextStep) else 0)

    monkeypatch.setattr(Switchboard, "tell", slowly)
    task, watch = room.task(samples=240, batch_size=1, before_step="time.sleep(0.004)"), Watch()
    result = fit(task, strategy, 3, epochs=2, checkpoint=room.path / "kept", every="50ms", watcher=watch)
    assert result.stopped == "budget" and result.samples == 480
    assert len(watch.said) >= 2 and all("wrote checkpoint" in line for line in watch.said)


# Sandblaster deals all portions out to whoever is idle, so that all end together.
@pytest.mark.parametrize("strategy", some([s for s in ALL if s != "sandblaster"], {"bsp", "gosgd(probability=0.5)"}))
def test_kept_when_some_have_ended(room: Room, strategy: str) -> None:
    """One worker has far more to do than the others, which have left long before the run is kept."""
    slow = "time.sleep(0.05) if CALLS[0] > 20 else None"
    task, kept = room.task(samples=41, batch_size=20, before_step=slow), room.path / "kept"

    def late(now: Progress) -> bool:
        return now.roles["worker 0"].step >= 24 and bool(CheckpointDirectory(kept).newest()[1].ended)

    watch = Watch(late, lambda: room.kill("worker 0"))  # 2 batches an epoch, and 1 for the other
    with pytest.raises(PeerLost):
        fit(task, strategy, 2, epochs=20, checkpoint=kept, every="50ms", watcher=watch)
    newest, run = CheckpointDirectory(kept).newest()
    assert run.ended == [1]
    resumed = fit(task, strategy, 2, epochs=20, resume=kept, stall="15s")
    assert resumed.stopped == "budget" and all_seen(strategy, resumed.samples, 20 * 41)
    for older in CheckpointDirectory(kept).all():
        if older != newest:
            shutil.rmtree(older)
    with pytest.raises(CheckpointError, match="worker 1 had already ended after its 20 steps"):
        fit(task, strategy, 2, epochs=30, resume=kept)


def test_a_longer_run_goes_on_from_before_the_first_had_ended(room: Room) -> None:
    task, kept = room.task(samples=64, before_step=PACE), room.path / "kept"
    fit(task, "allreduce", 2, steps=12, checkpoint=kept, every="5ms")
    longer = fit(task, "allreduce", 2, steps=20, resume=kept)
    straight = fit(task, "allreduce", 2, steps=20)
    assert longer.samples == straight.samples
    assert not differing(longer.weights, straight.weights)


@pytest.mark.full
def test_a_run_that_was_done_ends_at_once(room: Room) -> None:
    task, kept = room.task(samples=64, before_step=PACE), room.path / "kept"
    done = Watch(lambda now: now.samples >= 60, interrupt)
    fit(task, "bsp", 2, steps=8, checkpoint=kept, every="5ms", watcher=done)
    once = fit(task, "bsp", 2, steps=8, checkpoint=kept, every="5ms", resume=kept)
    again = fit(task, "bsp", 2, steps=8, resume=kept)
    assert (again.stopped, again.samples) == ("budget", 64)
    assert not differing(once.weights, again.weights)


def test_a_checkpoint_of_the_format_before_goes_on(room: Room) -> None:
    """`covey.checkpoint/2`, as an earlier covey has written it."""
    task, strategy, place = room.task(before_step=PACE), "bsp + error_feedback + int8", room.path / "kept"
    shutil.copytree(BEFORE, place)
    resumed, whole = fit(task, strategy, 2, epochs=6, resume=place), fit(task, strategy, 2, epochs=6)
    assert resumed.samples == whole.samples
    for name, weights in whole.weights.items():  # another machine may have rounded otherwise
        assert torch.allclose(resumed.weights[name], weights, atol=1e-5)


def test_changed_settings_of_the_optimizer_are_told_and_do_not_count(room: Room) -> None:
    task, place = room.task(before_step=PACE, optimizer=SGD), room.path / "kept"
    fit(task, "bsp", 2, steps=50, checkpoint=place, every="1ms")
    watch, same = Watch(), Watch()
    other = room.task("other.py", before_step=PACE, optimizer=SGD.replace("lr=0.05", "lr=0.5"))
    weights = fit(task, "bsp", 2, steps=54, resume=place, watcher=same).weights
    assert not differing(fit(other, "bsp", 2, steps=54, resume=place, watcher=watch).weights, weights)
    told = [line for line in watch.said if "settings" in line]
    assert told == ["the checkpoint's optimizer settings hold, not the task's new ones: lr 0.05, not 0.5"]
    assert not [line for line in same.said if "settings" in line]


# -- what does not fit -------------------------------------------------------------------------------------------------


@pytest.fixture
def kept(room: Room) -> Path:
    place = room.path / "kept"
    fit(room.task(before_step=PACE), "bsp", 2, epochs=50, checkpoint=place, watcher=Watch(trained(20), interrupt))
    return place


def test_what_does_not_fit_is_refused(room: Room, kept: Path) -> None:
    def refused(reason: str, task: str | None = None, strategy: str = "bsp", workers: int = 2, **more: Any) -> None:
        with pytest.raises(CheckpointError, match=reason):
            fit(task or room.task(before_step=PACE), strategy, workers, **{"epochs": 50, "resume": kept, **more})

    refused("seed 0, this one has 1", seed=1)
    refused("batch_size 4, this one has 5", room.task("other.py", batch_size=5))
    refused("samples 64, this one has 63", room.task("other.py", samples=63))
    refused("another model: it has weight \\(3, 6\\)", room.task("other.py", model="nn.Sequential(nn.Linear(6, 3))"))
    refused("optimizer is SGD, this one has Adam", room.task("other.py", optimizer=ADAM))
    refused("which this one would replace: go on from them with resume=", resume=None, checkpoint=kept)
    refused("holds no checkpoint", resume=room.path / "nowhere")
    state = CheckpointDirectory(kept).newest()[0] / "worker-1.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "done": 3}))
    refused("worker-1.json is torn or was changed")
