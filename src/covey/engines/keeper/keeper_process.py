"""The keeper of this host in real time: readers ask it on a local socket, peers over encrypted links."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from covey.data.stripe_cache.cache_folder import CacheFolder
from covey.data.stripe_cache.cached_set import CachedSet
from covey.data.stripe_cache.keeper import Keeper
from covey.data.stripe_cache.keeper_messages import KEEPER, TO_KEEPERS, HungUp
from covey.data.stripe_cache.stripe import Stripe
from covey.engines.interrupt import Interrupt
from covey.engines.keeper.keeper_link import LARGEST, KeeperLink
from covey.engines.keeper.keeper_pool import KeeperPool
from covey.engines.keeper.reader_lines import ReaderLines
from covey.engines.service.dialled_link import dialled
from covey.engines.service.greeting import Hello, NotWelcome, Welcome
from covey.engines.service.role_loop import LoopRole, RoleLoop, closing
from covey.engines.service.service_port import PortTerms, ServicePort
from covey.engines.transport.refusals import Refusals
from covey.errors import PlanError
from covey.membership import Departed, Joined
from covey.message import Address, Message
from covey.observe.instruments import Instrument
from covey.program import Send
from covey.version import __version__

LOOK = 0.05  # seconds between two looks whether a peer can be dialled again, or a person wants it to end
IDLE = 600.0  # seconds after which a set that nobody asks for may be removed
SETS = 64  # that are open at once
SAID = 100  # different lines about what cannot be served or kept
UNREAD = 4096  # messages of a peer that may lie unread: one of each of its readers


class KeptSets:
    """The sets of which the keeper has served something lately: nobody removes them.

    What cannot be opened is told, and not there: a keeper serves on.
    """

    def __init__(self, cache: CacheFolder, say: Callable[[str], None]) -> None:
        self._cache, self._say, self._said = cache, say, set[str]()
        self._open: dict[str, tuple[CachedSet, float]] = {}

    def read(self, stripe: Stripe, first: int, last: int) -> bytes | None:
        try:
            if not (self._cache.folder / stripe.set).is_dir():
                return None
            return self._set(stripe).read(stripe, first, last)
        except (OSError, PlanError) as error:
            self._tell(error)
            return None

    def store(self, stripe: Stripe, data: bytes) -> None:
        try:
            self._set(stripe).store(stripe, data)
        except (OSError, PlanError) as error:
            self._tell(error)

    def _tell(self, error: Exception) -> None:
        if str(error) not in self._said and len(self._said) < SAID:
            self._said.add(str(error))
            self._say(f"a stripe could not be served or kept: {error}")

    def _set(self, stripe: Stripe) -> CachedSet:
        now = time.monotonic()
        for name in [name for name, (_, at) in self._open.items() if now - at > IDLE]:
            self._open.pop(name)[0].close()
        found = (
            self._open[stripe.set][0] if stripe.set in self._open else CachedSet(self._cache, stripe.set, "", self._say)
        )
        self._open.pop(stripe.set, None)
        self._open[stripe.set] = found, now
        while len(self._open) > SETS:
            self._open.pop(next(iter(self._open)))[0].close()
        return found


class KeeperProcess:
    """One keeper of a pool, until somebody interrupts it.

    Args:
        pool: All hosts that share their caches.
        mine: Which of them this one is.
        cache: The folder of this host's stripes.
        say: Hears what goes wrong.
    """

    def __init__(self, pool: KeeperPool, mine: int, cache: CacheFolder, say: Callable[[str], None]) -> None:
        self.me, self._say = Address(KEEPER, mine), say
        self._ready = select.epoll()
        self._readers = ReaderLines(cache.folder)
        self._refusals, self._shown = Refusals(), Refusals()
        others = [place for place in range(len(pool.members)) if place != mine]
        self._port = self._open_port(pool, others)
        self._places = {Address(KEEPER, place): pool.members[place].address for place in others}
        self._links = {Address(KEEPER, place): KeeperLink(pool, mine, place, self._ready) for place in others}
        self._loop = RoleLoop(self._send, Instrument())
        role = LoopRole(self.me, Random(mine), taken=self._port.taken)
        keeper = Keeper(role.node, pool.keepers(), KeptSets(cache, say), self._refusals.note)
        self._loop.begin(role, keeper.run())
        self._ready.register(self._readers.ready, select.EPOLLIN)
        self._ready.register(self._loop.wakeup, select.EPOLLIN)

    def _open_port(self, pool: KeeperPool, others: Sequence[int]) -> ServicePort:
        member = pool.members[self.me.rank]
        port = dialled(member.address).rpartition(":")[2]
        terms = PortTerms(
            listen=f"tcp://*:{port}", pair=member.pair, roles=[self.me], says=TO_KEEPERS, largest=LARGEST, unread=UNREAD
        )
        welcome = {pool.members[place].public: Address(KEEPER, place) for place in others}
        return ServicePort(terms, welcome, _greet, self._refusals)

    def run(self, interrupt: Interrupt) -> None:
        """Serve until asked to end."""
        try:
            with closing(self._loop):
                while not interrupt.asked:
                    self._turn()
        finally:
            self._readers.close()
            for link in self._links.values():
                link.close()
            self._port.close()
            self._ready.close()

    def _turn(self) -> None:
        self._loop.run()
        came = [message for _, message in self._port.poll(LOOK, self._ready.fileno())]
        came = [HungUp(sender=one.sender) if isinstance(one, Departed) else one for one in came]
        for peer, link in self._links.items():
            news = link.poll()
            self._tell(peer, news)
            came += news
        for message in (*came, *self._readers.poll()):
            self._loop.deliver(self.me, message)
        for line in self._shown.add(self._refusals.news(), "the keeper"):
            self._say(line)

    def _tell(self, peer: Address, news: Sequence[Message]) -> None:
        """Say that a peer is gone, or back."""
        for message in news:
            if isinstance(message, Departed):
                self._say(f"the keeper at {self._places[peer]} does not answer: its stripes are read from their source")
            elif isinstance(message, Joined):
                self._say(f"the keeper at {self._places[peer]} is back")

    def _send(self, role: LoopRole, effect: Send) -> None:
        to, body = effect.to, effect.body
        if to.role != KEEPER:
            self._readers.send(to, body)
        elif type(body) in TO_KEEPERS:
            self._links[to].send(body)
        else:
            self._port.send(role.address, to, body, effect.loan)


def keep(
    pool: KeeperPool, address: str, folder: Path | None, limit: int | None, interrupt: Interrupt,
    say: Callable[[str], None],
) -> None:  # fmt: skip
    """Be the keeper of this host."""
    cache = CacheFolder(folder, limit)
    process = KeeperProcess(pool, pool.place(address), cache, say)
    say(f"the keeper of {cache.folder} listens at {address}, one of {len(pool.members)} hosts")
    process.run(interrupt)


def _greet(peer: Address, hello: Hello) -> Welcome | NotWelcome:
    if hello.covey != __version__:
        return NotWelcome(f"it has covey {hello.covey[:20]}, and this keeper has {__version__}")
    return Welcome(str(peer), "", 0)
