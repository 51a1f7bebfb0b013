"""Clusters from flags and from files."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from pathlib import Path
from random import Random
from statistics import fmean, stdev
from typing import Any

import pytest

from covey.catalog import STRATEGIES, resolve
from covey.errors import PlanError
from covey.simulate import (
    Backend,
    Bytes,
    BytesPerSecond,
    Cluster,
    Fair,
    Fifo,
    Link,
    Seconds,
    Tcp,
    from_flags,
    load,
    network,
)
from covey.simulate.cluster import KINDS
from covey.simulate.cluster_file import read
from covey.simulate.cluster_text import written as text_of
from covey.simulate.machines import CodecTime, CpuTime, Handling, Machine

EXAMPLE = Path(__file__).parents[2] / "examples" / "cluster.toml"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "cluster.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_usual_cluster() -> None:
    cluster = from_flags()
    assert cluster == Cluster()
    assert cluster.compute_time(0, 1.0, Random(0)) == 0.01
    assert cluster.link == Link(bandwidth=BytesPerSecond(125e6), latency=Seconds(1e-4))


def test_flags() -> None:
    cluster = from_flags(
        bandwidth="100mbit",
        latency="1ms",
        compute="20ms",
        jitter="0.3",
        slow=["3:4x", "1:2, 2:1.5x"],
        kill=["2@5s", "server 0@1m"],
    )
    assert cluster.link == Link(bandwidth=BytesPerSecond(12.5e6), latency=Seconds(1e-3))
    assert (cluster.compute, cluster.jitter) == (0.02, 0.3)
    assert cluster.slowdowns == {3: 4.0, 1: 2.0, 2: 1.5}
    assert cluster.kills == {"worker 2": 5.0, "server 0": 60.0}


def test_a_slow_worker_and_a_larger_batch_take_longer() -> None:
    cluster = from_flags(slow=["3:4x"])
    assert cluster.compute_time(3, 0.5, Random(0)) == pytest.approx(0.02)


def test_a_part_of_a_batch_costs_more_than_its_share() -> None:
    cluster = read("[compute]\nbatch = '8ms'\nfixed = 0.5")
    assert cluster.compute_time(0, 1.0, Random(0)) == pytest.approx(8e-3)
    assert cluster.compute_time(0, 0.25, Random(0)) == pytest.approx(4e-3 + 1e-3)


def test_jitter_has_mean_one_and_the_asked_variation() -> None:
    cluster, draw = from_flags(compute="1s", jitter=0.3), Random(7)
    times = [cluster.compute_time(0, 1.0, draw) for _ in range(20_000)]
    assert min(times) > 0
    assert fmean(times) == pytest.approx(1, abs=0.01)
    assert stdev(times) == pytest.approx(0.3, abs=0.01)


def test_the_same_generator_gives_the_same_times() -> None:
    cluster = from_flags(jitter=0.3)
    assert cluster.compute_time(0, 1.0, Random(1)) == cluster.compute_time(0, 1.0, Random(1))


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ({"slow": ["3"]}, "3:4x"),
        ({"slow": ["3:0x"]}, "3:4x"),
        ({"kill": ["2"]}, "2@5s"),
        ({"kill": ["two@5s"]}, "such as 'server 0', or 2 for worker 2"),
        ({"kill": ["2@5"]}, "20ms"),
        ({"jitter": "much"}, "such as 0.3"),
        ({"jitter": -1}, "such as 0.3"),
        ({"bandwidth": "fast"}, "100mbit"),
    ],
)
def test_a_wrong_flag_is_told_what_would_work(flags: dict[str, object], why: str) -> None:
    with pytest.raises(PlanError) as caught:
        from_flags(**flags)  # type: ignore[arg-type]
    assert why in str(caught.value)


def test_a_link_of_a_worker_that_is_not_there_is_refused() -> None:
    """Of other roles a strategy may have fewer, or none: one file serves many strategies."""
    cluster = read("[host.'worker 9']\nbandwidth = '1mbit'\n[host.'server 1']\nbandwidth = '1gbit'")
    cluster.check(10)
    read("[[machine]]\ncores = 1\nbandwidth = '1mbit'").check(4)
    with pytest.raises(PlanError, match="there is no worker 9: 4 workers are numbered 0 to 3"):
        cluster.check(4)


def test_check_knows_the_workers() -> None:
    from_flags(slow=["3:4x"]).check(workers=4)
    with pytest.raises(PlanError, match="no worker 4: 4 workers are numbered 0 to 3"):
        from_flags(slow=["4:4x"]).check(workers=4)
    with pytest.raises(PlanError, match="no worker 9"):
        from_flags(kill=["server 9@1s", "9@1s"]).check(workers=4)
    with pytest.raises(PlanError, match="has 8 workers"):
        load(EXAMPLE).check(workers=4)


def test_the_example_file() -> None:
    cluster = load(EXAMPLE)
    assert (cluster.compute, cluster.jitter, cluster.workers) == (0.02, 0.3, 8)
    assert cluster.update == pytest.approx(1e-10)
    assert cluster.slowdowns == {6: 2.5, 7: 2.5}
    assert cluster.link_of("worker 0") == cluster.link == Link(latency=Seconds(1e-3))
    assert cluster.link_of("worker 7") == Link(bandwidth=BytesPerSecond(12.5e6), latency=Seconds(5e-3))
    assert cluster.link_of("server 0") == Link(bandwidth=BytesPerSecond(1.25e9), latency=Seconds(1e-3))
    assert cluster.price[0] == 0.9
    assert cluster.watts[7] == 120


def test_an_empty_file_is_the_usual_cluster(tmp_path: Path) -> None:
    assert load(written(tmp_path, "")) == Cluster()


def test_a_file_may_be_named_by_a_link(tmp_path: Path) -> None:
    link = tmp_path / "link.toml"
    link.symlink_to(Path(EXAMPLE).resolve())
    assert load(link) == load(EXAMPLE)


def test_kills_in_a_file(tmp_path: Path) -> None:
    assert load(written(tmp_path, '[kill]\n2 = "5s"\n"server 0" = "1m"')).kills == {"worker 2": 5.0, "server 0": 60.0}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "[links]",
            "the file has no key 'links'; did you mean 'link'? It has: compute, handling, coding, link, local, ",
        ),
        ("[compute]\nbach = '1s'", "[compute] has no key 'bach'; did you mean 'batch'?"),
        ("[compute]\nbatch = 0.02", "has no unit"),
        ("[compute]\njitter = 'a'", "[compute] jitter = 'a' must be a number"),
        ("[compute]\njitter = -1", "from 0 up"),
        ("compute = 3", "written [compute]"),
        ("[link]\nbandwidth = 'fast'", "100mbit"),
        ("[link]\nsharing = 'best'", '"fifo", "fair" or "tcp"'),
        ("[link]\nwindow = '0B'", "[link] window: '0B' must be 1B or more"),
        ("[compute]\nbatch = '5 parsec'", "[compute] batch: cannot read the duration '5 parsec'; write for"),
        ("[[group]]\nworkers = 2\nlatency = '1 sec'", "[[group]] latency: cannot read the duration '1 sec'"),
        ("[link]\nsharing = ['fifo']", '"fifo", "fair" or "tcp"'),
        ("[group]\nworkers = 3", "[[group]], with two brackets"),
        ("group = [3]", "must be a table"),
        ("[[group]]\nslow = 2", "needs workers"),
        ("[[group]]\nworkers = 1\nslow = 0", "slow = 0.0 must be larger than 0"),
        ("[[group]]\nworkers = 1\ngpu = 0", "[[group]] has no key 'gpu'. It has: workers, slow"),
        ("[host.laptop]\nlatency = '1ms'", "cannot read the host 'laptop'"),
        ("[host.'server 0']\njitter = 1", "[host.\"server 0\"] has no key 'jitter'"),
        ("[kill]\nall = '5s'", "cannot read the host 'all'"),
        ("[compute", "is not a TOML file"),
    ],
)
def test_a_wrong_file_is_told_what_would_work(tmp_path: Path, text: str, why: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(PlanError) as caught:
        load(path)
    assert why in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_host_of_the_file_that_no_run_has_is_named() -> None:
    cluster = read("[host.'server 0']\nlatency = '1ms'\n[host.'wrker 1']\nlatency = '1ms'\n[host.3]\nlatency = '1ms'")
    assert cluster.strangers(["worker 0", "worker 1"]) == ["wrker 1", "worker 3"], "allreduce has no servers"
    assert cluster.strangers([*(f"worker {rank}" for rank in range(4)), "server 0", "wrker 1"]) == []
    assert read("[[machine]]\ncores = 1\nlatency = '1ms'").strangers(["worker 0"]) == []


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="No such file"):
        load(tmp_path / "none.toml")


def test_the_network_of_a_cluster() -> None:
    assert isinstance(network(Cluster()), Fifo)
    assert type(network(Cluster(sharing="fair"))) is Fair
    assert type(network(read(text_of(Cluster(sharing="tcp"))))) is Tcp


def test_a_window_is_kept_and_used() -> None:
    wide = read(text_of(Cluster(sharing="tcp", window=Bytes(3_000_001))))
    shared = network(wide)
    assert isinstance(shared, Tcp) and shared.window == wide.window == 3_000_001
    assert "window" not in text_of(Cluster(sharing="tcp")) and read("[link]\nwindow = '64KiB'").window == 65536


CALIBRATED = """
place = "servers:node0"

