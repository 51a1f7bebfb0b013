"""Two axes of a mesh at once: the values of whole models with a batch each, on every engine, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import covey
from covey.errors import CoveyError
from covey.nn import Experts
from covey.parallelism.plan.mesh import Mesh
from tests.parallelism.divided_runs import apart, run
from tests.parallelism.test_experts import WORDS as EXPERT_WORDS
from tests.parallelism.test_experts import task as expert_task
from tests.parallelism.test_sharded import WORDS
from tests.parallelism.test_tensor import task as tensor_task

EXPERTS = ("points", "second choices", "words", "given")


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


def task(model: str, **more: Any) -> covey.Task:
    return expert_task(model, **more) if model in EXPERTS else tensor_task(model, **more)


def size(mesh: str, *axes: str) -> int:
    """What these axes multiply to."""
    found = {name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", mesh)}
    many = 1
    for axis in axes or ("replica", "stage", "shard", "expert", "tensor"):
        many *= found.get(axis, 1)
    return many


def uncut(mesh: str) -> tuple[str, int]:
    """Whole models, one for each batch, that see the same micro-batches."""
    batches = size(mesh, "replica", "shard", "expert")
    if "stage" not in mesh:
        return "allreduce", batches
    rest = ", ".join(part for part in mesh.split(", ") if part.split("=")[0] in ("timetable", "microbatches"))
    if "interleaved" in rest:
        rest = rest.replace("interleaved", "1f1b")
    return f"allreduce with mesh(replica={batches}, stage=1{', ' + rest if rest else ''})", batches


QUICK = [
    ("tensor=2, shard=2", "gpt"), ("tensor=2, shard=2, zero=1", "cnn"), ("tensor=2, shard=2, zero=2", "tied"),
    ("expert=2, tensor=2", "words"), ("shard=2, expert=2", "points"), ("stage=2, tensor=2", "gpt"),
    ("stage=2, shard=2", "mlp"), ("stage=2, tensor=2, cut=1", "mlp"),
    ("replica=2, stage=2, expert=2, microbatches=2", "points"),
]  # fmt: skip
SLOW = [
    ("shard=2, tensor=3", "translator"), ("shard=3, tensor=2", "odd"), ("shard=2, tensor=2", "cnn"),
    ("shard=2, tensor=2", "tied"), ("shard=2, tensor=2", "plain attention"), ("shard=2, tensor=2, zero=2", "cnn"),
    ("shard=4, tensor=2", "llama"), ("shard=2, tensor=4", "gpt"),
    ("expert=2, tensor=2", "points"), ("expert=3, tensor=2", "second choices"), ("expert=2, tensor=3", "points"),
    ("expert=2, tensor=2", "given"), ("expert=2, tensor=2, split=none", "words"),
    ("shard=2, expert=2", "words"), ("shard=3, expert=2", "second choices"), ("shard=2, expert=4", "given"),
    ("stage=2, tensor=2", "cnn"), ("stage=3, tensor=2", "mlp"), ("stage=2, tensor=3", "llama"),
    ("stage=2, tensor=2, timetable=plain", "gpt"), ("stage=2, tensor=2, timetable=gpipe, recompute=true", "gpt"),
    ("stage=2, tensor=2, tied=sum", "tied"), ("stage=2, tensor=2, tied=sum", "translator"),
    ("stage=2, tensor=2, timetable=interleaved, chunks=2, microbatches=2", "gpt"),
    ("stage=2, shard=2", "cnn"), ("stage=2, shard=3, timetable=gpipe", "gpt"), ("stage=3, shard=2", "llama"),
    ("stage=2, shard=2, tied=sum", "tied"), ("stage=2, shard=2, timetable=plain", "gpt"),
    ("replica=2, shard=2, tensor=2", "gpt"), ("replica=2, stage=2, tensor=2", "gpt"),
    ("stage=2, shard=2, tensor=2", "gpt"), ("shard=2, expert=2, tensor=2", "points"),
    ("stage=2, expert=2, timetable=gpipe, microbatches=2", "second choices"), ("stage=2, expert=2, tied=sum", "words"),
    ("stage=3, expert=2, timetable=plain", "points"), ("stage=2, expert=3, recompute=true, microbatches=2", "points"),
    ("stage=2, expert=2, tied=sum, timetable=interleaved, chunks=2, microbatches=2", "words"),
    ("stage=2, expert=2, timetable=plain", "given"), ("stage=2, expert=2, tensor=2, microbatches=2", "points"),
    ("stage=2, shard=2, expert=2, microbatches=2", "points"), ("replica=2, stage=2", "gpt"),
    ("replica=2, shard=2", "gpt"), ("replica=2, expert=2", "points"), ("replica=2, tensor=2", "gpt"),
    ("stage=2, expert=2, microbatches=2", "points"),
]  # fmt: skip


def check(mesh: str, model: str, steps: int, **more: Any) -> None:
    given, (spec, workers) = task(model), uncut(mesh)
    whole = run(given, spec, workers, steps=steps)
    found = run(given, f"allreduce with mesh({mesh})", size(mesh), steps=steps, **more)
    assert apart(found, whole) < 1e-10
    assert found.samples == whole.samples
    assert found.notes.get("dropped tokens") == whole.notes.get("dropped tokens")


@pytest.mark.parametrize(("mesh", "model"), QUICK)
def test_two_axes_learn_what_whole_models_learn(mesh: str, model: str) -> None:
    check(mesh, model, 4)


@pytest.mark.full
@pytest.mark.parametrize(("mesh", "model"), [*QUICK, *SLOW])
def test_twenty_steps(mesh: str, model: str) -> None:
    check(mesh, model, 20)


@pytest.mark.parametrize(
    ("mesh", "model"),
    [
        ("shard=2, tensor=2", "gpt"),
        pytest.param("expert=2, tensor=2", "words", marks=pytest.mark.full),
        pytest.param("shard=2, expert=2", "words", marks=pytest.mark.full),
        pytest.param("stage=2, tensor=2", "gpt", marks=pytest.mark.full),
        pytest.param("stage=2, shard=2", "gpt", marks=pytest.mark.full),
        pytest.param("stage=2, expert=2, microbatches=2", "points", marks=pytest.mark.full),
        pytest.param("replica=2, expert=2", "points", marks=pytest.mark.full),
        pytest.param("replica=2, stage=2", "gpt", marks=pytest.mark.full),
        pytest.param("replica=2, tensor=2", "gpt", marks=pytest.mark.full),
        pytest.param("replica=2, shard=2", "gpt", marks=pytest.mark.full),
    ],
)
def test_real_processes_compute_the_same(mesh: str, model: str) -> None:
    check(mesh, model, 3, engine="local")


@pytest.mark.parametrize(
    ("mesh", "one_axis", "model"),
    [
        ("shard=2, tensor=2, zero=2", "shard=2", "gpt"), ("expert=2, tensor=2", "expert=2", "points"),
        ("shard=2, expert=2", "expert=4", "points"), ("stage=2, tensor=2", "stage=1", "gpt"),
        ("stage=2, shard=2, timetable=plain", "shard=2", "gpt"),
        ("stage=2, expert=2, timetable=plain", "expert=2", "points"),
    ],
)  # fmt: skip
def test_clipping_holds_for_the_gradient_of_the_whole_model(mesh: str, one_axis: str, model: str) -> None:
    given = task(model, clip_norm=0.01, optimizer=lambda p: torch.optim.SGD(p, lr=0.5))
    whole = run(given, f"local_sgd with mesh({one_axis})", size(one_axis))
    assert apart(run(given, f"local_sgd with mesh({mesh})", size(mesh)), whole) < 1e-10


@pytest.mark.parametrize(
    "mesh", ["shard=2, tensor=2", "shard=2, tensor=2, zero=2", "stage=2, shard=2, timetable=plain"]
)
def test_members_without_samples_left_serve_on(mesh: str) -> None:
    given = task("gpt", data=tuple(part[:25] for part in WORDS), batch_size=4)  # 13 and 12 samples
    found = run(given, f"allreduce with mesh({mesh})", 4, steps=None, epochs=1)
    assert apart(found, run(given, "allreduce", 2, steps=None, epochs=1)) < 1e-10
    twice = run(given, f"allreduce with mesh({mesh})", 4, steps=None, epochs=2)
    assert apart(twice, run(given, "allreduce with mesh(shard=2)", 2, steps=None, epochs=2)) < 1e-10
    assert twice.samples == 50


@pytest.mark.parametrize(("mesh", "samples"), [("expert=2, tensor=2", 17), ("shard=2, expert=2", 33)])
def test_members_with_experts_serve_on(mesh: str, samples: int) -> None:
    """33: one of four has a batch more, so that in the last step a whole group of experts has none."""
    batches = size(mesh, "shard", "expert")
    given = task("words", data=tuple(part[:samples] for part in EXPERT_WORDS), batch_size=4)
    found = run(given, f"allreduce with mesh({mesh})", 4, steps=None, epochs=1)
    assert apart(found, run(given, "allreduce", batches, steps=None, epochs=1)) < 1e-10


@pytest.mark.parametrize(
    ("mesh", "more"),
    [("stage=2, expert=2, timetable=plain", 1), ("stage=2, expert=3, microbatches=4", 1),
     ("stage=2, expert=2, microbatches=4", 3)],
)  # fmt: skip
def test_stages_with_experts_serve_on(mesh: str, more: int) -> None:
    """1: one member has a batch more than the others, of a sample; 3: the last batches have 2 samples and 1."""
    mesh, members = f"{mesh}, tied=sum", size(mesh, "expert")
    given = task("words", data=tuple(part[: 8 * members + more] for part in EXPERT_WORDS), batch_size=4)
    found = run(given, f"allreduce with mesh({mesh})", 2 * members, steps=None, epochs=1)
    whole = run(given, uncut(mesh)[0], members, steps=None, epochs=1)
    assert apart(found, whole) < 1e-10
    assert found.notes["dropped tokens"] == whole.notes["dropped tokens"]
    twice = run(given, f"allreduce with mesh({mesh})", 2 * members, steps=None, epochs=2)
    assert twice.samples == 16 * members + 2 * more


@pytest.mark.parametrize("mesh", ["stage=2, microbatches=2", "stage=2, expert=2, microbatches=2"])
def test_the_balance_loss_counts_once_however_many_micro_batches_there_are(mesh: str) -> None:
    members = size(mesh, "expert")
    whole = run(task("points", batch_size=3, accumulate=2), "allreduce", members, steps=5)
    found = run(task("points"), f"allreduce with mesh({mesh})", size(mesh), steps=5)
    assert apart(found, whole) < 1e-10
    assert found.notes["dropped tokens"] == whole.notes["dropped tokens"] > 0


class Wide(nn.Module):
    """Rows, experts, heads and layers enough for eight members of every stage."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(11, 32), nn.Linear(32, 11)
        self.up, self.down, self.norm = nn.Linear(32, 64), nn.Linear(64, 32), nn.LayerNorm(32)
        self.one, self.two = (Experts(lambda: nn.Linear(32, 32), experts=4) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x)
        h = h + self.one(h)
        h = self.norm(h + self.down(torch.tanh(self.up(h))))
        return self.head(h + self.two(h))


