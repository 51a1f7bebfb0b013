"""Which codec does a SPEC put together? One codec, what goes around it, and whether answers travel in it as well."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from torch.optim import Optimizer

from covey.errors import PlanError
from covey.exchange.codec import Codec
from covey.exchange.codecs.by_name import CODECS, WRAPPERS
from covey.exchange.codecs.momentum import check_optimizer
from covey.exchange.differences import refuse_carrying
from covey.exchange.warm_up import warm
from covey.servers.roles import holding_whole
from covey.spec import Call, Made, Spec, SpecError, bind, unknown
from covey.strategy import Entry, Role, Strategy

PULL = "pull"


def names(entry: Entry) -> list[str]:
    """The codecs that a strategy takes, if it takes any."""
    return [name for name in CODECS if name != "auto" or entry.measures] if entry.codecs else []


def codec(spec: Spec, entries: Mapping[str, Entry]) -> Codec | None:
    """The codec that a SPEC names, if it does; of its strategy, and of all that would take one, there is an entry."""
    words = [call for call in spec.codecs if call.name == PULL]
    found = _codec(replace(spec, codecs=tuple(call for call in spec.codecs if call.name != PULL)), entries)
    return _pulling(spec, words, found, entries) if words else found


def bound(call: Call, text: str, own_name: Callable[[type[Any]], str]) -> Call:
    """The call with its settings bound, if its codec was registered in this process and no other could look it up."""
    kind = CODECS.get(call.name)
    if call.made or kind is None or not own_name(kind):
        return call
    return replace(call, made=Made(bind(call, kind, "codec", text)))


def fitting(strategy: Strategy, codec: Codec | None) -> Strategy:
    """The strategy with what its codec asks for: an optimizer, servers with whole parameters, roles that tried it."""
    if codec is None:
        return strategy
    strategy = _prepared(holding_whole(strategy, codec.name) if codec.traits.shapes else strategy, codec)
    if codec.traits.momentum == "none":
        return strategy
    shared, before = strategy.taxonomy.optimization == "central", strategy.terms.accept

    def accept(optimizer: Optimizer) -> None:
        if before:
            before(optimizer)
        check_optimizer(codec, shared, optimizer)

    return replace(strategy, terms=replace(strategy.terms, accept=accept))


def _prepared(strategy: Strategy, codec: Codec) -> Strategy:
    """Its roles have tried the codec before the run's clock starts."""

    def preparing(roles: Callable[..., list[Role]]) -> Callable[..., list[Role]]:
        return lambda *given: [replace(role, prepare=partial(warm, codec)) for role in roles(*given)]

    servers, grouped = strategy.servers, strategy.servers.grouped
    servers = replace(servers, grouped=preparing(grouped)) if grouped else servers
    return replace(strategy, roles=preparing(strategy.roles), servers=servers)


def _pulling(spec: Spec, words: list[Call], found: Codec | None, entries: Mapping[str, Entry]) -> Codec:
    """The codec for both ways: `+ pull`."""
    at, entry = words[0], entries[spec.strategy.name]
    if at.settings or len(words) > 1:
        raise SpecError(spec.text, at.at, "pull has no settings, and stands once")
    if entry.codecs != "pushes":
        why = "what comes back is encoded anyway" if entry.codecs else f"{spec.strategy.name} {entry.plain}"
        goes = ", ".join(name for name, other in entries.items() if other.codecs == "pushes")
        raise SpecError(spec.text, at.at, f"{why}; pull goes with {goes}")
    if found is None:
        why = f"pull as what? say a codec too, such as '+ int8 + pull'; any of {', '.join(CODECS)}"
        raise SpecError(spec.text, at.at, why)
    if found.traits.measured:
        raise SpecError(spec.text, at.at, f"{found.name} chooses for what goes to servers; name a codec for both ways")
    with _told_at(spec, at):
        refuse_carrying(found)
    return replace(found, pull=True, name=f"{found.name} + {PULL}")


def _codec(spec: Spec, entries: Mapping[str, Entry]) -> Codec | None:
    """What vectors travel as: one codec, and what is put around it. Of that the first written is the outermost."""
    if not spec.codecs:
        return None
    for call in spec.codecs:
        if not _is_codec(call) and call.name not in WRAPPERS:
            raise unknown(spec.text, call.at, "codec", call.name, [*CODECS, *WRAPPERS])
    if not (entry := entries[spec.strategy.name]).codecs:
        goes = ", ".join(name for name, other in entries.items() if other.codecs)
        raise SpecError(spec.text, spec.codecs[0].at, f"{spec.strategy.name} {entry.plain}; codecs go with {goes}")
    call, around = _one(spec), [call for call in spec.codecs if call.name in WRAPPERS]
    with _told_at(spec, call):
        found = _made(call, spec)
    if found.traits.measured:
        _check_trying(spec, call, around, entries)
    for wrapper in reversed(around):
        with _told_at(spec, wrapper):
            found = bind(wrapper, WRAPPERS[wrapper.name], "wrapper", spec.text).wrap(found)
    return found.called([str(call) for call in spec.codecs], [call.name for call in spec.codecs])


def _is_codec(call: Call) -> bool:
    return call.made is not None or call.name in CODECS


def _made(call: Call, spec: Spec) -> Codec:
    """The codec of a call; of one from outside, checked."""
    made: Codec = bind(call, CODECS.get(call.name, object), "codec", spec.text).codec()
    if not isinstance(made, Codec):
        raise PlanError(f"the method codec() of '{call.name}' gave {made!r:.60}, not a covey.Codec")
    return made


def _one(spec: Spec) -> Call:
    """The only codec among what is written."""
    codecs = [call for call in spec.codecs if _is_codec(call)]
    if len(codecs) > 1:
        both, around = " and ".join(call.name for call in codecs[:2]), ", ".join(WRAPPERS)
        why = f"one codec is enough: {both} do not combine; around one go {around}"
        raise SpecError(spec.text, codecs[1].at, why)
    if not codecs:
        why = f"{spec.codecs[0].name} goes around a codec: say one too, such as '+ topk'; any of {', '.join(CODECS)}"
        raise SpecError(spec.text, spec.codecs[0].at, why)
    return codecs[0]


def _check_trying(spec: Spec, call: Call, around: list[Call], entries: Mapping[str, Entry]) -> None:
    """Refuse `auto` where nothing can be tried out."""
    if around:
        raise SpecError(spec.text, around[0].at, f"{call.name} chooses among codecs as they are: name one")
    if not entries[spec.strategy.name].measures:
        goes = ", ".join(name for name, entry in entries.items() if entry.measures)
        raise SpecError(spec.text, call.at, f"{call.name} goes with {goes}; name a codec here")


@contextmanager
def _told_at(spec: Spec, call: Call) -> Iterator[None]:
    """What is wrong with a call is told at its place."""
    try:
        yield
    except SpecError:
        raise
    except PlanError as error:
        raise SpecError(spec.text, call.at, str(error)) from None
