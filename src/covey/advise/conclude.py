"""From what is known to advice: the strategies in order, each with its reasons, risks and command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from covey.advise import families, findings, rules
from covey.advise.candidates import ALONE
from covey.advise.codecs import CodecOffer
from covey.advise.estimate import Estimate
from covey.advise.known import CandidateRow, Known
from covey.advise.ranked import Advice, Basis, RankedStrategy, Sure
from covey.advise.situation import Situation
from covey.advise.world import fastest

UNEVEN = 0.1  # spread of step times from which slow workers matter
CLOSE = 1.1  # times: what is nearer than this is no difference


def conclude(known: Known, name: str, until: str | None, command: str, epochs: int | None = None) -> Advice:
    """The advice, as far as something is known."""
    now = known.now
    offers = _offers(known)
    pairs = [(_choice(row, known, offers), known.relative(row)) for row in known.rows]
    pairs.append((_alone(known), Estimate(1.0, known.single().error)))
    doubts = {row.candidate.spec: known.doubt(row) for row in known.rows}
    pairs.sort(key=lambda pair: _order(pair[0], now, 1.0 if pair[0].workers == 1 else doubts[pair[0].spec]))
    ranked = [choice for choice, _ in pairs]
    for choice in ranked:
        choice.command = findings.command(
            name, choice.spec, choice.workers, until, command, now.spot, epochs, now.least
        )
    sure, why = _sure(pairs, known)
    steps = {row.candidate.spec: row.step for row in known.rows}
    return Advice(
        task=name, workers=now.workers, until=until, choices=ranked, findings=findings.of(ranked, now, steps, offers),
        sure=sure, why_sure=why, compute=now.compute, model=now.model, interrupted=known.interrupted,
        trained_to=known.level.words if known.level else "",
    )  # fmt: skip


def _offers(known: Known) -> dict[str, CodecOffer]:
    """What a codec does for each strategy; where both were timed alike, by those times."""
    by_spec = {row.candidate.spec: row for row in known.rows}
    found: dict[str, CodecOffer] = {}
    for spec, row in by_spec.items():
        if row.candidate.offer is None or not row.candidate.strategy.composition.codec.traits.plain:
            continue
        found[spec] = row.candidate.offer
        coded = by_spec.get(f"{spec} + {found[spec].codec}")
        if coded and coded.timing == row.timing:
            found[spec] = found[spec].timed(known.step(row).value, known.step(coded).value)
    return found


def _choice(row: CandidateRow, known: Known, offers: dict[str, CodecOffer]) -> RankedStrategy:
    now, curve, missed = known.now, known.curve(row), known.missed(row)
    relative, seconds = known.relative(row), None if missed else known.seconds(row)
    return RankedStrategy(
        spec=row.candidate.spec, workers=now.workers, step=known.step(row).value, timing=row.timing,
        exchange=row.step.share(), relative=relative.value, relative_interval=relative.interval,
        seconds=seconds.value if seconds else None, seconds_interval=seconds.interval if seconds else None,
        money=seconds.value * now.price / 3600 if now.price and seconds else None, basis=_basis(row, known),
        family=families.name_of(row.candidate.strategy.taxonomy), staleness=row.step.staleness,
        reasons=_reasons(row, now, offers), risks=_risks(row, known), missed=missed, seeds=len(curve.samples),
        tried=curve.tried,
    )  # fmt: skip


def _basis(row: CandidateRow, known: Known) -> Basis:
    curve = known.curve(row)
    if curve.samples or curve.missed:
        return "trained in virtual time"
    return "formulas" if row.timing == "formulas" else "timed in virtual time"


def _alone(known: Known) -> RankedStrategy:
    now = known.now
    world, rank = fastest(now.cluster, now.workers)
    price, seconds, step = world.price.get(0), known.seconds_alone(), known.single()
    fits = rules.decentral_fits(now.model, now.state, now.memory)
    return RankedStrategy(
        spec=ALONE, workers=1, relative=1.0, relative_interval=(1.0, 1.0), step=step.value,
        timing="real steps" if known.alone_real else "virtual time" if known.level else "formulas",
        seconds=seconds.value if seconds else None, seconds_interval=seconds.interval if seconds else None,
        exchange=0.0, family="one worker", money=seconds.value * price / 3600 if price and seconds else None,
        basis="trained in virtual time" if known.level else "formulas", seeds=len(known.alone),
        reasons=[f"worker {rank}, the fastest, by itself" if len(set(now.slownesses)) > 1 else "nobody to wait for"],
        risks=[] if fits.ok else [fits.reason],
    )  # fmt: skip


def _reasons(row: CandidateRow, now: Situation, offers: dict[str, CodecOffer]) -> list[str]:
    place = row.candidate.strategy.taxonomy
    share = row.step.share()
    found = [f"exchange takes {share:.0%} of a step" if share >= 0.01 else "exchange takes next to no time"]
    if now.spread >= UNEVEN and rules.holds_together(now.spread, place.scheduling, now.spot).ok:
        found.append("slow workers hold nobody up")
    if now.reproducible:
        found.append(rules.repeatable(True, place.scheduling == "synchronous").reason)
    plain = row.candidate.spec.partition(" + ")[0]
    codec = replace(row.candidate, offer=offers.get(plain)).compression
    return [*found, *codec, rules.rate_rule(place.optimization, place.scheduling, now.workers)]


def _risks(row: CandidateRow, known: Known) -> list[str]:
    missed = known.curve(row).missed
    found = ["a run of it was not at the target when others, or one worker alone, had long been"] if missed else []
    found += [f"it could not run here: {row.failure}"] if row.failure else []
    found += row.candidate.risks
    place = row.candidate.strategy.taxonomy
    if place.optimization == "central" and place.scheduling != "synchronous" and row.step.staleness >= 1:
        found.append(f"a gradient is about {row.step.staleness:.0f} updates old when it is applied")
    knobs = families.FAMILIES[families.name_of(place)].knobs
    if knobs > 2:
        found.append(f"{knobs} settings more to find")
    return found


def _order(choice: RankedStrategy, now: Situation, doubt: float) -> tuple[bool, float, float, float]:
    """The fastest first; of equally fast ones, what the survey prefers, then the shorter step."""
    family = families.FAMILIES.get(choice.family)
    merit = families.merit(family, now.spread, now.reproducible) if family else 1.0
    return (choice.missed, round(choice.relative * doubt, 2), -merit, choice.step)


def _sure(ranked: Sequence[tuple[RankedStrategy, Estimate]], known: Known) -> tuple[Sure, str]:
    first, best = ranked[0]
    timed = "" if known.now.measured or first.timing == "real steps" else (
        "; the time of a batch is what the cluster is said to have, it was not measured"
    )  # fmt: skip
    if known.disturbed:
        timed += "; other programs used the cores while real steps were measured"
    cut = "it was interrupted; " if known.interrupted else "--within ended the search; " if known.late else ""
    if first.basis != "trained in virtual time":
        return "a rough guess", f"{cut}samples to the target come from rules of thumb{timed}"
    others = [(choice, found) for choice, found in ranked[1:] if not choice.missed]
    if known.level and not known.level.exact:
        timed = f"; all were compared by {known.level.words}{timed}"
    near = [found.value < CLOSE * best.value or not best.before(found) for _, found in others]
    rivals = [_called(choice) for (choice, _), close in zip(others, near, strict=True) if close]
    if rivals:
        more = f" and {len(rivals) - 3} more" if len(rivals) > 3 else ""
        return "a close call", f"{cut}{', '.join(rivals[:3])}{more} may be as fast{timed}"
    lead = others[0][1].value / best.value - 1 if others else 0.0
    return "quite sure", f"{cut}the next best would take {lead:.0%} longer{timed}"


def _called(choice: RankedStrategy) -> str:
    return "one worker alone" if choice.workers == 1 else choice.spec
