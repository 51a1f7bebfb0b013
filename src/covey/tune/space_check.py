"""Can the trials of a space run at all? What cannot is refused before anything starts, at its place in the text."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Parameter
from itertools import product

from covey.catalog import resolve
from covey.errors import CoveyError, PlanError
from covey.names import meant
from covey.spec.call import Scalar, SpecError
from covey.task.made import misfit
from covey.tune.space import CODEC, NONE, STRATEGY, Alternative, NumberRange, Space, Values


class _FirstChooser:
    """Chooses the first value of everything."""

    def choice(self, path: str, among: tuple[Scalar, ...]) -> Scalar:
        return among[0]

    def number(self, path: str, among: NumberRange) -> Scalar:
        return among.clipped(among.low)


def check_space(space: Space, parameters: Mapping[str, Parameter], where: str, workers: int, usual: str) -> None:
    """Refuse settings that the task does not have, strategies and codecs that do not exist, and what never fits."""
    for name, values in space.settings.items():
        if name in parameters and name in (STRATEGY, CODEC):
            raise _wrong(space, name, f"the task has a parameter {name!r} too: give it another name there")
        if name not in parameters and name not in (STRATEGY, CODEC):
            known = [*(name for name, one in parameters.items() if one.kind is not Parameter.VAR_KEYWORD), STRATEGY]
            hint = "" if parameters else f"; write def task({name}=…) in the file, which returns the covey.Task"
            raise _wrong(space, name, f"{where} has no parameter {name!r}{meant(name, [*known, CODEC])}{hint}")
        if name in parameters:
            _check_kind(space, name, values, parameters[name])
    strategies, codecs = _alternatives(space, STRATEGY), _alternatives(space, CODEC)
    for one in strategies:
        _resolves(space, one.at, _text(space, STRATEGY, one), workers)
    refusals = [
        _refusal(_text(space, STRATEGY, one) if one else usual, _text(space, CODEC, codec) if codec else NONE, workers)
        for one, codec in product(strategies or [None], codecs or [None])
    ]
    if all(refusals):
        raise _wrong(space, CODEC if codecs else next(iter(space.settings)), f"nothing of this can run: {refusals[0]}")
    for codec in codecs:
        tried = [
            _refusal(_text(space, STRATEGY, one) if one else usual, _text(space, CODEC, codec), workers)
            for one in (strategies or [None])
        ]
        if all(tried):
            raise SpecError(space.text, codec.at, tried[0])


def _check_kind(space: Space, name: str, values: Values, parameter: Parameter) -> None:
    """Refuse words where the function wants a number, and fractions where it wants a whole one."""
    if isinstance(values, NumberRange):
        if not values.whole and misfit(name, 0.5, parameter):
            raise _wrong(space, name, f"the task wants {name}: int: write int(…) or logint(…)")
        return
    for one in values:
        if why := misfit(name, one.value, parameter):
            raise SpecError(space.text, one.at, why)


def _alternatives(space: Space, name: str) -> tuple[Alternative, ...]:
    values = space.settings.get(name, ())
    if isinstance(values, NumberRange):
        raise _wrong(space, name, f"a {name} is a name, not a number")
    return values


def _text(space: Space, name: str, one: Alternative) -> str:
    """An alternative with the first value of each of its settings."""
    alone: Mapping[str, Values] = {name: (one,)}
    point = Space(alone).draw(_FirstChooser())
    setup = Space(alone).setup(point, "bsp")
    return setup.strategy if name == STRATEGY else setup.strategy.removeprefix("bsp + ") if one.value != NONE else NONE


def _resolves(space: Space, at: int, spec: str, workers: int) -> None:
    if why := _refusal(spec, NONE, workers):
        raise SpecError(space.text, at, why)


def _refusal(strategy: str, codec: str, workers: int) -> str:
    """Why these cannot run together; empty where they can."""
    try:
        resolve(strategy if codec == NONE else f"{strategy} + {codec}", workers)
    except SpecError as error:
        return error.why
    except CoveyError as error:
        return str(error)
    return ""


def _wrong(space: Space, name: str, why: str) -> PlanError:
    return SpecError(space.text, space.places.get(name, 0), why)
