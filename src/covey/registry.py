"""Which names are known? The table of strategies, and how those from outside get into the tables of names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, TypeVar

from covey import faults
from covey.engines.entries import ENGINES, HERE, Engine
from covey.errors import PlanError
from covey.exchange.codecs.by_name import CODECS, WRAPPERS
from covey.spec import parse_call
from covey.strategy import Entry, Taken, TrafficFormula
from covey.systems import LATER, SYSTEMS
from covey.task import import_file

STRATEGIES: dict[str, Entry] = {}
"""Every strategy by its name: the catalog's, and those from outside."""

GROUPS = ("covey.strategies", "covey.codecs", "covey.engines")
"""The entry points by which an installed package offers strategies, codecs and engines."""

T = TypeVar("T", bound=type[Any])

_from_outside: dict[type[Any], str] = {}  # each registered class, and the name it was registered by
_installed: set[type[Any]] = set()  # those of installed packages, which other processes can look up too
_unusable: dict[str, str] = {}  # names of entry points that failed, and why
_state = {"searched": False, "installing": False}


def register(
    name: str, *, paper: str = "", use: str = "", details: str = "", codecs: Taken = "", graph: str | None = None,
    example: str = "", cuts: bool = False, traffic: TrafficFormula | None = None,
) -> Callable[[T], T]:  # fmt: skip
    """Give a strategy, a codec or an engine of your own a name for SPECs and `--engine`.

    It goes over a dataclass whose fields are the settings: with a method `strategy(workers)` that gives a
    `covey.Strategy`, with a method `codec()` that gives a `covey.Codec`, or over a subclass of `covey.Engine`.

    Args:
        name: What SPECs call it: small letters, digits and _.
        paper: Where it was published.
        use: For which task, machines or network one would choose a strategy.
        details: What the settings of a strategy do; `covey strategies NAME` shows it.
        codecs: What a strategy encodes: "pushes" to servers, "exchanges" among workers. Its method then takes `codec`.
        graph: The topology that a strategy runs over unless `over` names another. Its method takes `graph` and `over`.
        example: A SPEC that trains a small task, where the bare name does not.
        cuts: Whether a strategy works with models that are cut (`with mesh(…)`).
        traffic: What a strategy sends; `covey check-strategy` compares.

    >>> from dataclasses import dataclass
    >>> @covey.register("half")
    ... @dataclass(frozen=True)
    ... class Half:
    ...     def codec(self) -> "covey.Codec": ...
    """
    if not isinstance(name, str):
        raise PlanError(f'{_called(name)} is registered without a name: write @covey.register("a_name") over it')

    only_strategies = {
        "use": use, "details": details, "codecs": codecs, "graph": graph, "example": example, "cuts": cuts,
        "traffic": traffic,
    }  # fmt: skip

    def over(kind: T) -> T:
        table = _table(kind)
        _check_name(name, kind, table)
        if table is STRATEGIES:
            whole = "" if cuts else "was registered without cuts=True, so its model stays whole: omit 'with mesh(...)'"
            table[name] = Entry(
                kind, paper, use=use, details=details, graph=graph, codecs=codecs, traffic=traffic,
                plain="" if codecs else "was registered without codecs=…", whole=whole, example=example,
            )  # fmt: skip
        elif given := [key for key, value in only_strategies.items() if value]:
            what = "an engine" if table is ENGINES else "a codec"
            raise PlanError(f"{_called(kind)} is {what}, and only strategies have {', '.join(given)}: omit that")
        else:
            table[name] = kind
        _from_outside[kind] = name
        if _state["installing"]:
            _installed.add(kind)
        return kind

    return over


def load(file: str | Path) -> list[str]:
    """The names that a file registers; it is imported for that."""
    before = dict(_from_outside)
    with _refused(str(file)):
        import_file(Path(file))
    found = [name for kind, name in _from_outside.items() if kind not in before]
    if not found:
        raise PlanError(
            f'{file} registers nothing: put @covey.register("a_name") over a dataclass with a method '
            "strategy(workers) or codec(), or that is a covey.Engine"
        )
    return found


