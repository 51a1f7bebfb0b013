"""Sites as processes that the launcher itself starts on this machine, each behind a command of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import suppress

from covey.engines.cluster.places import Places
from covey.engines.cluster.site_messages import SiteConfig
from covey.engines.process.launcher.role_processes import describe

PATIENCE = 8.0  # seconds that a site has to leave by itself


class SpawnedPlaces(Places):
    """One site for each host, started as `prefix… python -m covey.engines.cluster.site`."""

    def __init__(self, hosts: Sequence[str], address: str, prefixes: Sequence[Sequence[str]] = ()) -> None:
        self.hosts, self.address = list(hosts), address
        self.prefixes = prefixes or [()] * len(self.hosts)
        self.sites: list[subprocess.Popen[bytes]] = []

    def open(self, patience: float) -> list[str]:
        return self.hosts

    def pids(self) -> list[int]:
        return [child.pid for child in self.sites]

    def invite(self, configs: Sequence[SiteConfig], handed: bytes) -> None:
        for config, prefix in zip(configs, self.prefixes, strict=True):
            child = subprocess.Popen(
                [*prefix, *config.command],
                stdin=subprocess.PIPE, env=config.environment, process_group=0,
            )  # fmt: skip
            self.sites.append(child)
            assert child.stdin is not None
            with child.stdin:
                child.stdin.write(config.packed(handed))

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
