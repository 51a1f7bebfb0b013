"""The picture of a run shows what was recorded, on either engine."""

from __future__ import annotations

import json
import xml.etree.ElementTree as tree

import pytest

from covey.cli.tables.picture import picture
from covey.message import Address
from covey.observe.recording import Arrow, Recording, RoleOps, RoleTimeline, TimeSpan, TorchOp, joined
from covey.report import lanes, perfetto
from covey.run import fit
from covey.simulate import Cluster

SVG = "{http://www.w3.org/2000/svg}"


def recorded(strategy: str, workers: int = 3, engine: str = "simulated", steps: int = 4) -> Recording:
    recording = fit("examples/digits.py", strategy, workers, engine=engine, steps=steps, traced=True).recording
    assert recording is not None
    return recording


def test_every_step_is_a_block_and_every_message_an_arrow() -> None:
    recording = recorded("bsp", steps=4)
    assert [sum(span.who == f"worker {rank}" and not span.what for span in recording.spans) for rank in range(3)] == [
        4
    ] * 3
    pushes = [arrow for arrow in recording.arrows if arrow.kind == "Push"]
    assert len(pushes) == 3 * 4 and all(arrow.arrived is not None and arrow.arrived > arrow.sent for arrow in pushes)
    drawn = tree.fromstring(lanes.draw(recording))
    blocks = [
        rect
        for rect in drawn.iter(f"{SVG}rect")
        if rect.get("class") == "work" and rect.find(f"{SVG}title") is not None
    ]
    assert len(blocks) == 12
    arrows = [path for path in drawn.iter(f"{SVG}path") if path.get("marker-end")]
    assert len(arrows) == len(recording.arrows)


def test_a_slow_worker_is_waited_for() -> None:
    result = fit(
        "examples/digits.py", "bsp", 3, engine="simulated", steps=3, traced=True, cluster=Cluster(slowdowns={2: 5.0})
    )
    assert result.recording is not None
    waited = dict.fromkeys(result.recording.roles, 0.0)
    for span in result.recording.spans:
        waited[span.who] += span.end - span.begin if span.what else 0.0
    assert waited["worker 0"] > 5 * waited["worker 2"]


def test_a_part_of_the_time_alone() -> None:
    recording = recorded("bsp")
    half = lanes.draw(recording, recording.seconds / 2, recording.seconds)
    assert len(half) < len(lanes.draw(recording))
    for rect in tree.fromstring(half).iter(f"{SVG}rect"):
        assert float(rect.get("x", 0)) >= lanes.LEFT - 0.01


def test_a_message_that_was_still_on_its_way_at_the_end_is_drawn_up_to_there() -> None:
    arrows = [Arrow("worker 0", "worker 1", "Push", 8, 1.0, 2.0), Arrow("worker 0", "worker 1", "Push", 8, 3.0)]
    spans = [TimeSpan("worker 0", "", 0.0, 4.0)]
    drawn = tree.fromstring(lanes.draw(Recording(roles=["worker 0", "worker 1"], spans=spans, arrows=arrows)))
    paths = [path.get("d") or "" for path in drawn.iter(f"{SVG}path") if path.get("marker-end")]
    assert [path.split()[2] for path in paths] == [f"L{lanes.LEFT + lanes.WIDTH * part}" for part in (0.5, 1.0)]


def test_sendings_meet_their_arrivals_in_order() -> None:
    one, two = Address("worker", 0), Address("worker", 1)
    mine = RoleTimeline(sends=[Arrow(str(one), str(two), "Push", 8, at) for at in (1.0, 2.0, 3.0)])
    theirs = RoleTimeline(
        arrivals=[Arrow(str(one), str(two), "Push", 8, at, at) for at in (1.5, 2.5)],
        spans=[TimeSpan(str(two), "", 0, 1)],
    )
    assert [arrow.arrived for arrow in joined([mine, theirs], [one, two]).arrows] == [1.5, 2.5, None]


def test_roles_of_one_machine_are_aligned_by_its_clock() -> None:
    one, two = Address("worker", 0), Address("worker", 1)
    push = Arrow(str(one), str(two), "Push", 8, 1.0)
    mine = RoleTimeline(sends=[push], who=str(one), machine="here", zero=100.0)
    for machine, arrived in (("here", 1.5), ("there", 1.25)):
        theirs = RoleTimeline(
            arrivals=[Arrow(str(one), str(two), "Push", 8, 1.25, 1.25)], spans=[TimeSpan(str(two), "", 0, 1)],
            who=str(two), machine=machine, zero=100.25,
        )  # fmt: skip
        ops = {str(two): RoleOps(["torch"], ["add"], [(0, 0, 0.5, 0.75), (0, 1, 0.5, 0.75), (-1, 0, 0.5, 0.75)])}
        found = joined([mine, theirs], [one, two], ops=ops)
        assert [arrow.arrived for arrow in found.arrows] == [arrived]
        late = arrived - 1.25
        assert found.spans == [TimeSpan(str(two), "", late, 1 + late)]
        assert found.ops == [TorchOp(str(two), "torch", "add", 0.5 + late, 0.75 + late)]


