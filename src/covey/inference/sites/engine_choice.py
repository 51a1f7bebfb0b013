"""On which engine do replicas run? `local` is this machine; of the others those that go on when a process is lost."""

from __future__ import annotations

from covey.engines.entries import ENGINES, Engine
from covey.engines.entries.lab import LabEngine
from covey.errors import PlanError
from covey.spec import bind, parse_call

HERE = "local"
SERVING = ("ray", "lab")


def engine_of(text: str) -> Engine | None:
    """The engine that was asked for; None for processes of this machine."""
    call = parse_call(text)
    if call.name == HERE and not call.settings:
        return None
    if call.name not in SERVING:
        raise PlanError(
            f"--engine {text}: replicas run on local, ray or lab. On other clusters run covey serve on each host, and "
            "let a load balancer divide requests among the addresses; in virtual time: --plan FILE --prices FILE"
        )
    ENGINES[call.name].require(call.name)
    engine: Engine = bind(call, ENGINES[call.name], "engine", text)
    if isinstance(engine, LabEngine) and engine.rate != LabEngine.rate:
        raise PlanError(f"--engine {text}: the links between front and replicas are not shaped in a lab: omit rate")
    return engine
