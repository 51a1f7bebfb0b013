"""Ray: a site is a named actor in a bundle of a placement group; tensors travel on covey's own links.

`--engine ray` starts a Ray cluster on this machine for the run; `--engine 'ray(address=auto)'` uses one that is there,
and so does a program that has called `ray.init` already. What covey was pointed at stays when the run is over.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from uuid import uuid4

import msgspec
import ray
from ray._private import ray_constants
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from covey.engines.cluster import shipping, site, this_host
from covey.engines.cluster.daemon_directory import DaemonDirectory, inhabitants, same_handlers
from covey.engines.cluster.places import Places
from covey.engines.cluster.site_messages import SiteConfig, configs
from covey.errors import PlanError

ROOM = 60.0  # seconds until the cluster must have room for all sites
LOOK = 0.2  # seconds between two looks at the actors
PATIENCE = 8.0  # seconds that a site has to leave by itself when all went well
HASTE = 4.0  # and when it did not; an actor that Ray ends has its children killed, which leaves their files
WORDY = 300  # characters of an error of Ray's


class RaySite:
    """The actor: covey's process on a node, which starts roles."""

    def __init__(self, called: str) -> None:
        self.called = called

    def __repr__(self) -> str:
        return self.called  # what Ray writes before its output

    def host(self, config: bytes, handed: bytes) -> None:
        site.host(configs.read(config, "the launcher"), handed)