@pytest.mark.full
def test_all_five_axes() -> None:
    mesh = "replica=2, stage=2, shard=4, expert=2, tensor=2, microbatches=2"
    many = torch.randint(0, 11, (200, 5)), torch.randint(0, 11, (200, 5))
    given = expert_task("words", model=lambda: Wide().double(), data=many, batch_size=4)
    found, whole = run(given, f"allreduce with mesh({mesh})", 64, steps=3), run(given, *uncut(mesh), steps=3)
    assert apart(found, whole) < 1e-10


@pytest.mark.parametrize("mesh", ["shard=2, tensor=2", "stage=2, shard=2, timetable=plain"])
def test_servers_own_what_workers_own(mesh: str) -> None:
    given = task("gpt")
    assert apart(run(given, f"bsp with mesh(replica=2, {mesh})", 8), run(given, "allreduce", 4)) < 1e-10


def test_asynchronous_strategies_train_products() -> None:
    given, cluster = task("mlp"), covey.simulate.from_flags(jitter=0.3)
    for mesh in ("shard=2, tensor=2", "stage=2, tensor=2"):
        found = run(given, f"asynchronous with mesh(replica=2, {mesh})", 8, cluster=cluster)
        assert all(torch.isfinite(weight).all() for weight in found.weights.values())