def test_a_profile_has_a_process_for_each_role_and_a_thread_for_each_of_its_own() -> None:
    recording = Recording(
        roles=["worker 0", "server 0"], spans=[TimeSpan("worker 0", "", 0, 1)],
        arrows=[Arrow("worker 0", "server 0", "Push", 8, 1.0, 2.0)],
        ops=[TorchOp("worker 0", "b", "add", 0.25, 0.5), TorchOp("worker 0", "a", "mul", 0.5, 0.75),
             TorchOp("server 0", "a", "add", 2.0, 2.5), TorchOp("stranger 0", "a", "add", 2.0, 2.5)],
    )  # fmt: skip
    told = json.loads(perfetto.events(recording))["traceEvents"]
    names = {(one["pid"], one["tid"]): one["args"]["name"] for one in told if one["name"] == "thread_name"}
    assert names == {(1, 0): "covey", (1, 1): "a", (1, 2): "b", (2, 0): "covey", (2, 1): "a"}
    whole = {one["pid"]: one["args"]["name"] for one in told if one["name"] == "process_name"}
    assert whole == {1: "worker 0", 2: "server 0"}
    slices = [(one["pid"], one["tid"], one["name"], one["ts"], one["dur"]) for one in told if one["ph"] == "X"]
    assert slices == [
        (1, 0, "computes", 0, 1e6),
        (1, 2, "add", 0.25e6, 0.25e6), (1, 1, "mul", 0.5e6, 0.25e6), (2, 1, "add", 2e6, 0.5e6),
    ]  # fmt: skip
    ends = [(one["ph"], one["pid"], one["tid"]) for one in told if one.get("cat") == "message"]
    assert ends == [("s", 1, 0), ("f", 2, 0)]


def test_names_cannot_leave_the_picture() -> None:
    recording = Recording(
        strategy="<script>", engine="'\"", roles=["a & b"], spans=[TimeSpan("a & b", "<x>", 0, 1)], arrows=[]
    )
    drawn = lanes.draw(recording)
    tree.fromstring(drawn)
    assert "<script>" not in drawn


def test_for_a_trace_viewer() -> None:
    recording = recorded("easgd")
    events = json.loads(perfetto.events(recording))["traceEvents"]
    assert {event["args"]["name"] for event in events if event["ph"] == "M"} == set(recording.roles)
    assert sum(event["ph"] == "X" for event in events) == len(recording.spans)
    starts, ends = ({event["id"] for event in events if event["ph"] == kind} for kind in "sf")
    assert starts == ends and starts
    lane = {name: number for number, name in enumerate(recording.roles)}
    slices = [(event["tid"], event["ts"], event["ts"] + event["dur"]) for event in events if event["ph"] == "X"]
    assert slices == [
        pytest.approx((lane[span.who], span.begin * 1e6, span.end * 1e6)) for span in recording.spans
    ], "in microseconds"  # fmt: skip
    flows = {(event["id"], event["ph"]): (event["tid"], event["ts"]) for event in events if event["ph"] in "sf"}
    for number, arrow in enumerate(recording.arrows):
        if arrow.arrived is not None:
            assert flows[number, "s"] == pytest.approx((lane[arrow.sender], arrow.sent * 1e6))
            assert flows[number, "f"] == pytest.approx((lane[arrow.to], arrow.arrived * 1e6))


@pytest.mark.parametrize("spec", ["bsp", "easgd", "gosgd(probability=1)", "dpsgd", "allreduce"])
def test_the_canonical_picture(spec: str) -> None:
    drawn = tree.fromstring(picture(spec))
    names = [text.text for text in drawn.iter(f"{SVG}text") if text.get("class") == "name"]
    assert {"worker 0", "worker 1", "worker 2"} <= set(names)


def test_an_excerpt_is_a_few_steps_of_some_roles() -> None:
    recording = recorded("bsp", steps=20)
    short = recording.excerpt(skip=2, steps=5, roles=3)
    blocks = [span for span in recording.spans if span.who == "worker 0" and not span.what]
    mine = [span for span in short.spans if span.who == "worker 0" and not span.what]
    assert mine == blocks[2:7]
    assert short.roles == ["worker 0", "worker 1", "worker 2"]
    assert short.begin == blocks[2].begin and short.seconds <= blocks[6].end
    assert all(arrow.to in short.roles and arrow.sender in short.roles for arrow in short.arrows)


def test_an_excerpt_of_little_is_all_of_it() -> None:
    recording = recorded("local_sgd", steps=3)
    assert sum(span.who == "worker 0" and not span.what for span in recording.excerpt().spans) == 3