class RayPlaces(Places):
    """One actor for each site, in a placement group."""

    def __init__(self, sites: int, address: str, placement: str, cpus: float, gpus: float) -> None:
        self.sites, self.wanted, self.placement = sites, address, placement
        self.cpus, self.gpus = cpus, gpus  # of each site
        self.daemons: DaemonDirectory | None = None  # of a Ray cluster that covey has started
        self.joined = False  # covey has called ray.init
        self.away = False  # there are nodes that may not have the task's file
        self.group: PlacementGroup | None = None
        self.run = f"covey-{uuid4().hex[:8]}"  # the namespace of its actors
        self.task: Any = None  # what was handed over
        self.actors: dict[int, Any] = {}  # by the number of the site
        self.called: dict[int, str] = {}
        self.running: dict[int, Any] = {}
        self.looked = 0.0

    def pids(self) -> list[int]:
        return inhabitants(self.daemons.path) if self.daemons else []

    def open(self, patience: float) -> list[str]:
        self._meet()
        nodes = self._nodes()
        names = {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes()}
        if not self.daemons:
            self.away = sum(node["Alive"] for node in ray.nodes()) > 1 or self._client
            self.address = self._address(nodes)
        return [names[node] for node in nodes]

    def invite(self, configs: Sequence[SiteConfig], handed: bytes) -> None:
        self.task = ray.put(handed)
        for config in shipping.with_code(configs) if self.away else configs:
            self._start(config)

    def invite_again(self, config: SiteConfig) -> bool:
        """Have Ray start another actor in the bundle of a lost one; of a lost node, Ray moves the bundle to another."""
        with suppress(RayError):
            ray.kill(self.actors[config.site])
        (config,) = shipping.with_code([config]) if self.away else [config]
        self._start(config)
        return True

    def lost(self) -> str:
        return next(iter(self.ended().values()), "")

    def ended(self) -> dict[int, str]:
        if not self.running or time.monotonic() - self.looked < LOOK:
            return {}
        self.looked = time.monotonic()
        ended, _ = ray.wait(list(self.running.values()), num_returns=len(self.running), timeout=0)
        found = {number: self._how(number) for number, one in self.running.items() if one in ended}
        for number in found:
            del self.running[number]
        return found

    def close(self, well: bool) -> None:
        try:
            if ray.is_initialized():
                self._dismiss(well)
                if self.joined:
                    ray.shutdown()  # leaves a cluster that was there before
        finally:
            if self.daemons:
                self.daemons.close()

    # -- a Ray cluster ----------------------------------------------------------------------------------------------

    def _meet(self) -> None:
        """Use the Ray that this process is in, the one that is named, or one of our own."""
        if ray.is_initialized():
            return
        address = self.wanted or os.environ.get("RAY_ADDRESS", "")
        if address and address != "local":
            try:
                with same_handlers():
                    ray.init(address=address, logging_level=logging.WARNING)
            except (ConnectionError, RuntimeError, ValueError, OSError) as error:
                raise PlanError(f"no Ray at {address} ({_words(error)}); start one with: ray start --head") from None
        else:
            self.daemons = DaemonDirectory("ray")
            cores = max(os.cpu_count() or 1, -(-self.sites * self.cpus // 1))
            told = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
            # Ray's default is 15: anything else on the machine would come before the training
            told |= {"RAY_worker_niceness": "0"} if "RAY_worker_niceness" not in os.environ else {}
            with _on_loopback() as alone, self.daemons.starting(**told, **alone):
                ray.init(
                    address="local", include_dashboard=False, num_cpus=int(cores), logging_level=logging.ERROR,
                    _temp_dir=str(self.daemons.path), _node_ip_address="127.0.0.1",
                )  # fmt: skip
        self.joined = True

    def _nodes(self) -> list[str]:
        """The node of each site, once the cluster has room for them all."""
        need = {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {})}
        self.group = placement_group([need] * self.sites, strategy=self.placement.upper())
        if not self.group.wait(ROOM):
            free = {name: count for name, count in ray.available_resources().items() if name in ("CPU", "GPU")}
            raise PlanError(
                f"Ray has no room for {self.sites} sites with {need} each within {ROOM:g} s; free are {free}: "
                "use fewer workers, ray(sites=…) or ray(cpus=…)"
            )
        found: dict[int, str] = placement_group_table(self.group)["bundles_to_node_id"]
        return [found[number] for number in range(self.sites)]

    @property
    def _client(self) -> bool:
        return bool(ray.util.client.ray.is_connected())

    def _address(self, nodes: Sequence[str]) -> str:
        """Where this process is found from the sites."""
        if self._client:
            return this_host.address_towards("tcp://" + self.wanted.removeprefix("ray://"))
        if set(nodes) == {ray.get_runtime_context().get_node_id()}:
            return "127.0.0.1"
        return str(ray.util.get_node_ip_address())

    # -- actors ------------------------------------------------------------------------------------------------------

    def _start(self, config: SiteConfig) -> None:
        assert self.group is not None, "open comes first"
        need: Any = {"num_cpus": self.cpus, "num_gpus": self.gpus, "max_restarts": 0}
        called, bundle = f"covey {config.called}", PlacementGroupSchedulingStrategy(self.group, config.site)
        name = f"{called}, after {config.incarnation} others" if config.incarnation else called
        kind: Any = ray.remote(**need)(RaySite)
        actor = kind.options(name=name, namespace=self.run, scheduling_strategy=bundle).remote(called)
        self.actors[config.site], self.called[config.site] = actor, config.called
        self.running[config.site] = actor.host.remote(msgspec.msgpack.encode(config), self.task)

    def _how(self, number: int) -> str:
        """How the actor of a site ended, in words."""
        who = f"{self.called[number]}, a Ray actor,"
        try:
            ray.get(self.running[number])
        except RayTaskError as error:
            return f"{who} failed: {_words(error.cause)}"
        except RayActorError as error:
            why = "covey must be installed on every node" if "import" in str(error) else _exit_detail(str(error))
            return f"{who} died, and its roles with it{f' ({why})' if why else ''}"
        except RayError as error:
            return f"{who} could not run: {_words(error)}"
        return f"{who} left before the run was over"

    def _dismiss(self, well: bool) -> None:
        """Sites leave by themselves, or are made to."""
        with suppress(RayError):
            if self.running:
                left = list(self.running.values())
                ray.wait(left, num_returns=len(left), timeout=PATIENCE if well else HASTE)
            for actor in self.actors.values():
                ray.kill(actor)
            if self.group:
                remove_placement_group(self.group)


@contextmanager
def _on_loopback() -> Iterator[dict[str, str]]:
    """Have a Ray cluster that starts inside listen only on this machine; yields the variables for its processes.

    It would replace 127.0.0.1 by an address that others can reach, and listen on all of them; not so where it takes
    itself for one that has no cluster, as on other systems than Linux.
    """
    usual = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield {ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR: "0"}
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = usual


def _words(error: object) -> str:
    """An error in one line that is not too long."""
    text = " ".join(str(error).split())
    return text if len(text) <= WORDY else f"{text[:WORDY]}…"


def _exit_detail(text: str) -> str:
    """What Ray knows of a worker process that died, without its advice."""
    return text.partition("Worker exit detail: ")[2].partition(".")[0].strip()