def test_places_and_shares() -> None:
    mesh = Mesh(replica=2, stage=2, shard=3, tensor=2, timetable="gpipe").fitted(24)
    assert [mesh.place(member) for member in (0, 1, 2, 6, 11)] == [
        (0, 0, 0, 0), (0, 0, 0, 1), (0, 1, 0, 0), (1, 0, 0, 0), (1, 2, 0, 1)
    ]  # fmt: skip
    assert [mesh.share(worker) for worker in range(12)] == [0, 0, 1, 1, 2, 2] * 2
    assert mesh.share(12) == 3 and [mesh.first_with(share) for share in range(6)] == [0, 2, 4, 12, 14, 16]
    experts = Mesh(replica=2, shard=2, expert=3, tensor=2).fitted(24)
    assert [experts.share(worker) for worker in range(0, 24, 2)] == list(range(12))
    assert experts.place(7) == (0, 1, 0, 1) and experts.first_with(7) == 14


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("allreduce with mesh(stage=2, expert=2)", r"mesh\(expert=2\) divides the experts .* has no such layer"),
        ("allreduce with mesh(stage=2, expert=2, timetable=pipedream)", "pipedream keeps .* versions .* use 1f1b"),
        ("allreduce with mesh(stage=2, shard=2, zero=3)", "zero=3 .* use zero=1, or shard without stage"),
        ("allreduce with mesh(expert=2, shard=2, zero=2)", "zero=2 .* use zero=1, or shard without expert"),
        ("allreduce with mesh(stage=2, tensor=2, timetable=pipedream)", "pipedream keeps .* versions .* use 1f1b"),
        ("allreduce with mesh(stage=2, shard=2, timetable=2bw)", "2bw keeps different versions .* use 1f1b"),
        ("allreduce with mesh(shard=3, tensor=2)", r"mesh\(shard=3, tensor=2\) needs a multiple of 6 workers, not 4"),
        ("allreduce with mesh(replica=2, shard=2, tensor=2)", r"needs 8 workers, not 4"),
        ("allreduce with mesh(shard=2, tensor=2, microbatches=2)", "divided layers have no timetable"),
        ("allreduce with mesh(zero=1, split=best)", r"say the sizes, as mesh\(shard=2, tensor=2\)"),
        ("allreduce(bucket=1KB) with mesh(shard=2, tensor=2)", "while backward runs"),
        ("hogwild(momentum=drop) with mesh(expert=2)", "in one memory .* use asynchronous"),
        ("outer_products with mesh(expert=2)", "makes gradients of the inputs .* use asynchronous"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_what_would_work(spec: str, said: str) -> None:
    with pytest.raises(CoveyError, match=said):
        run(task("gpt"), spec, 4)


# -- checkpoints ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "model"),
    [
        ("tensor=2", "", "gpt"), ("", "tensor=2", "gpt"),
        pytest.param("tensor=2", "tensor=3", "tied", marks=pytest.mark.full),
        pytest.param("tensor=2", "tensor=2, split=none", "mlp", marks=pytest.mark.full),
        pytest.param("shard=2, tensor=2", "shard=2", "llama", marks=pytest.mark.full),
        ("shard=2, zero=2", "shard=2, tensor=2", "gpt"),
        pytest.param("shard=2, tensor=2", "replica=2, tensor=3", "cnn", marks=pytest.mark.full),
        pytest.param("expert=2, tensor=2", "shard=2, zero=2", "points", marks=pytest.mark.full),
        pytest.param("shard=2, zero=2", "expert=2, tensor=2", "points", marks=pytest.mark.full),
        pytest.param("shard=2, expert=2", "replica=4, tensor=2", "points", marks=pytest.mark.full),
    ],
)  # fmt: skip
def test_a_checkpoint_goes_on_with_another_layout(before: str, after: str, model: str, tmp_path: Path) -> None:
    normed = model in ("cnn", "points")  # a bias before batch-norm has no gradient but rounding, which Adam makes large
    given, place = task(model, **({} if normed else {"optimizer": adam})), str(tmp_path / "kept")
    specs = [f"allreduce with mesh({mesh})" if mesh else "allreduce" for mesh in (before, after)]
    batches = size(before, "replica", "shard", "expert")
    assert batches == size(after, "replica", "shard", "expert")
    run(given, specs[0], size(before), steps=3, checkpoint=place, every="1ms")
    resumed = run(given, specs[1], size(after), steps=6, resume=place)
    assert apart(resumed, run(given, "allreduce", batches)) < 1e-10


