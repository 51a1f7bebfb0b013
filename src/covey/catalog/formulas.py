"""What strategies put on the wire, link by link, in bytes of payload: the formulas that entries share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from covey.strategy import CountedRun, LinkBytes
from covey.topology import GRAPHS
from covey.vector import chunk


def servers(run: CountedRun) -> LinkBytes:
    """Up with the gradient and down with the weights, every step."""
    return _with("server 0", run, run.steps, run.steps)


def server_beside_worker(run: CountedRun) -> LinkBytes:
    """The same, where the server is on the machine of worker 0."""
    return {link: size for link, size in servers(run).items() if "worker 0" not in link}


def centre(run: CountedRun) -> LinkBytes:
    """The centre down and the force up, at steps 0, period, 2 period…"""
    return _with("master 0", run, -(-run.steps // run.period), -(-run.steps // run.period))


def rounds(run: CountedRun) -> LinkBytes:
    """The model up to the master at the end of every round, a last one may be short, and down where one goes on."""
    return _with("master 0", run, -(-run.steps // run.period), run.steps // run.period)


def _with(other: str, run: CountedRun, up: int, down: int) -> LinkBytes:
    """Models from every worker to another role, and back."""
    there = {f"worker {rank}->{other}": up * run.model for rank in run.ranks}
    return there | {f"{other}->worker {rank}": down * run.model for rank in run.ranks}


def every_step(run: CountedRun) -> LinkBytes:
    """A ring's sum of all gradients."""
    return ring(run, run.steps)


