"""The conformance suite finds what is wrong with a strategy or codec, and names it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

import covey
from covey import catalog, registry
from covey.check import codec_laws, laws, restart, trial_task
from covey.check.engine_law import alike_on
from covey.check.reach import beyond
from covey.check.restart import same_after_a_restart
from covey.cli import app
from covey.exchange.codec import Codec, Coder, Seed
from covey.exchange.codec_traits import CodecTraits
from covey.exchange.codecs.by_name import CODECS
from covey.model import build
from covey.model.flat import Form
from covey.strategy import Composition
from covey.vector import Vector
from tests.worlds import mlp, worker

NUMBER = count()
PLUGIN = Path("examples/plugins/own_strategies.py")


@pytest.fixture(autouse=True)
def tables() -> Iterator[None]:
    kept = [(table, dict(table)) for table in (registry.STRATEGIES, CODECS, registry._from_outside)]
    yield
    for table, before in kept:
        table.clear()  # type: ignore[attr-defined]
        table.update(before)  # type: ignore[attr-defined]


def planted(tmp_path: Path, *changes: tuple[str, str]) -> Path:
    """The example with a mistake in it."""
    text = PLUGIN.read_text().replace('wire_name = "', f'wire_name = "planted_{next(NUMBER)}.')
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    file = tmp_path / "planted.py"
    file.write_text(text)
    return file


def test_the_codec_of_the_tutorial_keeps_every_law_and_needs_its_traits(tmp_path: Path) -> None:
    file = PLUGIN.with_name("new_codec.py")
    shown = CliRunner().invoke(app, ["check-strategy", str(file)])
    assert shown.exit_code == 0, shown.output
    silent = tmp_path / "silent.py"
    silent.write_text(file.read_text().replace('traits=CodecTraits(feedback="needed"),', "").replace("stripes", "mute"))
    shown = CliRunner().invoke(app, ["check-strategy", str(silent)])
    told = " ".join(shown.output.split())
    assert shown.exit_code == 2 and '75% of a vector never arrives: its traits need feedback="needed"' in told


def trained(spec: str) -> covey.Result:
    return covey.fit(mlp(), spec, 3, engine="simulated", steps=8)


def test_the_codec_of_the_tutorial_trains() -> None:
    """One that sends everything is plain bsp, to the bit; the others move the weights, too."""
    registry.load(PLUGIN.with_name("new_codec.py"))
    plain, whole, some = (trained(spec).weights for spec in ("bsp", "bsp + stripes(every=1)", "bsp + stripes"))
    assert all(torch.equal(plain[name], whole[name]) for name in plain)
    still = covey.fit(mlp(), "bsp", 3, engine="simulated", steps=8, rate=1e-12).weights
    moved = [float((some[name] - still[name]).norm() / (plain[name] - still[name]).norm()) for name in plain]
    assert min(moved) > 0.3


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (", copy=True", "", "changes with the vector: copy what is sent"),
        ("part[int(start) :: every] = came", "pass", "after 500 steps 100% of the sum never arrived"),
        ("= came", "= came * (1 + int(seed) % 2)", "decode uses the seed"),
    ],
)
def test_what_a_codec_may_not_do_is_named(old: str, new: str, said: str, tmp_path: Path) -> None:
    text = PLUGIN.with_name("new_codec.py").read_text()
    assert old in text
    file = tmp_path / "planted.py"
    file.write_text(text.replace(old, new).replace("stripes", name := f"planted_{next(NUMBER)}"))
    registry.load(file)
    assert said in " ".join(law(catalog.codec(name)) for law in codec_laws.CODEC_LAWS.values())


def test_the_example_keeps_every_law() -> None:
    shown = CliRunner().invoke(app, ["check-strategy", str(PLUGIN)])
    assert shown.exit_code == 0, shown.output
    laws_told = len(laws.STRATEGY_LAWS)
    assert shown.output.count("ok ") == 1 + 3 * laws_told + len(codec_laws.CODEC_LAWS)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("import time", "import time reaches clocks: use await node.now()"),
        ("from socket import socket", "import socket reaches sockets"),
        ('now = __import__("time").time()', "import time reaches clocks"),
        ('clock = importlib.import_module("datetime")', "import datetime reaches clocks"),
        ("import concurrent.futures", "import concurrent reaches threads"),
        ("from torch import distributed", "import torch.distributed reaches its own collectives"),
        ("print(torch.distributed)", "torch.distributed reaches its own collectives"),
        ("x = np.random.rand()", "numpy.random reaches global chance: use node.rng"),
        ("x = torch.randn(3)", "torch.randn reaches global chance"),
    ],
)
def test_what_reaches_past_the_effects_is_named(line: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(f"import torch\n{line}\n")
    assert [why.startswith(f"{file}:2: {said}") for why in beyond(file)] == [True]


def test_chance_that_is_handed_in_is_fine(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text("import torch\ntorch.randn(3, generator=torch.Generator())\n")
    assert beyond(file) == []


def test_a_program_that_reaches_past_the_effects_exits_2(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "import time, covey\nfrom dataclasses import dataclass\n@covey.register('late')\n@dataclass\nclass Late:\n"
        "    def codec(self):\n        return covey.Codec(name='late', make=None, nbytes=None)\n"
    )
    shown = CliRunner().invoke(app, ["check-strategy", str(file)])
    assert shown.exit_code == 2 and "own.py:1: import time reaches clocks" in shown.output


BROKEN = {
    "same seed": ("replica.descend(node)", "replica.descend(node); replica.model.mul_(1 + next(COUNT) * 1e-9)"),
    "settings": ('settings={"weight": self.weight}', "settings={}"),
    "shares": ("replica.model.lerp_(came.model, weight)", "replica.model.add_(came.model, alpha=weight)"),
    "endings": ("group, count = node.members(step)", "group, count = node.members(0)"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("mistake", "law", "said"),
    [
        ("same seed", laws.same_seed_same_trace, "two runs with the same seed differ"),
        ("settings", laws.settings_shown, "lacks weight"),
        ("shares", laws.stands_still_without_gradients, "do the shares of a mean add up to 1?"),
    ],
)
def test_a_planted_mistake_is_found(mistake: str, law: object, said: str, tmp_path: Path) -> None:
    counted = ("SERVER = Address", "import itertools\n\nCOUNT = itertools.count()\nSERVER = Address")
    registry.load(planted(tmp_path, counted, BROKEN[mistake]))
    assert callable(law) and said in law("shifting")


def test_traffic_that_is_declared_wrong_is_found(tmp_path: Path) -> None:
    down = 'server 0->worker {rank}": '
    registry.load(planted(tmp_path, (f"{down}run.steps", f"{down}2 * run.steps")))
    said = laws.bytes_as_declared("median")
    assert "with 2 workers 4648 bytes went server 0->worker 0 in 7 steps" in said and "says 9296" in said, said
    assert not laws.bytes_as_declared("shifting"), "which declares nothing"


@pytest.mark.parametrize("name", ["bsp", "petuum", "gosgd", "local_sgd", "firecaffe", "sgp"])
def test_the_law_of_bytes_holds_for_strategies_of_covey(name: str) -> None:
    assert not laws.bytes_as_declared(name)


@pytest.mark.parametrize("name", ["allreduce", "easgd", "gosgd", "tree_easgd", "sgp", "diloco", "downpour"])
def test_equal_models_stay_equal_under_strategies_of_covey(name: str) -> None:
    assert not laws.stands_still_without_gradients(name)


def test_a_strategy_trains_alike_on_processes(tmp_path: Path) -> None:
    """One whose roles share a variable does so only in virtual time, where they share a process."""
    assert not alike_on("local", "local_sgd(period=2)")
    shared = [
        ("SERVER = Address", "SEEN = {}\nSERVER = Address"),
        ("mine, far =", "SEEN[node.rank] = step; mine, far ="),
        ("replica.model.lerp_(", "replica.model.mul_(1 - 1e-3 * (SEEN.get(1 - node.rank, -1) >= step)).lerp_("),
    ]
    registry.load(planted(tmp_path, *shared))
    assert "do roles share a variable?" in alike_on("local", "shifting")


@pytest.mark.full
@pytest.mark.parametrize("engine", ["local", "torchrun"])
def test_the_example_is_alike_on_processes(engine: str) -> None:
    shown = CliRunner().invoke(app, ["check-strategy", str(PLUGIN), "--engine", engine])
    assert shown.exit_code == 0 and shown.output.count(f"alike on {engine}") == 3, shown.output


def test_an_engine_that_is_not_there_is_refused_at_once() -> None:
    shown = CliRunner().invoke(app, ["check-strategy", str(PLUGIN), "--engine", "locla"])
    assert shown.exit_code == 2 and "ok " not in shown.output and "local" in shown.output


def test_a_worker_that_is_awaited_after_its_end_is_found(tmp_path: Path) -> None:
    registry.load(planted(tmp_path, BROKEN["endings"], ("len(node.members(step))", "len(node.members(0))")))
    with pytest.raises(Exception, match="wait"):
        laws.ends_with_uneven_shares("shifting")


def changed(**how: object) -> Codec:
    """A codec of covey's with a mistake in its coders."""
    good = catalog.codec("int8")

    def make(form: object, seed: object) -> Coder:
        return replace(good.make(form, seed), **how)  # type: ignore[arg-type]

    return replace(good, make=make)


