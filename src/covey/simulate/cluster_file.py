"""How is a cluster described in a file?  `examples/cluster.toml` shows every key."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar, get_args

from covey.decoding import named_text
from covey.errors import PlanError, WireError
from covey.simulate.backend import Backend, Caching
from covey.simulate.cluster import Cluster, Host, Sharing, parse_host, parse_jitter
from covey.simulate.machines import FREE, CodecTime, CpuTime, Handling, Link, Machine, machine_name
from covey.simulate.units import AT_ONCE, Bytes, BytesPerSecond, Seconds, parse_duration, parse_rate, parse_size

T = TypeVar("T")
Table = Mapping[str, Any]

SECTIONS = ("compute", "handling", "coding", "link", "local", "machine", "group", "host", "kill", "place", "backend")
COMPUTE = ("batch", "prepare", "jitter", "fixed", "update", "threads", "error")
HANDLING = ("send", "send_byte", "receive", "receive_byte", "sums", "sums_byte", "step", "report")
CODING = ("encode", "encode_byte", "decode", "decode_byte")
LOCAL = ("bandwidth", "latency", "cpu", "cpu_byte")
LINK = ("bandwidth", "uplink", "latency", "sharing", "window", "headers", "cpu", "cpu_byte")
HOST = ("bandwidth", "uplink", "latency")
MACHINE = ("count", "cores", "period", "wake", "bandwidth", "uplink", "latency")
GROUP = ("workers", "slow", "bandwidth", "uplink", "latency", "price", "spot_price", "watts")
BACKEND = ("rate", "per_request", "latency", "requests", "sample", "cache", "filled")
MOST = 100_000  # workers, machines
LARGEST = 1e300  # number
MEMORY = BytesPerSecond(4e9)  # between roles of one machine, by default


def load(path: str | PathLike[str]) -> Cluster:
    """Read a cluster from a TOML file."""
    try:
        text = named_text(Path(path))
    except OSError as error:
        hint = "give a TOML file, as `covey calibrate TASK` writes it (docs/simulate.md)"
        raise PlanError(f"cannot read the cluster file {path}: {error.strerror}; {hint}") from error
    except WireError as error:
        raise PlanError(f"cannot read the cluster file {path}: {error}") from error
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
    groups, machines = _ranked(document, "group", "workers", GROUP), _ranked(document, "machine", "count", MACHINE)
    links = {**_group_links(groups, common), **_host_links(document, common)}
    if machines and links:
        raise PlanError("roles that share a [[machine]] share its network card: give it the bandwidth and latency")
    return Cluster(
        compute=_read(compute, "batch", parse_duration, usual.compute, "[compute]"),
        prepare=_read(compute, "prepare", parse_duration, usual.prepare, "[compute]"),
        jitter=parse_jitter(_number(compute, "jitter", "[compute]", usual.jitter)),
        fixed=_share(compute, "fixed", "[compute]", usual.fixed),
        update=_read(compute, "update", parse_duration, usual.update, "[compute]"),
        threads=_whole(compute, "threads", "[compute]", usual.threads),
        error=parse_jitter(_number(compute, "error", "[compute]", usual.error)),
        link=common,
        links=links or _machine_links(machines, common),
        local=_local(document, usual),
        machines=tuple(_machine(table) for table in machines),
        place=_text(document, "place", usual.place),
        handling=_handling(document, usual.handling),
        coding=_coding(document),
        sharing=_sharing(link, usual.sharing),
        window=_read(link, "window", _window, usual.window, "[link]"),
        kills=_kills(document),
        slowdowns=_per_worker(groups, "slow"),
        price=_per_worker(groups, "price"),
        spot_price=_per_worker(groups, "spot_price"),
        watts=_per_worker(groups, "watts"),
        workers=len(groups) or None,
        backend=_backend(document),
    )


def _backend(document: Table) -> Backend | None:
    """What the store of the data gives, if the file says so."""
    table, usual, where = _table(document, "backend", BACKEND), Backend(), "[backend]"
    if "backend" not in document:
        return None
    cache, filled = table.get("cache", usual.cache), table.get("filled", usual.filled)
    if cache not in get_args(Caching):
        raise PlanError(f'{where} cache = {cache!r} must be "host", "hosts" or "none"')
    if not isinstance(filled, bool):
        raise PlanError(f"{where} filled = {filled!r} must be true or false")
    return Backend(
        rate=_read(table, "rate", _rate, usual.rate, where),
        per_request=_read(table, "per_request", _rate, usual.per_request, where),
        latency=_read(table, "latency", parse_duration, usual.latency, where),
        requests=_whole(table, "requests", where, usual.requests),
        sample=_read(table, "sample", _size, usual.sample, where),
        cache=cache, filled=filled,
    )  # fmt: skip


def _ranked(document: Table, name: str, count: str, known: Iterable[str]) -> list[Table]:
    """The [[group]] of each worker, or the [[machine]] of each machine: numbered in the order of the file."""
    tables = document.get(name, [])
    if not isinstance(tables, list):
        raise PlanError(f"{name}s are written [[{name}]], with two brackets")
    found: list[Table] = []
    for table in tables:
        _only(table, known, f"[[{name}]]")
        if name == "group" and count not in table:
            raise PlanError("every [[group]] needs workers, a whole number from 1 up, such as workers = 4")
        many = _whole(table, count, f"[[{name}]]", 1)
        if len(found) + many > MOST:
            raise PlanError(f"[[{name}]] {count} = {many}: a cluster has at most {MOST} {name}s")
        found += [table] * many
    return found


def _machine(table: Table) -> Machine:
    if "cores" not in table:
        raise PlanError("every [[machine]] needs cores, such as cores = 8 (or 0.5 for a quota of half a core)")
    cores = _positive(table, "cores", "[[machine]]")
    period, wake = (_read(table, name, parse_duration, AT_ONCE, "[[machine]]") for name in ("period", "wake"))
    return Machine(cores=cores, period=period, wake=wake)


def _machine_links(machines: list[Table], common: Link) -> dict[Host, Link]:
    links = {machine_name(number): _link(table, common, "[[machine]]") for number, table in enumerate(machines)}
    return {host: link for host, link in links.items() if link != common}


def _handling(document: Table, usual: Handling) -> Handling:
    table = _table(document, "handling", HANDLING)
    tolls = {name: _toll(table, name, getattr(usual, name), "[handling]") for name in ("send", "receive", "sums")}
    return Handling(
        **tolls,
        step=_read(table, "step", parse_duration, usual.step, "[handling]"),
        report=_read(table, "report", parse_duration, usual.report, "[handling]"),
    )


def _coding(document: Table) -> dict[str, CodecTime]:
    found = {}
    for name, table in _table(document, "coding", None).items():
        where = f'[coding."{name}"]'
        _only(table, CODING, where)
        found[name] = CodecTime(encode=_toll(table, "encode", FREE, where), decode=_toll(table, "decode", FREE, where))
    return found


def _toll(table: Table, key: str, usual: CpuTime, where: str) -> CpuTime:
    return CpuTime(
        each=_read(table, key, parse_duration, usual.each, where),
        byte=_read(table, f"{key}_byte", parse_duration, usual.byte, where),
    )


def _local(document: Table, usual: Cluster) -> Link | None:
    table = _table(document, "local", LOCAL)
    return _link(table, Link(latency=AT_ONCE, bandwidth=MEMORY), "[local]") if "local" in document else usual.local


def _per_worker(groups: list[Table], key: str) -> dict[int, float]:
    return {rank: _positive(group, key, "[[group]]") for rank, group in enumerate(groups) if key in group}


def _group_links(groups: list[Table], common: Link) -> dict[Host, Link]:
    links = {f"worker {rank}": _link(group, common, "[[group]]") for rank, group in enumerate(groups)}
    return {host: link for host, link in links.items() if link != common}


def _host_links(document: Table, common: Link) -> dict[Host, Link]:
    hosts = _table(document, "host", None)
    for host, table in hosts.items():
        _only(table, HOST, f'[host."{host}"]')
    return {parse_host(host): _link(table, common, f'[host."{host}"]') for host, table in hosts.items()}


def _link(table: Table, usual: Link, where: str) -> Link:
    headers = _number(table, "headers", where, usual.headers)
    if headers < 0:
        raise PlanError(f"{where} headers = {headers} must be 0 or more: what is added to each byte, such as 0.05")
    return replace(
        usual,
        bandwidth=_read(table, "bandwidth", parse_rate, usual.bandwidth, where),
        uplink=_read(table, "uplink", _rate, usual.uplink, where),
        latency=_read(table, "latency", parse_duration, usual.latency, where),
        headers=headers,
        cpu=_toll(table, "cpu", usual.cpu, where),
    )


def _size(text: str) -> Bytes | None:
    return parse_size(text)


def _rate(text: str) -> BytesPerSecond | None:
    return parse_rate(text)


def _window(text: str) -> Bytes:
    if (size := parse_size(text)) < 1:
        raise PlanError(f"{text!r} must be 1B or more")
    return size


def _sharing(table: Table, usual: Sharing) -> Sharing:
    sharing: Sharing = table.get("sharing", usual)
    if sharing not in get_args(Sharing):
        raise PlanError(f'[link] sharing = {sharing!r} must be "fifo", "fair" or "tcp"')
    return sharing


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
    try:
        return parse(table[key])
    except PlanError as error:
        raise PlanError(f"{where} {key}: {error}") from None


def _positive(table: Table, key: str, where: str) -> float:
    value = _number(table, key, where, 0.0)
    if value <= 0:
        raise PlanError(f"{where} {key} = {value} must be larger than 0")
    return value


def _share(table: Table, key: str, where: str, usual: float) -> float:
    value = _number(table, key, where, usual)
    if not 0 <= value <= 1:
        raise PlanError(f"{where} {key} = {value} must be a share, from 0 to 1")
    return value


def _whole(table: Table, key: str, where: str, usual: int) -> int:
    value = table.get(key, usual)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise PlanError(f"{where} {key} = {value!r} must be a whole number from 1 up, such as {key} = 4")
    return value


def _text(document: Table, key: str, usual: str) -> str:
    value = document.get(key, usual)
    if not isinstance(value, str):
        raise PlanError(f"{key} = {value!r} must be a text in quotes")
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
