"""What a user's code raises comes back as the user's own traceback, once, and the rest of the run is torn down."""

from __future__ import annotations

import pytest

from covey.errors import PeerLost, PlanError, RoleFailed
from covey.run import launch
from tests.real.harness import Room, finish, fit, tracebacks

BOOM = 'raise ValueError("boom")'
LATE = f"if CALLS[0] == 5: {BOOM}"
ALONE = f'if CALLS[0] == 5 and first("fails"): {BOOM}'

DATA = f"""
class Data(torch.utils.data.Dataset):
    def __len__(self): return len(x)
    def __getitem__(self, number):
        if number == 40: {BOOM}
        return x[number], y[number]
"""
OPTIMIZER = f"""
class Failing(torch.optim.SGD):
    def step(self, closure=None): {BOOM}
"""
FAILURES = {
    "step on all": {"before_step": LATE},
    "step on one": {"before_step": ALONE},
    "model on all": {"before_build": BOOM},
    "model on one": {"before_build": f'if first("fails"): {BOOM}'},
    "data": {"more": DATA, "data": "Data()"},
    "optimizer": {"optimizer": "fail()", "more": f"def fail(): {BOOM}"},
    "optimizer's step": {"optimizer": "Failing(params, lr=0.1)", "more": OPTIMIZER},
    "evaluate": {"before_score": BOOM, "options": "evaluate=score"},
    "rate": {"more": f"def rate(progress): {BOOM}", "options": "rate=rate"},
}
QUICK = {"step on all", "model on one", "optimizer's step", "evaluate"}


@pytest.mark.parametrize("where", [pytest.param(w, marks=() if w in QUICK else pytest.mark.full) for w in FAILURES])
def test_the_users_traceback_once(room: Room, where: str, capfd: pytest.CaptureFixture[str]) -> None:
    task = room.task(samples=60, **FAILURES[where])  # no batch of one, for which the model is built before the run
    with pytest.raises(RoleFailed, match="failed: ValueError: boom") as failed:
        fit(task, "bsp", 3, epochs=2)
    assert tracebacks(str(failed.value)) == [task], "it begins at the user's line"
    assert "/covey/" not in str(failed.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.full
def test_where_the_user_has_no_line_the_part_of_the_task_is_named(room: Room) -> None:
    task = room.task(model="nn.Linear(5, 3)", more="step = None", options="loss=nn.functional.cross_entropy")
    with pytest.raises(RoleFailed, match="failed: RuntimeError: mat1 and mat2 shapes.*in the task's model") as failed:
        fit(task, "allreduce", 2, epochs=1)
    assert tracebacks(str(failed.value)) == []


def test_the_cause_of_an_error_is_told(room: Room) -> None:
    raising = 'try: {}["weights"]\n    except KeyError as error: raise ValueError("no weights") from error'
    with pytest.raises(RoleFailed, match="KeyError: 'weights'[^§]*direct cause[^§]*ValueError: no weights"):
        fit(room.task(before_build=raising), "local_sgd", 1, epochs=1)


@pytest.mark.parametrize("where", [pytest.param("before_build", marks=pytest.mark.full), "before_step"])
def test_sys_exit_in_a_task_is_a_failure(room: Room, where: str) -> None:
    with pytest.raises(RoleFailed, match="failed: SystemExit: 3") as failed:
        fit(room.task(**{where: "sys.exit(3)"}), "gosgd", 2, epochs=1)
    assert "sys.exit(3)" in str(failed.value)


def test_a_model_that_differs_between_roles_is_refused(room: Room) -> None:
    task = room.task(before_build="torch.manual_seed(os.getpid())")
    with pytest.raises(PlanError, match="built different initial weights from worker 0"):
        fit(task, "bsp", 2, epochs=1)


def test_data_of_another_length_on_a_role_are_refused(room: Room) -> None:
    more = DATA.replace("return len(x)", "return LENGTH").replace(BOOM, "pass") + "LENGTH = 60 if first('len') else 59"
    with pytest.raises(PlanError, match=r"len\(data\) is 59 for .*, and was 60 for the launcher"):
        fit(room.task(samples=60, data="Data()", more=more), "local_sgd", 1, epochs=1)


def test_what_covey_refuses_has_no_traceback(room: Room) -> None:
    with pytest.raises(PlanError) as refused:
        fit(room.task(before_build="return 5"), "bsp", 2, epochs=1)
    assert str(refused.value) == "task.model must return an nn.Module; it returned a int"


def test_on_the_command_line(room: Room) -> None:
    process = room.start("-m", "covey", "run", room.task(before_step=LATE), "--workers", "2", "--epochs", "2")
    code, _, err = finish(process)
    assert code == 1
    assert err.count("Traceback") == 1 and err.rstrip().endswith("ValueError: boom")


# -- scripts with a loop of their own ----------------------------------------------------------------------------------

LOOP = """
import sys, torch, covey
{before}
model = torch.nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = (torch.randn(64, 6), torch.randint(0, 3, (64,)))
with covey.join(model, optimizer) as member:
    for step, (x, y) in enumerate(member.shard(data, 4)):
        {inside}
        torch.nn.functional.cross_entropy(model(x), y).backward()
        member.step()
    {ending}
{after}
"""


def looping(**parts: str) -> str:
    return LOOP.format(**{"before": "", "inside": "", "ending": "", "after": "", **parts})


@pytest.mark.parametrize(
    "where",
    [
        pytest.param({"before": BOOM}, marks=pytest.mark.full),
        {"inside": f"if step == 3 and member.rank == 1: {BOOM}"},
        pytest.param({"inside": f"if step == 3: {BOOM}"}, marks=pytest.mark.full),
        pytest.param({"ending": BOOM}, marks=pytest.mark.full),
        {"after": BOOM},
    ],
    ids=str,
)
def test_a_script_that_fails(room: Room, where: dict[str, str], capfd: pytest.CaptureFixture[str]) -> None:
    script = room.script(looping(**where))
    with pytest.raises(RoleFailed, match="failed: ValueError: boom") as failed:
        launch(script, [], "bsp", 2, threads=1)
    assert tracebacks(str(failed.value)) == [str(script)]
    assert capfd.readouterr() == ("", "")


WAYS = {
    "no join": ("print('hello')", PlanError, "ended without calling covey.join"),
    "leaves before": ("import sys; sys.exit(2)", PlanError, r"called sys.exit\(2\) before covey.join$"),
    "joins twice": (looping(after="covey.join(model, optimizer)"), PlanError, "a second time"),
    "leaves inside": (looping(inside="sys.exit(4)"), RoleFailed, "failed: SystemExit: 4"),
    "leaves afterwards": (looping(after="sys.exit(5)"), PeerLost, "exited with code 5"),
}


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=pytest.mark.full if way.startswith("leaves") else ()) for way in WAYS]
)
def test_a_script_that_goes_its_own_way(room: Room, way: str) -> None:
    text, error, reason = WAYS[way]
    with pytest.raises(error, match=reason):
        launch(room.script(text), [], "bsp", 2, threads=1)


def test_a_script_may_leave_when_all_is_done(room: Room) -> None:
    script = room.script(looping(after="sys.exit(0)"))
    result = launch(script, [], "allreduce", 2, threads=1)
    assert result.stopped == "budget" and result.samples == 64
