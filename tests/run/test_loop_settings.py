"""What a loop does to `optimizer.param_groups` before a step governs that step, whoever takes it in which process."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from covey import catalog
from covey.errors import PlanError
from covey.message import Address
from covey.model.optimizers import Combined
from covey.model.replica import Replica
from covey.settings import SettingsUpdate
from tests.promises.specs import ONE_SERVER, SPECS
from tests.run.loops import adam, alone, fresh, launched, plain_sgd, rate, sgd, train
from tests.worlds import server, slowed, worker

VARIANTS = (
    "asynchronous(momentum=0.7)", "asynchronous over hashed", "ssp(bound=2) over proxies(groups=2)",
    "bsp over proxies(groups=2)", "bsp over colocated", "quorum(size=3, count=gradients)", "softsync(groups=2)",
    "downpour(server=task, push=2)", "bytescheduler(exchange=allreduce)",
    "bytescheduler(exchange=allreduce, partition=80)", "p3(slice=10)", "tictac(order=tac)",
    "local_sgd(momentum=average)", "allreduce(pattern=binomial)", "malt(share=model)",
)  # fmt: skip
"""Other programs, or other ways of the same."""


def names() -> list[str]:
    specs = [SPECS.get(name, name) for name in catalog.for_any_model()]
    return [spec for spec in specs if launched(spec, 2)] + list(VARIANTS)


def many(spec: str) -> list[int | None]:
    """The numbers of servers to try."""
    strategy = catalog.resolve(spec, 2)
    several = strategy.servers.count and not strategy.servers.fixed and strategy.name not in ONE_SERVER
    return [1, 2] if several else [None]


def start() -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in fresh().parameters()])


def one_batch(spec: str) -> bool:
    """Whether workers are as one with a large batch, to the last bit or so."""
    lossy = spec.startswith("bigdl") or "+" in spec
    return not lossy and all(role.one_batch for role in catalog.resolve(spec, 2).layout(2, None) if role.trains)


# -- every strategy ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", names())
def test_at_rate_zero_weights_stand_still(spec: str) -> None:
    """The optimizer was made with 0.1: whoever steps with that, and not with the loop's 0, moves."""
    for servers in many(spec):
        still = train(spec, rate(lambda step: 0.0), servers=servers)
        torch.testing.assert_close(still.weights, start(), rtol=0, atol=1e-12)
    moved = train(spec, servers=many(spec)[0])
    assert (moved.weights - start()).abs().max() > 1e-3, "the test sees weights that move"


def cosine(step: int) -> float:
    return 0.05 * (1 + math.cos(math.pi * step / 8))


@pytest.mark.parametrize("spec", [spec for spec in names() if one_batch(spec)])
def test_in_lockstep_a_cosine_schedule_gives_the_plain_loops_weights(spec: str) -> None:
    expected = alone(rate(cosine), workers=2, steps=8)
    for servers in many(spec):
        found = train(spec, rate(cosine), servers=servers, steps=8)
        torch.testing.assert_close(found.weights, expected, rtol=0, atol=1e-12)


def falling(step: int) -> float:
    return 0.1 * 0.9**step


@pytest.mark.parametrize("spec", [spec for spec in names() if not one_batch(spec)])
def test_elsewhere_the_rates_that_are_applied_are_the_loops(spec: str) -> None:
    """Who steps on gradients of one step each has each step's rate; a mean over several steps that of the latest."""
    found = train(spec, rate(falling), servers=many(spec)[-1], steps=6, cluster=slowed(w1=2.5))
    wanted = {falling(step) for step in range(6)}
    assert found.rates, "somebody steps"
    for who, rates in found.rates.items():
        applied = Counter(value for groups in rates for value in groups)
        if not spec.startswith(("softsync", "quorum", "ssp(bound=2) over proxies", "downpour(server=task, push=2)")):
            assert set(applied) == wanted, who
        assert set(applied) <= wanted, who
        if who.role == "server" and spec.split("(", 1)[0] in ("ssp", "asynchronous", "dssp", "dc_asgd", "value_bound"):
            assert "proxies" in spec or set(applied.values()) == {2}, "each gradient of a step has that step's rate"


@pytest.mark.parametrize("spec", ["bsp", "ssp", "asynchronous", "p3", "sliced", "downpour(server=task)", "firecaffe"])
@pytest.mark.parametrize("servers", [1, 2])
def test_momentum_weight_decay_and_betas_travel_too(spec: str, servers: int) -> None:
    def turn(replica: Replica, rank: int, step: int) -> None:
        assert replica.updates.settings
        for group in replica.updates.settings.live.param_groups:
            group.update(lr=0.01 * (step + 1), betas=(0.5 + 0.05 * step, 0.9), weight_decay=0.1 * step, amsgrad=False)

    found = train(spec, turn, workers=1, servers=servers if spec != "firecaffe" else None, steps=5, make=adam)
    torch.testing.assert_close(found.weights, alone(turn, workers=1, steps=5, make=adam), rtol=0, atol=1e-12)


