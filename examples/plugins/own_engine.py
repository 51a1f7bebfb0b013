"""An engine of one's own: each site is a process of this machine, started with `subprocess`."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import covey


class Subprocesses(covey.Places):
    """One process for each site."""

    def __init__(self, sites: int) -> None:
        self.sites = sites
        self.started: list[subprocess.Popen[bytes]] = []

    def open(self, patience: float) -> list[str]:
        return ["localhost"] * self.sites

    def invite(self, configs: Sequence[covey.SiteConfig], handed: bytes) -> None:
        for config in configs:
            process = subprocess.Popen(
                config.command, env=config.environment, stdin=subprocess.PIPE, start_new_session=True
            )
            self.started.append(process)
            assert process.stdin is not None
            with process.stdin:
                process.stdin.write(config.packed(handed))

    def lost(self) -> str:
        ended = [process for process in self.started if process.poll() is not None]
        return f"process {ended[0].pid} has ended, and its roles with it" if ended else ""

    def close(self, well: bool) -> None:
        for process in self.started:
            try:
                process.wait(8 if well else 1)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def pids(self) -> list[int]:
        return [process.pid for process in self.started]


@covey.register("subprocesses")
@dataclass(frozen=True, kw_only=True)
class SubprocessEngine(covey.Engine):
    """processes of this machine"""

    sites: int = 0  # as many as there are workers

    def places(self, workers: int, hosts: Path | None) -> covey.Places:
        return Subprocesses(self.sites or workers)
