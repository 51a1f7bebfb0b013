"""Serving a model: an address, replicas, and an end."""

from __future__ import annotations

import asyncio
import gc
import secrets
import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from covey.engines import machine
from covey.engines.entries import Engine
from covey.errors import CoveyError, PlanError
from covey.inference.cut_model import best_places
from covey.inference.endpoint_record import EndpointRecord
from covey.inference.front_driver import FrontDriver
from covey.inference.messages import TrialDecided
from covey.inference.replicas.replica_forks import ReplicaForks
from covey.inference.replicas.replica_pool import ReplicaPool, ReplicaStarter
from covey.inference.request_desk import FrontSettings
from covey.inference.scaling.scaler import ScalerSettings
from covey.inference.schema import InputSchema
from covey.inference.served_model import ModelPlace, load, tell_of_code
from covey.inference.sites.replica_sites import ReplicaSites
from covey.inference.sites.site_forks import SiteForks
from covey.inference.tls_gate import HANDSHAKES, TlsGate, context_of, serve_on
from covey.inference.versions.canary import NEW
from covey.inference.versions.choice import VersionChoice
from covey.page.host_names import own_names
from covey.page.serving import listening
from covey.store.model_store import ModelStore
from covey.store.versions import UseKind

LONGEST_TRIAL = 0.1  # seconds of a batch that a replica measures before it is ready
CONNECTIONS = 4096  # at a time, or as many as there are files for; others are answered with 503


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeWishes:
    """How a model is served.

    Args:
        front: What the front promises.
        replicas: Processes that compute, the fewest and the most.
        share: Of the requests that should be answered in time.
        also: Other versions of the model.
        choice: Which of them computes a request.
        threads: Of each process; None divides the cores.
        stages: Of each replica; each is a process.
        engine: On whose hosts replicas run; None: on this machine.
        host: Where to listen.
        port: Which port; 0 takes a free one.
        certificate: Files with the certificate and the key of TLS.
        token: What clients must send; an address that others can reach needs one, and gets one where none is given.
        body: Bytes that a request may have.
        runs: The folder of records, in which the live page finds this endpoint; None: it does not.
        noted: Whether the lineage of versions tells of this endpoint.
    """

    front: FrontSettings
    replicas: tuple[int, int] = (1, 1)
    share: float = 0.99
    also: tuple[ModelPlace, ...] = ()
    choice: VersionChoice | None = None
    threads: int | None = None
    stages: int = 1
    engine: Engine | None = None
    host: str = "127.0.0.1"
    port: int = 8480
    certificate: tuple[Path, Path] | None = None
    token: str = ""
    body: int = 1 << 20
    runs: Path | None = None
    noted: bool = True

    def __post_init__(self) -> None:
        least, most = self.replicas
        if least < most and self.stages > 1:
            raise PlanError(
                f"--replicas {least}:{most} --stages {self.stages}: the scaler does not know how much a replica in "
                f"stages can answer; write --replicas {least}"
            )

    @property
    def scaled(self) -> ScalerSettings | None:
        """How the scaler chooses the number of replicas, where there is a choice."""
        least, most = self.replicas
        versions = 1 + len(self.also)
        settings = ScalerSettings(
            least=least, most=most, share=self.share, slack=self.front.budget, versions=versions
        )
        return settings if least < most else None


