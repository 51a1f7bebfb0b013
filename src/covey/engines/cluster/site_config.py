"""Configs for sites of this machine: in memory of the launcher's, which only processes of its own user can open."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from covey.decoding import WireFormat
from covey.engines.cluster.site_messages import SiteConfig

CONFIGS = "COVEY_SITE_CONFIGS"  # the variable of a site with the place of the configs


class SiteConfigs(msgspec.Struct, frozen=True):
    """What lies ready for the sites."""

    configs: list[SiteConfig]
    handed: bytes


_formats: WireFormat[SiteConfigs] = WireFormat("list of site configs", SiteConfigs)


class ConfigMemory:
    """The memory; it has no name, so that nothing can be left behind."""

    def __init__(self, configs: Sequence[SiteConfig], handed: bytes) -> None:
        self.handle = os.memfd_create("covey-configs", os.MFD_CLOEXEC)
        os.fchmod(self.handle, 0o600)
        self.path = f"/proc/{os.getpid()}/fd/{self.handle}"
        with os.fdopen(os.dup(self.handle), "wb") as file:
            file.write(msgspec.msgpack.encode(SiteConfigs(list(configs), handed)))

    def close(self) -> None:
        os.close(self.handle)


def read() -> SiteConfigs:
    """(A site) what lies there; OSError if the launcher is gone."""
    with open(os.environ.pop(CONFIGS), "rb") as file:
        return _formats.read(file.read(), "the launcher")