@pytest.mark.parametrize("spec", [spec for spec in names() if catalog.resolve(spec, 2).servers.count])
def test_workers_that_disagree_are_refused_by_whoever_steps_for_them(spec: str) -> None:
    """Where workers step themselves the launcher compares them (tests/real/test_loop_settings.py)."""

    def turn(replica: Replica, rank: int, step: int) -> None:
        rate(lambda step: 0.1 if step < 2 or rank == 0 else 0.2)(replica, rank, step)

    stepping = {who.role for who in train(spec, servers=many(spec)[0], steps=2).rates}
    if stepping == {"worker"} or spec in ("firecaffe", "downpour", "quorum") or "proxies" in spec:
        return
    with pytest.raises(
        PlanError, match=r"at step 2: lr of parameter group 0 is 0\.\d on worker \d and 0\.\d on worker"
    ):
        train(spec, turn, servers=many(spec)[0], steps=5)


# -- what is told, and what is not ------------------------------------------------------------------------------------


def test_settings_that_stay_are_told_once() -> None:
    stays = train("bsp", servers=2, steps=6)
    assert len(stays.log.kinds(SettingsUpdate)) == 4, "by each worker to each server"
    changes = train("bsp", rate(lambda step: 0.1 if step < 3 else 0.01), servers=2, steps=6)
    assert len(changes.log.kinds(SettingsUpdate)) == 8
    assert [event.message.rows for event in changes.log.kinds(SettingsUpdate)][-1] == [(0, "lr", 0.01)], (
        "only what is new"
    )


def test_settings_are_no_traffic() -> None:
    quiet, busy = train("asynchronous", steps=6), train("asynchronous", rate(cosine), steps=6)
    assert busy.log.bytes_from(worker(0)) == quiet.log.bytes_from(worker(0))


# -- what cannot be ---------------------------------------------------------------------------------------------------


def at_step(number: int, change: Callable[[Optimizer], None]) -> Callable[[Replica, int, int], None]:
    def turn(replica: Replica, rank: int, step: int) -> None:
        assert replica.updates.settings
        if step == number:
            change(replica.updates.settings.live)

    return turn


def give_momentum(optimizer: Optimizer) -> None:
    optimizer.param_groups[0]["momentum"] = 0.8


def add_a_group(optimizer: Optimizer) -> None:
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})


def set_an_object(optimizer: Optimizer) -> None:
    optimizer.param_groups[0]["mask"] = {"a": torch.zeros(3)}


def set_nan(optimizer: Optimizer) -> None:
    optimizer.param_groups[0]["lr"] = float("nan")


@pytest.mark.parametrize(("spec", "change", "words"), [
    ("asynchronous(momentum=0.7)", give_momentum, "momentum of parameter group 0 from 0.5 to 0.8, but this"),
    ("downpour", give_momentum, r"momentum .* downpour's servers step with Adagrad.*server=task"),
    ("downpour(gamma=0.1)", lambda o: o.param_groups[0].update(lr=0.2), r"lr of parameter group 0 .* gamma is given"),
    ("hogwild(momentum=drop)", give_momentum, "the loop gave its SGD momentum, which Hogwild's writers cannot share"),
    ("dogwild(machines=1, momentum=drop)", give_momentum, "the loop gave its SGD momentum"),
    ("bsp + dgc(warmup=0)", give_momentum, "brings the momentum itself"),
    ("bsp", add_a_group, r"parameter groups changed after covey.join .sizes were \[4\], now \[4, 1\]"),
    ("allreduce", add_a_group, r"parameter groups changed after covey.join"),
    ("bsp", set_an_object, "'mask' of parameter group 0 is a dict, which cannot be told"),
    ("easgd", set_nan, "'lr' of parameter group 0 is NaN"),
])  # fmt: skip
def test_a_setting_that_cannot_be_is_refused_by_name(
    spec: str, change: Callable[[Optimizer], None], words: str
) -> None:
    codec = "dgc" in spec
    with pytest.raises(PlanError, match=words):
        train(spec, at_step(0 if codec else 2, change), make=plain_sgd if codec else sgd)


