"""Sites as processes that the launcher itself starts on this machine, some of them behind a command of their own."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from covey.engines.cluster.places import Places
from covey.engines.cluster.site_messages import SiteConfig
from covey.engines.process.forking.role_processes import describe
from tests.warm import Command, Warm

ROOT = Path(__file__).parents[2]
PATIENCE = 8.0  # seconds that a site has to leave by itself


class SpawnedPlaces(Places):
    """One site for each host, started as `prefix… python -m covey.engines.cluster.site`; without prefix from warm."""

    def __init__(self, warm: Warm, hosts: Sequence[str], address: str, prefixes: Sequence[Sequence[str]] = ()) -> None:
        self.warm, self.hosts, self.address = warm, list(hosts), address
        self.prefixes = prefixes or [()] * len(self.hosts)
        self.sites: list[subprocess.Popen[str] | Command] = []

    def open(self, patience: float) -> list[str]:
        return self.hosts

    def pids(self) -> list[int]:
        return [child.pid for child in self.sites]

    def invite(self, configs: Sequence[SiteConfig], handed: bytes) -> None:
        for config, prefix in zip(configs, self.prefixes, strict=True):
            child = self.start(prefix, config)
            self.sites.append(child)
            assert child.stdin is not None
            with child.stdin:
                child.stdin.buffer.write(config.packed(handed))

    def start(self, prefix: Sequence[str], config: SiteConfig) -> subprocess.Popen[str] | Command:
        if not prefix:
            return self.warm.start(["-m", "tests.clusters.forked_site"], ROOT, config.environment, True, (1, 2))
        return subprocess.Popen(
            [*prefix, *config.command], stdin=subprocess.PIPE, env=config.environment, process_group=0, text=True
        )  # fmt: skip

    def lost(self) -> str:
        for host, child in zip(self.hosts, self.sites, strict=False):
            if (code := child.poll()) is not None:
                return f"the site on {host} {describe(code)}, and its roles with it"
        return ""

    def close(self, well: bool) -> None:
        for child in self.sites:
            with suppress(subprocess.TimeoutExpired):
                child.wait(PATIENCE if well else 1.0)
            child.kill()
            child.wait()