def serve(place: ModelPlace, wishes: ServeWishes, show: Callable[[str], None], say: Callable[[str], None]) -> None:
    """Answer requests until the process is told to end; `show` is told the address, `say` what else there is to say."""
    try:
        import uvicorn
    except ModuleNotFoundError as error:
        raise PlanError(f"serving needs {error.name}: pip install 'covey[serve]'") from None
    assert uvicorn
    place.check()
    if wishes.certificate:
        context_of(*wishes.certificate)
    with listening(wishes.host, wishes.port, "something else may listen there") as listener:
        local = ip_address(listener.getsockname()[0]).is_loopback
        if not local and wishes.certificate is None:
            raise PlanError(
                f"--host {wishes.host} can be reached by others: give --tls-certificate FILE and --tls-key FILE"
            )
        token = wishes.token or ("" if local else secrets.token_urlsafe(24))
        here = max(1, machine.cores() // (wishes.replicas[1] * wishes.stages))
        threads = wishes.threads or (1 if wishes.engine else here)
        trial = min(wishes.front.budget, LONGEST_TRIAL), wishes.front.largest
        places = tuple(one.absolute() for one in (place, *wishes.also))
        say = said_once(say)
        for one in places:  # before any process imports it
            tell_of_code(one, say)
        cuts = [best_places(load(one, say), wishes.stages) if wishes.stages > 1 else () for one in places]
        with ExitStack() as open_ones:
            forks: list[ReplicaStarter]
            if wishes.engine:
                most = wishes.replicas[1] * len(places)
                found = ReplicaSites(wishes.engine.places(most, None), places, cuts, threads, trial)
                forks = [open_ones.enter_context(closing(SiteForks(found)))] * len(places)
            else:
                forks = [
                    open_ones.enter_context(closing(ReplicaForks(one, threads, trial, after)))
                    for one, after in zip(places, cuts, strict=True)
                ]
            schema = common_schema(places, say)
            with asyncio.Runner(loop_factory=_event_loops()) as runner:
                runner.run(_serve(places, schema, wishes, listener, token, forks, show))


def said_once(say: Callable[[str], None]) -> Callable[[str], None]:
    """The same, for lines that were not said before."""
    said: set[str] = set()

    def once(line: str) -> None:
        if line not in said:
            said.add(line)
            say(line)

    return once


def _event_loops() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes event loops: uvloop, which takes half the time of asyncio's own, where it is installed."""
    try:
        from uvloop import new_event_loop
    except ModuleNotFoundError:
        return None
    return new_event_loop


def common_schema(places: Sequence[ModelPlace], say: Callable[[str], None]) -> InputSchema:
    """What clients may send; versions that take other inputs than the first, or fail on their own, are refused."""
    found = [load(place, say).schema() for place in places]
    for place, schema in zip(places, found, strict=True):
        if schema != found[0]:
            raise PlanError(
                f"{place.name} takes inputs of {list(schema.shape)} and {schema.dtype}, {places[0].name} those of "
                f"{list(found[0].shape)} and {found[0].dtype}: versions that are served together take the same"
            )
    return found[0]


async def _serve(
    places: Sequence[ModelPlace], schema: InputSchema, wishes: ServeWishes, listener: Any, token: str,
    forks: Sequence[ReplicaStarter], show: Callable[[str], None],
) -> None:  # fmt: skip
    import uvicorn

    from covey.inference.edge_connection import EdgeConnection, most_connections
    from covey.inference.endpoint import EdgeSettings, Endpoint, statistics

    context = context_of(*wishes.certificate) if wishes.certificate else None
    pool = ReplicaPool(forks)
    driver = FrontDriver(wishes.front, pool.send, wishes.scaled, wishes.choice)
    pool.deliver = driver.deliver
    driver.decided = lambda decided: show(decision(places, decided))
    for rank in range(0 if wishes.scaled else wishes.replicas[0] * len(places)):
        pool.start(rank)
    try:
        await pool.ready()
        for one in forks:
            one.begin()
        # Without a token, a page in a browser on this machine could ask under a name of its own (DNS rebinding).
        hosts = () if token else own_names(wishes.host, listener.getsockname()[0])
        edge = EdgeSettings(body=wishes.body, patience=wishes.front.deadline, token=token, hosts=hosts)
        names = [place.name for place in places]
        handshakes = HANDSHAKES if context else 0
        most = most_connections(CONNECTIONS, wishes.replicas[1] * len(places), handshakes)
        settings = uvicorn.Config(
            Endpoint(names, schema, driver, pool, edge), log_level="critical",
            lifespan="off", ws="none", server_header=False, proxy_headers=False, access_log=False,
            timeout_graceful_shutdown=5, limit_concurrency=most, http=EdgeConnection,
        )  # fmt: skip
        name = f"[{wishes.host}]" if ":" in wishes.host else wishes.host
        address = f"http{'s' if context else ''}://{name}:{listener.getsockname()[1]}"
        noted = places if wishes.noted else ()
        note_endpoint(noted, "endpoint", address)
        show(address)
        if token and not wishes.token:
            show(f"token: {token}")
        gc.freeze()  # what is there now stays: looking through all of torch again and again delays answers
        told = partial(statistics, driver, pool, names)
        record = EndpointRecord(wishes.runs, address, ", ".join(names), told).kept() if wishes.runs else nullcontext()
        try:
            async with record:
                await _until_told(uvicorn.Server(settings), listener, pool, TlsGate(context) if context else None)
        finally:
            with suppress(CoveyError):  # a version that was removed meanwhile has no lineage any more
                note_endpoint(noted, "endpoint ended", address)
    finally:
        pool.close()
        driver.close()


def note_endpoint(places: Sequence[ModelPlace], kind: UseKind, address: str) -> None:
    """Write into the lineage of registered versions that an endpoint has begun to answer with them, or has ended."""
    for place in places:
        if place.version:
            store = ModelStore(Path(place.store))
            store.note_use(store.named(place.version), kind, address)


def decision(places: Sequence[ModelPlace], decided: TrialDecided) -> str:
    """Promote the new version in its store if it has won; what to tell about it."""
    new = places[NEW]
    if decided.winner != NEW:
        return f"{new.name} is withdrawn: {decided.reason}"
    try:
        if new.version:
            store = ModelStore(Path(new.store))
            store.promote(store.named(new.version))
    except CoveyError as error:
        return f"{new.name} answers all requests; {error}"
    return f"{new.name} is promoted: {decided.reason}"


async def _until_told(server: Any, listener: Any, pool: ReplicaPool, gate: TlsGate | None) -> None:
    """Serve until a signal comes, or no replica can be started any more."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the server raises those that it got again when it has ended
        signal.signal(number, lambda *_: None)
    serving = asyncio.ensure_future(serve_on(listener, server, gate))
    both: list[asyncio.Future[Any]] = [serving, pool.failed]
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    if pool.failed.done():
        server.should_exit = True
        await serving
        raise pool.failed.result()
    await serving