@pytest.mark.full
@pytest.mark.parametrize(
    ("before", "after", "model"),
    [
        ("stage=2, tensor=2", "", "gpt"), ("stage=2, shard=2", "shard=2, tensor=2", "gpt"),
        ("stage=2, expert=2", "shard=2, zero=2", "points"),
    ],
)  # fmt: skip
def test_stages_on_real_processes_go_on_with_another_layout(
    before: str, after: str, model: str, tmp_path: Path
) -> None:
    given, place = task(model, **({"optimizer": adam} if model == "gpt" else {})), str(tmp_path / "kept")
    specs = [
        f"allreduce with mesh({mesh}{', timetable=plain' if 'stage' in mesh else ''})" if mesh else "allreduce"
        for mesh in (before, after)
    ]
    run(given, specs[0], size(before), steps=3, checkpoint=place, every="20ms", engine="local")
    resumed = run(given, specs[1], size(after), steps=6, resume=place, engine="local")
    assert apart(resumed, run(given, "allreduce", size(before, "shard", "expert"))) < 1e-10


def test_another_model_is_refused_by_members_with_slices(tmp_path: Path) -> None:
    given, place = task("mlp"), str(tmp_path / "kept")
    run(given, "allreduce with mesh(tensor=2)", 2, steps=2, checkpoint=place, every="1ms")
    with pytest.raises(CoveyError, match="the checkpoint is of another model"):
        run(task("odd"), "allreduce", 1, steps=4, resume=place)