def whole_periods(run: CountedRun) -> LinkBytes:
    """A ring's sum at the end of every period."""
    return ring(run, run.steps // run.period)


def all_periods(run: CountedRun) -> LinkBytes:
    """A ring's sum at the end of every period; a last one may be short."""
    return ring(run, -(-run.steps // run.period))


def centred(run: CountedRun) -> LinkBytes:
    """A ring's sum of all gradients every step, and of the full one at the beginning of every period."""
    return ring(run, run.steps + -(-run.steps // run.period))


def ring(run: CountedRun, times: int) -> LinkBytes:
    """2 D - |chunk(r+1)| - |chunk(r+2)| from each rank to the next one, every time."""
    links = {}
    for rank in run.ranks:
        spared = sum(_length(run, rank + hop) for hop in (1, 2))
        links[f"worker {rank}->worker {(rank + 1) % run.workers}"] = times * (2 * run.numbers - spared) * run.width
    return links


def _length(run: CountedRun, index: int) -> int:
    start, stop = chunk(run.numbers, run.workers, index % run.workers)
    return stop - start


def neighbours(run: CountedRun) -> LinkBytes:
    """The model to every neighbour on a ring, every step."""
    graph = GRAPHS["ring"](run.workers)
    return {
        f"worker {rank}->worker {peer}": run.steps * run.model for rank in run.ranks for peer in graph.neighbours(rank)
    }


def partners(run: CountedRun) -> LinkBytes:
    """The model to one partner a step, at distance 1, 2, 4, 1, 2, 4…"""
    links: Counter[str] = Counter()
    for step in range(run.steps if run.workers > 1 else 0):
        for rank in run.ranks:
            links[f"worker {rank}->worker {rank ^ (1 << step % (run.workers.bit_length() - 1))}"] += run.model
    return dict(links)


def one_peer(run: CountedRun) -> LinkBytes:
    """The model and a weight to the rank 1, 2, 4… after one's own, in turn."""
    hops = [1 << k for k in range((run.workers - 1).bit_length())]
    links: LinkBytes = Counter()
    for step in range(run.steps if hops else 0):
        for rank in run.ranks:
            links[f"worker {rank}->worker {(rank + hops[step % len(hops)]) % run.workers}"] += run.model + 8
    return links


def leaves(run: CountedRun) -> LinkBytes:
    """Up to the root every `up` steps, and down every `down`, in a tree with one level."""
    up, down = (_setting(run, key) for key in ("up", "down"))
    links = {f"worker {rank}->worker 0": run.steps // up * run.model for rank in run.ranks if rank}
    return links | {f"worker 0->worker {rank}": run.steps // down * run.model for rank in run.ranks if rank}


def _setting(run: CountedRun, key: str) -> int:
    value = run.settings[key]
    assert isinstance(value, int)
    return value


def everyone(run: CountedRun) -> LinkBytes:
    """The gradient to everyone, every step."""
    return _to_all(run, lambda away, step: run.model)


def partitions(run: CountedRun) -> LinkBytes:
    """One of workers - 1 partitions to everyone, another one to each and every step."""
    return _to_all(run, lambda away, step: _piece(run, run.workers - 1, away - 1 + step))


def blocks(run: CountedRun) -> LinkBytes:
    """One of `blocks` blocks to everyone, the next one every step."""
    return _to_all(run, lambda away, step: _piece(run, _setting(run, "blocks"), step))


def _to_all(run: CountedRun, size: Callable[[int, int], int]) -> LinkBytes:
    """Bytes from each worker to each other one, given how far it is away, every step."""
    return {
        f"worker {rank}->worker {(rank + away) % run.workers}": sum(size(away, step) for step in range(run.steps))
        for rank in run.ranks
        for away in range(1, run.workers)
    }


def _piece(run: CountedRun, pieces: int, index: int) -> int:
    start, stop = chunk(run.numbers, pieces, index % pieces)
    return (stop - start) * run.width


def counted(run: CountedRun) -> LinkBytes:
    """A model in each of the messages that were counted."""
    return {link: count * run.model for link, count in run.counts.items()}


def changes_up(run: CountedRun) -> LinkBytes:
    """Up with the change, every step; down with what only speeds decide: copies renewed, others' changes."""
    return {f"worker {rank}->server 0": run.steps * run.model for rank in run.ranks} | counted(run)


def rows(run: CountedRun) -> LinkBytes:
    """As `changes_up`, where the rate carries every row up once a step. Down goes a copy, then rows that changed."""
    return {**changes_up(run), **{link: size + run.counts[link] * run.model for link, size in run.sizes.items()}}


def owners(run: CountedRun) -> LinkBytes:
    """To every other owner its slice of the gradient, and one's own slice of the parameters."""
    slices = [_length(run, rank) for rank in run.ranks]
    pairs = [(a, b) for a in run.ranks for b in run.ranks if a != b]
    return {f"worker {a}->worker {b}": run.steps * (slices[a] + slices[b]) * run.width for a, b in pairs}


def halved_owners(run: CountedRun) -> LinkBytes:
    """As `owners`, in 16 bits."""
    return owners(replace(run, width=run.width // 2))


def tree(run: CountedRun) -> LinkBytes:
    """Every rank of the binomial tree sends its sum to its parent and gets the weights back; the server is the root."""
    links = {}
    for place in range(1, run.workers + 1):
        parent = place - (place & -place)
        above = f"worker {parent - 1}" if parent else "server 0"
        links[f"worker {place - 1}->{above}"] = run.steps * run.model
        links[f"{above}->worker {place - 1}"] = run.steps * run.model
    return links


def factors(run: CountedRun) -> LinkBytes:
    """As `owners`, parameter by parameter; a layer goes as factors where these are no more numbers than two weights."""
    links: LinkBytes = Counter()
    for step in range(run.steps):
        sizes = [run.batch(rank, step) for rank in run.ranks]
        for out, inputs in run.layers:
            apart = (out + inputs) * sum(sizes) <= 2 * out * inputs
            for numbers in [out] + [out * inputs] * (not apart):
                links.update(owners(replace(run, steps=1, numbers=numbers)))
            for a, b in ((a, b) for a in run.ranks for b in run.ranks if apart and a != b):
                links[f"worker {a}->worker {b}"] += (out + inputs) * sizes[a] * run.width
    return links


def products(run: CountedRun) -> LinkBytes:
    """As `servers`; but up go K inputs and errors of a layer where they are fewer numbers than its weights."""
    links = servers(run)
    for rank in run.ranks:
        samples = [run.batch(rank, step) for step in range(run.steps)]
        saved = sum(max(0, n * m - k * (n + m)) for k in samples for n, m in run.layers)
        links[f"worker {rank}->server 0"] -= saved * run.width
    return links


def scheduled(run: CountedRun) -> LinkBytes:
    """The products of all pairs of features up, once, in 8 bytes; then a few numbers a round, both ways."""
    links: LinkBytes = Counter(run.sizes)
    for rank in run.ranks:
        links[f"worker {rank}->scheduler 0"] += 8 * run.numbers**2
    return links


def units(run: CountedRun) -> LinkBytes:
    """Inputs of one's own samples; outputs of one's units, and errors of the receiver's, of everybody's.

    Of the last layer only outputs of the receiver's samples, and errors of one's own. The first input learns nothing.
    """
    links: LinkBytes = Counter()
    cuts = [[stop - start for start, stop in (chunk(out, run.workers, r) for r in run.ranks)] for out, _ in run.layers]
    hidden, last = [sum(column) for column in zip(*cuts[:-1], strict=True)], cuts[-1]
    for step in range(run.steps):
        sizes = [run.batch(rank, step) for rank in run.ranks]
        for a, b in ((a, b) for a in run.ranks for b in run.ranks if a != b):
            between = sum(sizes) * (hidden[a] + hidden[b]) + sizes[b] * last[a] + sizes[a] * last[b]
            links[f"worker {a}->worker {b}"] += (sizes[a] * run.layers[0][1] + between) * run.width
    return links