[compute]
batch = "4.2ms"
jitter = 0.07
update = "1.053ns"
threads = 2
fixed = 0.3

[handling]
send = "120us"
send_byte = "0.2ns"
receive = "290us"
receive_byte = "0.7ns"
sums = "9.7us"
sums_byte = "0.04ns"
step = "140us"
report = "0.33ms"

[coding."topk(density=0.1)"]
encode = "10us"
encode_byte = "0.5ns"

[link]
bandwidth = "100mbit"
latency = "20us"
sharing = "fair"
headers = 0.0456
cpu = "44us"
cpu_byte = "4ns"

[local]
latency = "10us"

[[machine]]
count = 2
cores = 0.5
period = "20ms"

[[machine]]
cores = 8
bandwidth = "1gbit"
"""


def test_a_calibrated_cluster() -> None:
    cluster = read(CALIBRATED)
    assert (cluster.compute, cluster.threads, cluster.place) == (pytest.approx(4.2e-3), 2, "servers:node0")
    assert cluster.fixed == 0.3
    assert cluster.handling.receive.of(1000) == pytest.approx(290e-6 + 0.7e-6)
    assert cluster.link.crossing(10**6) == pytest.approx(20e-6 + 0.08 * 1.0456)
    assert [machine.cores for machine in cluster.machines] == [0.5, 0.5, 8]
    assert cluster.machines[0].period == pytest.approx(0.02)
    fast = cluster.link_of("node2")
    assert (fast.bandwidth, fast.headers, fast.cpu) == (125e6, 0.0456, cluster.link.cpu), "the rest is that of [link]"
    assert cluster.nearby(4 * 10**9) == pytest.approx(1 + 10e-6)


def test_what_is_written_reads_the_same() -> None:
    text = text_of(read(CALIBRATED), "Measured by: covey calibrate")
    assert text.startswith("# Measured by: covey calibrate\n")
    again = read(text)
    assert text_of(again, "Measured by: covey calibrate") == text
    assert again.machines == read(CALIBRATED).machines and again.place == read(CALIBRATED).place
    assert again.fixed == 0.3
    coding = again.coding["topk(density=0.1)"]
    assert coding.encode.of(1000) == pytest.approx(10e-6 + 0.5e-6) and coding.decode.of(1000) == 0
    assert "price" not in text
    with pytest.raises(PlanError, match="by hand"):
        text_of(from_flags(slow=["1:2"]))


WHOLE = (
    CALIBRATED.replace("fixed = 0.3", 'fixed = 0.3\nprepare = "5ms"\nerror = 0.02')
    .replace("headers = 0.0456", 'headers = 0.05\nwindow = "300kB"\nuplink = "20mbit"')
    .replace('latency = "10us"', 'latency = "10us"\nbandwidth = "1gbit"\ncpu = "2us"\ncpu_byte = "3ns"')
    .replace('encode_byte = "0.5ns"', 'encode_byte = "0.5ns"\ndecode = "7us"\ndecode_byte = "0.6ns"')
    .replace("cores = 8", 'cores = 8\nwake = "3ms"')
    + '[backend]\nrate = "60MB/s"\nper_request = "3.5MB/s"\nlatency = "30ms"\nrequests = 17\nsample = "110kB"\n'
    + 'cache = "hosts"\nfilled = true\n'
)
BY_HAND = {"slowdowns", "kills", "price", "spot_price", "watts", "workers"}


def described(value: Any, path: str = "cluster") -> dict[str, Any]:
    """What a cluster consists of, each number and word by its path."""
    if is_dataclass(value):
        named = {field.name: getattr(value, field.name) for field in fields(value)}
        return {name: leaf for key, inner in named.items() for name, leaf in described(inner, f"{path}.{key}").items()}
    if isinstance(value, dict | tuple):
        inside = value.items() if isinstance(value, dict) else enumerate(value)
        return {name: leaf for key, inner in inside for name, leaf in described(inner, f"{path}.{key}").items()}
    return {path: value}


def test_every_key_of_a_file_is_read_and_written_again() -> None:
    """Whatever a cluster consists of: in this one each field of each class has a value that is not the usual one."""
    whole = read(WHOLE)
    usual = {name.rpartition(".")[2]: leaf for name, leaf in described(Cluster(coding={"": CodecTime()})).items()}
    found = described(whole)
    for kind in (Cluster, Link, Handling, Machine, CodecTime, CpuTime, Backend):
        for field in fields(kind):
            leaves = [leaf for name, leaf in found.items() if f".{field.name}." in f"{name}."]
            assert any(leaf != usual.get(field.name, 0) for leaf in leaves) or field.name in BY_HAND, field.name
    again = described(read(text_of(whole)))
    assert again.keys() == found.keys()
    unlike = {name: (leaf, again[name]) for name, leaf in found.items() if again[name] != near(leaf)}
    assert not unlike


def near(leaf: Any) -> Any:
    """A number as four digits tell it."""
    return pytest.approx(leaf, rel=1e-3) if isinstance(leaf, float) else leaf


def test_without_new_fields_nothing_is_laborious() -> None:
    assert not load(EXAMPLE).charges_cpu and not from_flags(bandwidth="1gbit").charges_cpu
    for section in (
        "[coding.int8]\nencode = '1us'",
        "[[machine]]\ncores = 1",
        '[handling]\nsend = "1us"',
        '[link]\ncpu_byte = "1ns"',
    ):
        assert read(section).charges_cpu


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[[machine]]", "every [[machine]] needs cores, such as cores = 8"),
        ("[[machine]]\ncores = 0", "[[machine]] cores = 0.0 must be larger than 0"),
        ("[[machine]]\ncores = 1\ncount = 0", "[[machine]] count = 0 must be a whole number from 1 up"),
        ("[machine]\ncores = 1", "machines are written [[machine]], with two brackets"),
        ("[[machine]]\ncores = 1\n[host.'server 0']\nbandwidth = '1gbit'", "share its network card"),
        ("[handling]\nsent = '1us'", "did you mean 'send'?"),
        ("[handling]\nsend = 3", "has no unit"),
        ("[link]\nheaders = -1", "what is added to each byte, such as 0.05"),
        ("[compute]\nthreads = 1.5", "must be a whole number from 1 up"),
        ("[compute]\nfixed = 2", "[compute] fixed = 2.0 must be a share, from 0 to 1"),
        ("place = 3", "must be a text in quotes"),
    ],
)
def test_a_wrong_machine_is_told_what_would_work(text: str, why: str) -> None:
    with pytest.raises(PlanError) as caught:
        read(text)
    assert why in str(caught.value)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_cluster_file_may_describe_every_kind_of_role_that_strategies_have(name: str) -> None:
    roles = resolve(STRATEGIES[name].example or name, 4).roles(4, 1)
    assert {role.address.role for role in roles} <= {*KINDS}
