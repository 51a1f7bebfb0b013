"""How fast are this machine and this task? Measured with real processes, for the virtual engine."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from covey.calibrate.measuring import BIG, FASTEST, SMALL, MeasuredMeans, cores, measure
from covey.calibrate.probes import WARM
from covey.calibrate.rehearsal import THOROUGH, RehearsalTerms, rehearsed
from covey.calibrate.roles import Assignment
from covey.calibrate.roles import __name__ as probes
from covey.calibrate.short_task import shortened
from covey.engines import handover, machine
from covey.engines.cluster.cluster_processes import ClusterProcesses
from covey.engines.cluster.places import MeetingTerms
from covey.engines.entries.lab import LabEngine
from covey.engines.local import LocalProcesses
from covey.engines.process.contacts import Contacts
from covey.errors import PlanError
from covey.exchange.auto import options
from covey.exchange.codec_costs import prices
from covey.simulate import BytesPerSecond, Cluster, Link, Machine, Seconds
from covey.simulate.machines import machine_name
from covey.spec import bind, parse_call
from covey.task import Task, load_task

if TYPE_CHECKING:
    from covey.engines.lab.settings import LabSettings

BATCHES = 40
HEADERS = 66 / 1448  # Ethernet, IP and TCP with timestamps, in packets of 1500 bytes
SHAPED = 0.05  # seconds that the big message takes on a shaped link


def calibrate(
    task: Task | str, engine: str = "local", *, batches: int = BATCHES, threads: int | None = None,
    told: Callable[[str], None] | None = None, rehearsal: RehearsalTerms = THOROUGH,
) -> Cluster:  # fmt: skip
    """What the virtual engine has to know of this machine, or of a lab on it, to foresee runs of a task.

    What is measured of parts is corrected by short runs of real strategies, the `rehearsal`.
    """
    if batches < 5:
        raise PlanError(f"--batches {batches}: a spread needs 5 or more")
    call = parse_call(engine)
    say = told or (lambda _: None)
    given = load_task(task, told) if isinstance(task, str) else task
    workers = max(2, min(cores(), 8))  # all cores compute at once, as they will; two, so that one can speak to another
    short = shortened(given, task, workers)
    name = short if isinstance(short, str) else ""
    given = given if isinstance(short, str) else short
    asked = Assignment(
        task=os.path.abspath(name) if name else "", workers=workers, steps=WARM + batches,
        threads=threads or machine.threads_each(workers), sizes=(SMALL, BIG), beside=(SMALL, BIG),
        contacts=Contacts(book={}, launcher=""),
    )  # fmt: skip
    if call.name == "local" and not call.settings:
        found = _local(measure(given, LocalProcesses(probes, asked.threads), asked), asked)
    elif call.name == "lab":
        found = _lab(given, asked, bind(call, LabEngine, "engine", engine).settings(2))
    else:
        raise PlanError(f"covey calibrates --engine local and --engine 'lab(…)', not {engine}: describe others by hand")
    return _priced(rehearsed(found, given, short, engine, asked.threads, say, rehearsal))


def _priced(cluster: Cluster) -> Cluster:
    """With what codecs cost here: those among which `auto` chooses."""
    return replace(cluster, coding=prices(options()[1:]))


def _local(found: MeasuredMeans, asked: Assignment) -> Cluster:
    """All roles on this machine; the link is what TCP between machines would cost, at the usual bandwidth."""
    handling, near, far = found.handling(), found.toll("network"), found.toll("tcp network", BIG)
    here = [handling.send, handling.receive, near, near]
    afar = [found.toll("tcp driver", BIG), far, far]
    return Cluster(
        **found.compute(), threads=asked.threads, handling=handling,
        local=Link(latency=found.latency("there and back", here), bandwidth=found.bandwidth(here), cpu=near),
        link=Link(latency=found.latency("tcp there and back", afar), headers=HEADERS, cpu=far),
        machines=(Machine(cores=cores()),),
    )  # fmt: skip


def _lab(task: Task, asked: Assignment, settings: LabSettings) -> Cluster:
    """The hosts of a lab. Its quotas hold while it is measured: what was stopped in between finds its caches cold."""
    from covey.engines.lab import iproute
    from covey.engines.lab.settings import LabSettings
    from covey.engines.lab.sites import LabPlaces

    if missing := iproute.missing():
        raise PlanError(f"a lab cannot be made here: {missing}")
    rates = [rate or FASTEST for rate in settings.rates]
    slowest = min(rates)
    big = max(1 << 14, min(BIG, round(slowest * SHAPED)))
    asked = msgspec.structs.replace(asked, sizes=(SMALL, big), beside=(), workers=2)
    host = rates.index(slowest)
    pair = LabSettings((settings.rates[host],) * 2, (settings.cpus[host],) * 2)
    handed = b"" if asked.task else handover.pack(task)
    processes = ClusterProcesses(
        LabPlaces(pair), MeetingTerms(threads=asked.threads), probes, asked.task, handed, asked.plan().roles
    )
    found = measure(task, processes, asked)
    handling, cpu = found.handling(), found.toll("network")
    latency = found.latency("there and back", [handling.send, handling.receive, cpu, cpu])
    link = Link(bandwidth=BytesPerSecond(slowest), latency=latency, headers=HEADERS, cpu=cpu)
    links = {machine_name(number): replace(link, bandwidth=rate) for number, rate in enumerate(rates)}
    return Cluster(
        **found.compute(), threads=asked.threads, handling=handling, link=link,
        links={host: other for host, other in links.items() if other != link}, sharing="tcp",
        local=Link(latency=latency, bandwidth=FASTEST, cpu=cpu),
        machines=tuple(_host(share) for share in settings.cpus),
    )  # fmt: skip


def _host(share: float | None) -> Machine:
    """A host of a lab; its quota is spent at full speed, period by period."""
    from covey.engines.lab.quota import LEAST, PERIOD

    if share is None:
        return Machine(cores=cores())
    return Machine(cores=share, period=Seconds(max(PERIOD, round(LEAST / share)) / 1e6))