def search() -> None:
    """Register what installed packages offer, once; one that cannot be imported costs a line, not the others."""
    if _state["searched"]:
        return
    _state["searched"] = _state["installing"] = True
    try:
        for point in (point for group in GROUPS for point in entry_points(group=group)):
            try:
                _install(point)
            except PlanError as error:
                _unusable[point.name] = str(error)
                print(f"covey: {error}", file=sys.stderr)
    finally:
        _state["installing"] = False


def why_unusable(name: str) -> str:
    """Why the entry point of this name could not be used, if there is one."""
    return _unusable.get(name, "")


def own_name(kind: type[Any]) -> str:
    """The name by which a class was registered here; empty for others, and for those of installed packages."""
    return "" if kind in _installed else _from_outside.get(kind, "")


def registered(kind: type[Any]) -> str:
    """The name by which a class was registered, here or by an installed package; empty if it was not."""
    return _from_outside.get(kind, "")


def taken(name: str) -> str:
    """What a name stands for already, if it does."""
    if name in {*STRATEGIES, *SYSTEMS, *LATER}:
        return "strategy"
    return "codec" if name in {*CODECS, *WRAPPERS, "pull"} else ""


def _install(point: EntryPoint) -> None:
    package = point.dist.name if point.dist else "an unknown package"
    with _refused(f"entry point {point.name} = {point.value} of {package}"):
        kind = point.load()
        if registered(kind) != point.name:  # it may have been, as its module was imported
            register(point.name)(kind)


@contextmanager
def _refused(where: str) -> Iterator[None]:
    """Whatever an import raises becomes one line that names where it came from."""
    try:
        yield
    except PlanError as error:
        raise PlanError(f"{where}: {error}") from None
    except (Exception, SystemExit) as error:  # whatever a user's file raises
        raise PlanError(f"{where} cannot be imported: {faults.words(error)}") from error


def _table(kind: type[Any]) -> dict[str, Any]:
    methods = [name for name in ("strategy", "codec") if callable(getattr(kind, name, None))]
    engine = isinstance(kind, type) and issubclass(kind, Engine)
    if len(methods) + engine != 1 or not isinstance(kind, type) or not is_dataclass(kind):
        raise PlanError(
            f"{_called(kind)} cannot be registered: a dataclass is needed, its fields the settings, with a method "
            "strategy(workers) that gives a covey.Strategy, with a method codec() that gives a covey.Codec, or that is "
            "a covey.Engine"
        )
    if engine and kind.__abstractmethods__:
        raise PlanError(f"{_called(kind)} lacks {', '.join(sorted(kind.__abstractmethods__))}: see covey.Engine")
    return ENGINES if engine else STRATEGIES if methods == ["strategy"] else CODECS


def _check_name(name: str, kind: type[Any], table: dict[str, Any]) -> None:
    try:
        fits = parse_call(name).name == name
    except PlanError:
        fits = False
    if not fits:
        raise PlanError(f"{name!r} cannot be the name of {_called(kind)}: use small letters, digits and _")
    again = any(known == name and _home(other) == _home(kind) for other, known in _from_outside.items())
    what = ("engine" if name in (*HERE, *ENGINES) else "") if table is ENGINES else taken(name)
    if not again and what:
        article = "an" if what == "engine" else "a"
        raise PlanError(f"there is {article} {what} '{name}' already: give {_called(kind)} another name")


def _home(kind: type[Any]) -> tuple[str, str]:
    """Where a class is written: a cell or a file that is executed twice registers the same one again."""
    return kind.__module__, kind.__qualname__


def _called(kind: object) -> str:
    return getattr(kind, "__qualname__", type(kind).__qualname__)