def test_an_optimizer_that_the_strategy_cannot_do_is_refused_at_the_start() -> None:
    with pytest.raises(PlanError, match="dgc.* brings the momentum itself"):
        train("bsp + dgc(warmup=0)", steps=1)


def test_a_rate_that_is_a_tensor_is_told_as_a_number() -> None:
    def turn(replica: Replica, rank: int, step: int) -> None:
        rate(lambda step: torch.tensor(falling(step), dtype=torch.float64))(replica, rank, step)  # type: ignore[arg-type]

    found = train("asynchronous", turn, steps=3)
    assert {value for groups in found.rates[server(0)] for value in groups} == {falling(step) for step in range(3)}


def test_a_rate_that_is_changed_in_place_has_changed() -> None:
    held = torch.tensor(0.5, dtype=torch.float64)

    def turn(replica: Replica, rank: int, step: int) -> None:
        rate(lambda step: held.fill_(0.5 * 2.0**-step))(replica, rank, step)  # type: ignore[arg-type, return-value]

    found = train("bsp", turn, steps=3)
    assert [groups[0] for groups in found.rates[server(0)]] == [0.5, 0.25, 0.125]


# -- optimizers that are not plain ------------------------------------------------------------------------------------


def grouped(module: nn.Module) -> Optimizer:
    first, *rest = list(module.parameters())
    rest[-1].requires_grad_(False)
    return torch.optim.SGD([{"params": [first], "lr": 0.3}, {"params": rest, "weight_decay": 0.1}], lr=0.1)


@pytest.mark.parametrize("spec", ["bsp", "allreduce", "sliced", "p3", "downpour", "bytescheduler(exchange=allreduce)"])
def test_groups_and_frozen_parameters_keep_their_own_settings(spec: str) -> None:
    def turn(replica: Replica, rank: int, step: int) -> None:
        assert replica.updates.settings
        for number, group in enumerate(replica.updates.settings.live.param_groups):
            group["lr"] = (0.0, 0.05)[number]

    found = train(spec, turn, servers=many(spec)[-1], make=grouped, steps=4)
    if spec != "downpour":
        expected = alone(turn, workers=2, steps=4, make=grouped)
        torch.testing.assert_close(found.weights, expected, rtol=0, atol=1e-12)
    moved = [
        bool((a - b).abs().max() > 0) for a, b in zip(found.scored.parameters(), fresh().parameters(), strict=True)
    ]
    assert moved == [False, True, True, False]


def head_only(module: nn.Module) -> Optimizer:
    return torch.optim.SGD(list(module.parameters())[2:], lr=0.1)


@pytest.mark.parametrize("spec", ["bsp", "allreduce", "sliced", "p3", "downpour", "easgd"])
def test_parameters_that_no_optimizer_has_do_not_move(spec: str) -> None:
    found = train(spec, workers=1, make=head_only)
    moved = [
        bool((a - b).abs().max() > 0) for a, b in zip(found.scored.parameters(), fresh().parameters(), strict=True)
    ]
    assert moved == [False, False, True, True]


def loaded(module: nn.Module) -> Optimizer:
    """One with a past, as after load_state_dict."""
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    for step, parameter in enumerate(module.parameters()):
        optimizer.state[parameter] = {
            "step": torch.tensor(3.0 + step), "exp_avg": torch.full_like(parameter, 0.5),
            "exp_avg_sq": torch.linspace(0.1, 2, parameter.numel(), dtype=torch.float64).view(parameter.shape),
        }  # fmt: skip
    return optimizer


@pytest.mark.parametrize("spec", ["bsp", "sliced", "p3(slice=10)", "allreduce", "bytescheduler(exchange=allreduce)"])
def test_state_that_was_loaded_before_reaches_whoever_steps(spec: str) -> None:
    expected = alone(rate(cosine), workers=2, steps=3, make=loaded)
    for servers in many(spec):
        found = train(spec, rate(cosine), servers=servers, steps=3, make=loaded)
        torch.testing.assert_close(found.weights, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("spec", "lacks"), [("bsp", True), ("sliced", True), ("allreduce", False), ("easgd", False)])
