"""How a task or a strategy of a notebook reaches the run's own processes: through an inherited pipe, never a socket.

This is the only file that pickles anything.
"""

from __future__ import annotations

import io
import linecache
import os
import pickle
import sys
from collections.abc import Container
from types import CodeType
from typing import Any, NamedTuple, cast, get_type_hints

import cloudpickle
import msgspec

from covey.decoding import WireFormat
from covey.errors import PlanError
from covey.message import Message
from covey.task import TASK_MODULE, Task, load_task

MOST_CODE = 1_000_000  # characters of a notebook; without more, tracebacks have no source lines
MOST = 4_000_000_000  # bytes; msgpack cannot say more than 2**32, and every role takes a copy


class Handover(msgspec.Struct, frozen=True, kw_only=True):
    """What is handed to the roles of one host, besides their work."""

    pickled: bytes = b""  # a task, a strategy or both of the launcher's memory
    file: str = ""  # where the task's file is on this host, if it came along
    rows: str = ""  # a file with the data of this host's worker, where they are not the task's
    cells: dict[str, str] = {}  # code of a notebook that is in no file, for tracebacks


class OfMemory(NamedTuple):
    """What the roles cannot find by a name: they get it as it is in the launcher's memory."""

    task: Any = None
    strategy: Any = None  # a SPEC that names something which was registered in the launcher only


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """Also takes kinds of messages that no other process can import; msgspec makes a struct only when it is defined.

    `sources` has the names of the files that the code was in.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.sources: set[str] = set()

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, CodeType):
            self.sources.add(obj.co_filename)
        if isinstance(obj, type) and issubclass(obj, Message) and cloudpickle.cloudpickle._should_pickle_by_reference(
            obj
        ) is False:  # fmt: skip
            return _message_kind, _message_parts(obj)
        return super().reducer_override(obj)


def _message_parts(kind: type[Message]) -> tuple[Any, ...]:
    """What a kind of message is made of, its types looked up where they are known."""
    hints = get_type_hints(kind)
    own = [field for field in msgspec.structs.fields(kind) if field.name != "sender"]
    fields = [(field.name, hints[field.name], *_default(field)) for field in own]
    made = {"__dict__", "__weakref__", "__match_args__", "__slots__", "__annotations__", *(field.name for field in own)}
    namespace = {
        key: value for key, value in vars(kind).items()
        if key not in made and not key.startswith("__struct") and not isinstance(value, _SLOT)
    }  # fmt: skip
    return kind.__name__, fields, kind.__bases__, kind.__module__, kind.__qualname__, namespace


_SLOT = type(Message.sender)  # how a struct keeps a field


def _default(field: Any) -> tuple[Any, ...]:
    if field.default is not msgspec.NODEFAULT:
        return (field.default,)
    made = field.default_factory is not msgspec.NODEFAULT
    return (msgspec.field(default_factory=field.default_factory),) if made else ()


def _message_kind(
    name: str, fields: list[Any], bases: tuple[type, ...], module: str, qualname: str, namespace: dict[str, Any]
) -> type[Message]:
    namespace = {**namespace, "__qualname__": qualname}
    return cast(type[Message], msgspec.defstruct(name, fields, bases=bases, module=module, namespace=namespace))


def pack(task: Any = None, strategy: Any = None) -> bytes:
    """A task, a strategy or both as bytes for this run's own children; nothing for neither."""
    if task is None and strategy is None:
        return b""
    for name, module in list(sys.modules.items()):
        if name.startswith(TASK_MODULE):  # a file that load_task read: no other process can import it by that name
            cloudpickle.register_pickle_by_value(module)
    file = io.BytesIO()
    try:
        pickler = _Pickler(file)
        pickler.dump(OfMemory(task, strategy))
    except Exception as error:  # whatever a user's object raises when pickled
        raise PlanError(
            f"the task cannot be handed to other processes: {error}; put it into a file and use 'FILE.py:task'"
            if strategy is None
            else f"'{strategy}' cannot be handed to other processes: {error}; put your strategy into a file and use "
            "--plugin FILE, or into a package with an entry point in covey.strategies"
        ) from error
    data = file.getvalue()
    if len(data) > MOST:
        raise PlanError(
            f"the task holds {len(data) >> 30} GB, too much to hand to other processes; "
            "put it into a file that loads its data itself, and use 'FILE.py:task'"
        )
    return closed(Handover(pickled=data, cells=_cells(pickler.sources)))


def _cells(sources: Container[str]) -> dict[str, str]:
    """The cells of a notebook that handed-over code comes from, as its kernel keeps them for its own tracebacks.

    By the name of the file that each would be. Other cells stay here: they may hold a password.
    """
    known = [(name, entry) for name, entry in list(linecache.cache.items()) if name in sources and _is_cell(name)]
    kept = {name: "".join(entry[2]) for name, entry in known if len(entry) == 4 and entry[1] is None}
    cells = {name: text for name, text in kept.items() if not os.path.exists(name)}
    return cells if sum(map(len, cells.values())) <= MOST_CODE else {}


def _is_cell(name: str) -> bool:
    """Packages keep code there as well that they have made, such as `<attrs generated methods …>`."""
    return name.startswith("<ipython-input") or not name.startswith("<")


def task_of(given: Handover, named: str) -> Task:
    """The task that has a name, from its file as it lies on this host; else the one that this process was handed."""
    if named:
        return load_task(given.file or named)
    task: Task = of_memory(given).task
    return task


def of_memory(given: Handover) -> OfMemory:
    """What came from the launcher's memory, if anything did; each call makes it anew."""
    for name, text in given.cells.items():
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    return pickle.loads(given.pickled) if given.pickled else OfMemory()


_parcels: WireFormat[Handover] = WireFormat("parcel for the roles of a host", Handover)


def closed(given: Handover) -> bytes:
    return msgspec.msgpack.encode(given)


def opened(handed: bytes) -> Handover:
    """What was handed over; nothing at all is an empty parcel."""
    return _parcels.read(handed, "the launcher") if handed else Handover()
