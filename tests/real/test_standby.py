"""A second launcher waits, takes the run over when the first one dies or freezes, and nothing is written twice."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from covey.checkpoint.file_log import NAME
from tests.etcd import etcd, needs_etcd
from tests.real.harness import PATIENCE, Room, fit
from tests.warm import Command

STEPS, SOON = 120, 10.0  # seconds: the promise, from the death to the take-over
SLOWLY = "time.sleep(0.002 if (HERE / 'soon').exists() else 0.3)"


class Launchers:
    """Several launchers of one run."""

    def __init__(self, room: Room, keeper: str) -> None:
        self.room, self.keeper, self.task = room, keeper, room.task(before_step=SLOWLY)

    def start(self, name: str, *flags: str) -> Command:
        return self.room.start(
            "-m", "covey", "run", self.task, "--strategy", "allreduce", "--workers", "2", "--steps", str(STEPS),
            "--checkpoint", "kept", "--every", "0.3s", "--keeper", self.keeper, "--runs", f"runs-{name}",
            "--save", f"{name}.safetensors", *flags,
        )  # fmt: skip

    def hurry(self) -> None:
        """What is to happen in the middle of the run has happened."""
        (self.room.path / "soon").touch()

    def plain(self) -> dict[str, torch.Tensor]:
        return fit(self.task, "allreduce", 2, steps=STEPS).weights

    def saved(self, name: str) -> dict[str, torch.Tensor]:
        return load_file(self.room.path / f"{name}.safetensors")


def said(process: Command, words: str) -> None:
    """Wait until it has said so."""
    until = time.monotonic() + PATIENCE
    while words not in "".join(process.written()):
        assert time.monotonic() < until and process.poll() is None, (words, process.written())
        time.sleep(0.02)


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def newest(room: Room) -> str:
    return (room.path / "kept" / "latest").read_text()


def test_the_one_that_stands_by_takes_over_a_folder(room: Room) -> None:
    launchers = Launchers(room, "file")
    first = launchers.start("first")
    room.appears("kept/checkpoint-000001")
    second = launchers.start("second", "--standby")
    said(second, "standing by: another run keeps its checkpoints in kept")
    first.kill()
    said(second, "took over the run: it goes on from checkpoint-")  # else the third may be before it
    launchers.hurry()
    third = launchers.start("third", "--standby")
    assert second.wait(PATIENCE) == 0, second.communicate()
    out, err = third.communicate(PATIENCE)
    assert third.returncode == 0 and "the run is over: allreduce, " in out + err
    assert same(launchers.saved("second"), launchers.plain()) and not (room.path / "third.safetensors").exists()
    whats = [line.split('"what":"')[1].split('"')[0] for line in (room.path / "kept" / NAME).read_text().splitlines()]
    assert [what for what in whats if what != "checkpoint"] == ["begin", "lead", "end"]


@needs_etcd
@pytest.mark.parametrize(
    "number", [signal.SIGSTOP, pytest.param(signal.SIGKILL, marks=pytest.mark.full)], ids=["frozen", "killed"]
)
def test_it_takes_over_within_ten_seconds(room: Room, tmp_path: Path, number: signal.Signals) -> None:
    with etcd(tmp_path / "etcd") as found:
        launchers = Launchers(room, found.keeper())
        first = launchers.start("first")
        room.appears("kept/checkpoint-000001")
        second = launchers.start("second", "--standby")
        said(second, "standing by: ")
        lost = time.monotonic()
        first.send_signal(number)
        said(second, "took over the run: it goes on from checkpoint-")
        took = time.monotonic() - lost
        launchers.hurry()
        if number == signal.SIGSTOP:
            first.send_signal(signal.SIGCONT)
            out, err = first.communicate(PATIENCE)
            assert first.returncode == 1 and "another launcher may lead by now: this one stops" in out + err, (out, err)
        assert second.wait(PATIENCE) == 0, second.communicate()
        assert took < SOON, took
        print(f"took over after {took:.2f} s")
    assert same(launchers.saved("second"), launchers.plain()) and not (room.path / "first.safetensors").exists()
    assert os.path.exists(room.path / "kept" / newest(room))


@needs_etcd
@pytest.mark.full
def test_without_etcd_the_run_stops_and_can_go_on(room: Room, tmp_path: Path) -> None:
    with etcd(tmp_path / "etcd") as found:
        launchers = Launchers(room, found.keeper())
        first = launchers.start("first")
        room.appears("kept/checkpoint-000001")
    out, err = first.communicate(PATIENCE)
    assert first.returncode == 1 and "has not renewed the lease of 'digits' for 5." in out + err
    launchers.keeper = "file"
    launchers.hurry()
    assert launchers.start("second", "--standby").wait(PATIENCE) == 0
    assert same(launchers.saved("second"), launchers.plain())
