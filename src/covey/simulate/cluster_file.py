"""How is a cluster described in a file?  `examples/cluster.toml` shows every key."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from covey.errors import PlanError
from covey.simulate.cluster import Cluster, Host, Link, Sharing, parse_host, parse_jitter
from covey.simulate.units import AT_ONCE, Seconds, parse_duration, parse_rate

T = TypeVar("T")
Table = Mapping[str, Any]

SECTIONS = ("compute", "link", "group", "host", "kill")
COMPUTE = ("batch", "jitter", "update")
LINK = ("bandwidth", "latency", "sharing")
HOST = ("bandwidth", "latency")
GROUP = ("workers", "slow", "bandwidth", "latency", "price", "watts")
MOST = 100_000  # workers
LARGEST = 1e300  # number


def load(path: str | PathLike[str]) -> Cluster:
    """Read a cluster from a TOML file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise PlanError(f"cannot read the cluster file {path}: {error.strerror}") from error
    except ValueError as error:
        raise PlanError(f"{path} is not a TOML file: {error}") from error
    try:
        return read(text)
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from error


def read(text: str) -> Cluster:
    """Read a cluster from the text of a TOML file."""
    try:
        return _cluster(tomllib.loads(text))
    except (ValueError, RecursionError) as error:  # also: numbers that cannot even be shown, brackets without end
        raise PlanError(f"this is not a TOML file: {error}") from error


def _cluster(document: Table) -> Cluster:
    usual = Cluster()
    _only(document, SECTIONS, "the file")
    compute, link = _table(document, "compute", COMPUTE), _table(document, "link", LINK)
    common = _link(link, usual.link, "[link]")
    groups = _ranked(document)
    return Cluster(
        compute=_read(compute, "batch", parse_duration, usual.compute, "[compute]"),
        jitter=parse_jitter(_number(compute, "jitter", "[compute]", usual.jitter)),
        update=_read(compute, "update", parse_duration, usual.update, "[compute]"),
        link=common,
        links={**_group_links(groups, common), **_host_links(document, common)},
        sharing=_sharing(link, usual.sharing),
        kills=_kills(document),
        slowdowns=_per_worker(groups, "slow"),
        price=_per_worker(groups, "price"),
        watts=_per_worker(groups, "watts"),
        workers=len(groups) or None,
    )


def _ranked(document: Table) -> list[Table]:
    """The group of each worker: groups number their workers in the order of the file."""
    groups = document.get("group", [])
    if not isinstance(groups, list):
        raise PlanError("groups are written [[group]], with two brackets")
    of_rank: list[Table] = []
    for group in groups:
        _only(group, GROUP, "[[group]]")
        workers = group.get("workers")
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
            raise PlanError("every [[group]] needs workers, a whole number from 1 up, such as workers = 4")
        if len(of_rank) + workers > MOST:
            raise PlanError(f"[[group]] workers = {workers}: a cluster has at most {MOST} workers")
        of_rank += [group] * workers
    return of_rank


def _per_worker(groups: list[Table], key: str) -> dict[int, float]:
    return {rank: _positive(group, key) for rank, group in enumerate(groups) if key in group}


def _group_links(groups: list[Table], common: Link) -> dict[Host, Link]:
    links = {f"worker {rank}": _link(group, common, "[[group]]") for rank, group in enumerate(groups)}
    return {host: link for host, link in links.items() if link != common}


def _host_links(document: Table, common: Link) -> dict[Host, Link]:
    hosts = _table(document, "host", None)
    for host, table in hosts.items():
        _only(table, HOST, f'[host."{host}"]')
    return {parse_host(host): _link(table, common, f'[host."{host}"]') for host, table in hosts.items()}


def _link(table: Table, usual: Link, where: str) -> Link:
    return Link(
        bandwidth=_read(table, "bandwidth", parse_rate, usual.bandwidth, where),
        latency=_read(table, "latency", parse_duration, usual.latency, where),
    )


def _sharing(table: Table, usual: Sharing) -> Sharing:
    sharing = table.get("sharing", usual)
    if sharing == "fifo":
        return "fifo"
    if sharing == "fair":
        return "fair"
    raise PlanError(f'[link] sharing = {sharing!r} must be "fifo" or "fair"')


def _kills(document: Table) -> dict[Host, Seconds]:
    kills = _table(document, "kill", None)
    return {parse_host(host): _read(kills, host, parse_duration, AT_ONCE, "[kill]") for host in kills}


def _table(document: Table, name: str, known: Iterable[str] | None) -> Table:
    table = document.get(name, {})
    if not isinstance(table, dict):
        raise PlanError(f"{name} must be a table, written [{name}]")
    if known is not None:
        _only(table, known, f"[{name}]")
    return table


def _read(table: Table, key: str, parse: Callable[[str], T], usual: T, where: str) -> T:
    """A quantity with its unit, or the usual one."""
    if key not in table:
        return usual
    if not isinstance(table[key], str):
        raise PlanError(f"{where} {key} = {table[key]!r} has no unit; write it in quotes with one")
    return parse(table[key])


def _positive(table: Table, key: str) -> float:
    value = _number(table, key, "[[group]]", 0.0)
    if value <= 0:
        raise PlanError(f"[[group]] {key} = {value} must be larger than 0")
    return value


def _number(table: Table, key: str, where: str, usual: float) -> float:
    value = table.get(key, usual)
    if isinstance(value, bool) or not isinstance(value, int | float) or not -LARGEST < value < LARGEST:
        raise PlanError(f"{where} {key} = {value!r} must be a number")
    return float(value)


def _only(table: Table, known: Iterable[str], where: str) -> None:
    if not isinstance(table, dict):
        raise PlanError(f"{where} must be a table of keys and values")
    for key in table:
        if key not in (names := list(known)):
            near = difflib.get_close_matches(key, names, n=1)
            meant = f"; did you mean '{near[0]}'?" if near else "."
            raise PlanError(f"{where} has no key '{key}'{meant} It has: {', '.join(names)}")