def test_state_that_lies_elsewhere_is_not_written_down_in_silence(spec: str, lacks: bool) -> None:
    """As a loop does that saves its optimizer after an epoch."""

    def save(optimizer: Optimizer) -> None:
        if lacks:
            with pytest.warns(UserWarning, match=r"SGD.state_dict\(\) holds no momentum .* Use checkpoint=… to save"):
                optimizer.state_dict()
        else:
            assert optimizer.state_dict()["state"]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(spec, at_step(3, save))


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.NAdam, torch.optim.RMSprop, torch.optim.Adagrad])
def test_any_optimizer_can_be_divided(kind: type[Optimizer]) -> None:
    def make(module: nn.Module) -> Optimizer:
        return kind(module.parameters(), lr=0.01)  # type: ignore[call-arg]

    expected = alone(rate(falling), workers=2, steps=3, make=make)
    found = train("bsp", rate(falling), servers=2, steps=3, make=make)
    torch.testing.assert_close(found.weights, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("spec", ["bsp", "sliced", "firecaffe", "allreduce"])
def test_the_norm_that_a_loop_clips_to_is_that_of_its_step(spec: str) -> None:
    def turn(replica: Replica, rank: int, step: int) -> None:
        replica.updates.clip_norm = (None, 0.1, 0.01)[step % 3]

    expected = alone(turn, workers=2, steps=4)
    for servers in many(spec):
        found = train(spec, turn, servers=servers, steps=4)
        torch.testing.assert_close(found.weights, expected, rtol=0, atol=1e-12)


# -- several optimizers -----------------------------------------------------------------------------------------------


def two(module: nn.Module) -> list[Optimizer]:
    parameters = list(module.parameters())
    return [torch.optim.Adam(parameters[:2], lr=0.01), torch.optim.SGD(parameters[2:], lr=0.1, momentum=0.9)]


def in_turn(replica: Replica, rank: int, step: int) -> None:
    """As a GAN's loop: now the one, now the other."""
    assert replica.updates.settings and isinstance(replica.updates.settings.live, Combined)
    replica.updates.settings.live.only(replica.updates.settings.live.parts[step % 2])


@pytest.mark.parametrize("spec", [spec for spec in names() if one_batch(spec)])
def test_only_the_optimizer_that_steps_moves_its_parameters_and_its_state(spec: str) -> None:
    expected = alone(in_turn, workers=2, steps=5, make=two)
    for servers in many(spec):
        found = train(spec, in_turn, servers=servers, steps=5, make=two)
        torch.testing.assert_close(found.weights, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("spec", [spec for spec in names() if not one_batch(spec) and "dgc" not in spec])
def test_one_of_two_optimizers_steps_under_every_strategy(spec: str) -> None:
    def turn(replica: Replica, rank: int, step: int) -> None:
        in_turn(replica, rank, 0)

    def make(module: nn.Module) -> list[Optimizer]:
        parameters = list(module.parameters())
        return [torch.optim.SGD(parameters[:2], lr=0.1), torch.optim.SGD(parameters[2:], lr=0.1)]

    found = train(spec, turn, servers=many(spec)[-1], make=make)
    moved = [
        bool((a - b).abs().max() > 1e-9) for a, b in zip(found.scored.parameters(), fresh().parameters(), strict=True)
    ]
    assert moved == [True, True, False, False]


def test_one_of_several_must_be_named() -> None:
    combined = Combined(two(fresh()))
    with pytest.raises(PlanError, match="2 optimizers, so member.step.optimizer=.* none was named"):
        combined.only(None)
    with pytest.raises(PlanError, match="this SGD is none of them"):
        combined.only(torch.optim.SGD(fresh().parameters(), lr=0.1))


def test_a_combined_optimizer_needs_whole_parameters_where_one_of_its_parts_does() -> None:
    plain, whole = (make(fresh().parameters(), lr=0.1) for make in (torch.optim.SGD, torch.optim.LBFGS))
    assert Combined([plain, None]).elementwise
    assert not Combined([plain, whole]).elementwise and not Combined([whole, plain]).elementwise


def test_a_combined_optimizer_keeps_its_parts_state() -> None:
    module = fresh()
    combined = Combined(two(module))
    for p in module.parameters():
        p.grad = torch.ones_like(p)
    combined.step()
    kept = combined.state_dict()
    other = Combined(two(fresh()))
    other.load_state_dict(kept)
    assert len(combined.state) == len(other.state) == 4
    assert all(p in combined.state for p in module.parameters())
    combined.state.clear()
    assert not len(combined.state) and not any(part.state for part in combined.parts if part)


# -- restarts ---------------------------------------------------------------------------------------------------------


def test_what_is_known_of_settings_is_kept() -> None:
    before = train("asynchronous", rate(falling), steps=3).replicas[server(0)]
    after = train("asynchronous", steps=1).replicas[server(0)]
    assert before.updates.settings and after.updates.settings
    after.restore(before.state())
    gradients: list[tuple[Address, int]] = [(worker(0), 2)]
    assert after.updates.settings.of(server(0), gradients) == before.updates.settings.of(server(0), gradients)
    assert after.updates.settings.of(server(0), gradients).groups[0]["lr"] == falling(2)