def test_broken_codecs_are_found() -> None:
    good = catalog.codec("int8")
    assert not any(law(good) for law in codec_laws.CODEC_LAWS.values())
    form = lambda wire: codec_laws.vector(1).map(lambda part: part[:3])  # noqa: E731
    assert "decode gives" in codec_laws.comes_back_in_its_form(changed(decode=form))
    assert "encode changes" in codec_laws.comes_back_in_its_form(
        changed(encode=lambda vector, memory: (vector.mul_(0.5), memory))
    )
    forgets = changed(decode=lambda wire: codec_laws.vector(1).map(torch.ones_like))
    lossy = replace(forgets, traits=CodecTraits(feedback="own"))
    assert "never arrived" in codec_laws.carries_on(lossy)
    assert "bytes travel" in codec_laws.size_is_told(replace(good, nbytes=lambda form: 1e6))
    assert "summable=True" in codec_laws.adds_if_it_says_so(replace(good, traits=CodecTraits(summable=True)))
    silent = replace(catalog.codec("topk(density=0.1)"), traits=CodecTraits())
    assert 'need feedback="needed"' in codec_laws.right_on_average(silent)
    own = good.make(Form.plain(codec_laws.vector(1)), Seed(3))
    shrinking = changed(decode=lambda wire: own.decode(wire).mul_(0.95))
    assert codec_laws.right_on_average(shrinking).startswith("5% of a vector never arrives")
    half = replace(catalog.codec("topk(density=0.5)"), fused=None, traits=CodecTraits(feedback="own"))
    assert "never arrived" in codec_laws.carries_on(half), "half of the numbers are dropped, and not carried on"
    assert "remember something" in codec_laws.stateless_if_for_weights(replace(good, traits=CodecTraits(weights=True)))

    def drawn(form: Form, seed: int) -> Coder:
        return Coder(lambda: None, lambda vector, memory: (vector * seed, memory), lambda wire: wire)

    by_chance = replace(good, make=drawn, traits=CodecTraits(weights=True))
    assert "differ with the seed" in codec_laws.stateless_if_for_weights(by_chance)
    assert "first vector" in codec_laws.exact_if_it_says_so(replace(good, traits=CodecTraits(exact_start=True)))


