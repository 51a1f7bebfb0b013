"""What does a comparison say? One sentence, a winner or none, and how each strategy compares with the leader."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations
from statistics import median

from covey.compare.cases import Entrant
from covey.compare.outcomes import ComparedRun, Comparison, Standing
from covey.compare.paired import FEWEST, Finish, Ratio
from covey.compare.race import Rounds, Standings
from covey.names import option
from covey.target import parse_target

TIE = 2.0  # times: those that may be further apart than this do not tie, they are not known well enough


def standings(whole: Comparison, rounds: Rounds) -> Standings:
    """The runs of a comparison that count: of strategies that never failed, on a quiet machine, with some training."""
    failed = {Entrant(run.spec, run.rate) for run in whole.outcomes if run.result is None}
    finishes: dict[Entrant, dict[int, Finish]] = {}
    for run in whole.outcomes:
        found = finishes.setdefault(Entrant(run.spec, run.rate), {})
        if run.result is not None and not run.disturbed and not run.untrained:
            found[run.repeat] = finish(run)
    return Standings({entrant: found for entrant, found in finishes.items() if entrant not in failed}, rounds)


def finish(run: ComparedRun) -> Finish:
    assert run.result is not None
    reached = run.result.reached
    return Finish(reached.seconds) if reached else Finish(run.result.seconds, reached=False)


def conclude(whole: Comparison, rounds: Rounds, more: str = "") -> None:
    """Write down what the runs say; `more` tells how to get enough of them, where there were too few."""
    found = standings(whole, rounds)
    came = any(one.reached for finishes in found.finishes.values() for one in finishes.values())
    ahead = found.ahead() if whole.until and came else []
    leader = ahead[0] if ahead else None
    whole.strategies = [_standing(whole, found, spec, leader) for spec in whole.specs()]
    whole.verdict, whole.winner, whole.tied = "", None, []
    if why := _no_verdict(whole, found):
        whole.verdict = f"No verdict: {why}"
        return
    if not came:
        whole.verdict = _unreached(whole)
        return
    if why := _too_few(whole, found, more):
        whole.verdict = f"No verdict: {why}"
        return
    assert leader is not None, "somebody has reached the target"
    specs = list(dict.fromkeys(entrant.spec for entrant in ahead))
    if len(specs) == 1:
        whole.verdict, whole.winner = _first(whole, found, leader), leader.spec
        return
    best = [next(entrant for entrant in ahead if entrant.spec == spec) for spec in specs]
    apart = _apart([found.ratio(one, other) for one, other in permutations(best, 2)])
    seeds = min(found.ratio(one, other).seeds for one, other in permutations(best, 2))
    if apart > TIE:
        how = f"up to {_times(apart)}x apart" if math.isfinite(apart) else "any distance apart"
        whole.verdict = f"No verdict: {listed(specs)} may be {how} ({counted(seeds, 'seed')}){more and '; ' + more}"
        return
    whole.tied = specs
    others = [spec for spec in whole.specs() if spec not in specs and any(one.spec == spec for one in found.finishes)]
    rest = f", ahead of {listed(others)}" if others else ""
    whole.verdict = f"{listed(specs)} tie{rest}: at most {_times(apart)}x apart ({counted(seeds, 'seed')})"


def _no_verdict(whole: Comparison, found: Standings) -> str:
    """Why there is none, whatever the times; nothing where there may be one."""
    seeds = max((len(finishes) for finishes in found.finishes.values()), default=0)
    if not whole.until:
        return f"there is no target that one could reach first ({option('until')})"
    if whole.interrupted:
        return f"it was interrupted after {counted(seeds, 'seed')}"
    if whole.busy:
        return _busy([run for run in whole.outcomes if run.disturbed], whole)
    if not found.finishes and any(run.untrained for run in whole.outcomes):
        return f"every strategy meets {whole.until} before the first step; give a harder target"
    return "" if found.finishes else f"no strategy has runs that count{_failures(whole)}"


def _failures(whole: Comparison) -> str:
    """Which strategies failed, and so do not count."""
    failed = [f"{spec} {how}" for spec in whole.specs() if (how := whole.failed(spec))]
    return f" ({listed(failed)})" if failed else ""


def _too_few(whole: Comparison, found: Standings, more: str) -> str:
    """Why those that reached the target have not run often enough for a verdict; nothing where they have."""
    ran = {entrant.spec for entrant in found.finishes}
    pairs = [found.ratio(*both).seeds for both in permutations(found.finishes, 2) if both[0].spec != both[1].spec]
    if len(ran) < 2:
        return f"only {listed(sorted(ran))} has runs that count{_failures(whole)}"
    if max(pairs) < max(FEWEST, min(found.rounds.least, Rounds().least)):
        few = "one run of each is not enough" if max(pairs) <= 1 else f"{max(pairs)} runs of each are not enough"
        return few + (f"; {more}" if more else "")
    return ""


def _unreached(whole: Comparison) -> str:
    """How near the best came to a target that nobody reached."""
    assert whole.until is not None
    target = parse_target(whole.until)
    scored = [
        (value, run.spec)
        for run in whole.outcomes if run.result is not None
        for row in run.result.history if (value := row.get(target.metric)) is not None and math.isfinite(value)
    ]  # fmt: skip
    if not scored:
        return f"No strategy reached {whole.until}: {target.metric} was never a number"
    best, spec = (max if target.op == ">=" else min)(scored, key=lambda pair: pair[0])
    if target.reached(best):
        return f"No strategy reached {whole.until} with two scores in a row: best was {spec} at {best:.4g}"
    return f"No strategy reached {whole.until}: best was {spec} at {best:.4g}"


def _busy(disturbed: Sequence[ComparedRun], whole: Comparison) -> str:
    loads = [run.result.contention for run in disturbed if run.result and run.result.contention]
    used = median(load.others or 0.0 for load in loads)
    cores = loads[0].cores
    return (
        f"this machine was busy (other programs used {used:.1f} of {counted(cores, 'core')} in {len(disturbed)} of "
        f"{counted(len(whole.outcomes), 'run')})"
    )


def _first(whole: Comparison, found: Standings, leader: Entrant) -> str:
    rivals = [entrant for entrant in found.finishes if entrant.spec != leader.spec]
    # One that dropped out early, behind somebody else, may have too few runs to compare with the leader.
    beaten = [entrant for entrant in rivals if found.ratio(entrant, leader).low > 1] or rivals
    nearest = min(beaten, key=lambda entrant: found.ratio(entrant, leader).low)
    how = found.ratio(nearest, leader)
    missed = sum(not one.reached for one in found.finishes[leader].values())
    but = f"; it missed the target with {missed} of them" if missed else ""
    return f"{leader.spec} is first: {spread(how)} faster than {nearest.spec} ({counted(how.seeds, 'seed')}{but})"


def _standing(whole: Comparison, found: Standings, spec: str, leader: Entrant | None) -> Standing:
    """A strategy at the rate that is best for it."""
    rates = sorted((entrant for entrant in found.finishes if entrant.spec == spec), key=found.middle)
    mine = [run for run in whole.outcomes if run.spec == spec and (not rates or run.rate == rates[0].rate)]
    finishes = [finish(run) for run in mine if run.result is not None]
    times = [one.seconds if one.reached else math.inf for one in finishes]
    middle = median(times) if times else math.inf
    timed = whole.until is not None
    return Standing(
        spec=spec, rate=mine[0].rate, runs=len(finishes), reached=sum(one.reached for one in finishes) if timed else 0,
        seconds=middle if timed and math.isfinite(middle) else None,
        ratio=found.ratio(rates[0], leader) if rates and leader else None,
        disturbed=sum(bool(run.disturbed) for run in mine),
        failure=next((run.failure for run in mine if run.failure), ""),
    )  # fmt: skip


def _apart(ratios: Sequence[Ratio]) -> float:
    """How many times as long one may take as another, at most."""
    return max(math.inf if ratio.high is None else ratio.high for ratio in ratios)


def spread(ratio: Ratio) -> str:
    """An interval as a person reads it."""
    if ratio.high is None:
        return f"at least {_times(ratio.low)}x" if ratio.low > 0 else "?"
    return f"{_times(ratio.low)} to {_times(ratio.high)}x"


def _times(value: float) -> str:
    """Two digits, or as many as tell it from 1."""
    if value >= 9.95:
        return f"{value:.0f}"
    digits = 1 if abs(value - 1) >= 0.095 else 2 if abs(value - 1) >= 0.0095 else 3
    return f"{value:.{digits}f}" if value != 1 else "1"


def listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def counted(many: int, what: str) -> str:
    return f"{many} {what}" if many == 1 else f"{many} {what}s"


def how_long(seconds: float) -> str:
    """A time limit that a person would write, no shorter than this."""
    return f"{math.ceil(seconds / 60)}m" if seconds > 90 else f"{10 * math.ceil(seconds / 10)}s"