def test_a_restart_that_never_comes_about_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert same_after_a_restart("sandblaster") == "", "it is interrupted in a longer run"
    monkeypatch.setattr(restart, "LENGTHS", (9,))  # with one worker it does not come to rest after the middle of these
    assert same_after_a_restart("sandblaster").startswith("with 1 worker, no checkpoint came about")


@pytest.mark.parametrize("depends", ["replica.model.mul_(1 + seen[0] * 1e-6)", "replica.weigh(1.0 + seen[0])"])
@pytest.mark.parametrize(
    ("kept", "said"),
    [
        ('node.remember("seen", [0]).value', ""),
        ("[0]", "so keep it with node.remember; what is remembered: worker: nothing"),
    ],
)
def test_a_strategy_that_forgets_something_at_a_restart_is_named(
    kept: str, said: str, depends: str, tmp_path: Path
) -> None:
    """Something on which the model depends, or what the model counts in the scored mean."""
    counts = f"    seen = {kept}\n    for step in node.steps():\n        await replica.descend(node)\n"
    grows = f"        seen[0] += 1\n        {depends}\n"
    registry.load(
        planted(tmp_path, ("    for step in node.steps():\n        await replica.descend(node)\n", counts + grows))
    )
    found = same_after_a_restart("shifting")
    assert found.endswith(said) and bool(found) == bool(said)


class Flood(covey.Message):
    """What nobody reads before its end."""

    wire_name = "test_check.flood"

    step: int
    numbers: Vector


async def flood(node: covey.Node, replica: covey.Replica, *, numbers: bool) -> None:
    """Send to all others after each step, whatever becomes of it; read what they sent at the end."""
    peers = [peer for peer in node.members(0) if peer != node.address]
    for step in node.steps():
        await replica.descend(node)
        for peer in peers:
            await node.send(peer, Flood(step, replica.model if numbers else Vector(())), paced=True)
    for step in range(node.step):
        await node.gather(Flood, peers, step=step)


@dataclass(frozen=True)
class Flooding:
    numbers: bool = True

    def strategy(self, workers: int) -> covey.Strategy:
        def roles(workers: int, servers: int) -> list[covey.Role]:
            program = partial(flood, numbers=self.numbers)
            return [covey.Role(worker(rank), program, trains=True, scored=True) for rank in range(workers)]

        bare = catalog.resolve("gosgd", workers)
        return replace(bare, name="flooding", settings=asdict(self), roles=roles, composition=Composition())


@pytest.mark.parametrize(
    ("spec", "said"), [("flooding", "bytes lie on a link"), ("flooding(numbers=false)", "messages lie on a link")]
)
def test_mailboxes_that_fill_while_a_worker_is_stuck_are_found(spec: str, said: str) -> None:
    """What has come and is not read counts, not only what is on its way."""
    covey.register("flooding")(Flooding)
    assert said in laws.bounded(spec)


def test_one_parameter_that_moves_without_gradients_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = build.model(trial_task.task(), 7).state_dict()
    for name in begun:
        ended = {**begun, name: begun[name] + 0.5}
        monkeypatch.setattr(laws, "fit", lambda *_, weights=ended, **__: SimpleNamespace(weights=weights))
        assert "have no gradients end 0.5 away" in laws.stands_still_without_gradients("bsp")
