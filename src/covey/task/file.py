"""The Task of a file that the user names."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from hashlib import sha256
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import CodeType, ModuleType

from covey.errors import PlanError
from covey.names import task_name
from covey.reminders import reminded
from covey.task.arguments import describe
from covey.task.definition import Task
from covey.task.made import made

TASK_MODULE = "covey_task_"  # how the modules are called that `load_task` makes of files


def load_task(where: str, say: Callable[[str], None] | None = None) -> Task:
    """The Task of `path/file.py` or `path/file.py:NAME`; NAME is `task` unless given. `say` hears if it takes long.

    NAME may be a function that returns a Task; `path/file.py:NAME(width=32)` says with which arguments it is called.
    """
    path, name, arguments = _split(where)
    with reminded(say, f"importing {path}"):
        module = import_file(path)
    return task_of(module, path, name, arguments)


def task_of(module: ModuleType, path: Path, name: str, arguments: str | None = None) -> Task:
    """The Task of this name in a file that was imported."""
    found = getattr(module, name, None)
    if inspect.isfunction(found):
        return made(f"{path}:{name}", found, arguments or "")
    if isinstance(found, Task):
        if arguments is None:
            return found
        raise PlanError(f"{path}:{name} is a covey.Task, which takes no arguments: write def {name}(…) that returns it")
    tasks = [key for key, value in vars(module).items() if isinstance(value, Task)]
    hint = f"it has {', '.join(f'{path}:{key}' for key in tasks)}" if tasks else f"write {name} = covey.Task(…) in it"
    what = f"no {name!r}" if not hasattr(module, name) else f"{name!r} as {describe(found)}, not as a covey.Task"
    raise PlanError(f"{path} has {what}; {hint}")


def task_parameters(where: str) -> Mapping[str, inspect.Parameter]:
    """What the function that makes a task takes; empty where the file has a Task itself."""
    path, name, arguments = _split(where)
    if arguments is not None:
        raise PlanError(f"{where}: write {path}:{name}, as the arguments are looked for")
    module = import_file(path)
    found = getattr(module, name, None)
    if inspect.isfunction(found):
        return inspect.signature(found).parameters
    task_of(module, path, name)  # says what is wrong, where it is no task
    return {}


def task_hash(where: str) -> str:
    """The SHA-256 of a task: of its file, whatever that is called, and of its name and arguments.

    Files that it imports are not part of it.
    """
    path, name, arguments = _split(where)
    if not path.is_file():
        raise PlanError(f"there is no file {path}; give a Python file, as in train.py:task")
    return sha256(b"\0".join([path.read_bytes(), name.encode(), (arguments or "").encode()])).hexdigest()


def _split(where: str) -> tuple[Path, str, str | None]:
    path, name, arguments = task_name(where)
    name = name or ("" if where == f"{path}:" else "task")
    if not name.isidentifier():
        raise PlanError(f"{where!r}: after the colon goes the name of a Task in the file, as in {path}:task")
    return path, name, arguments


class UncachedFile(SourceFileLoader):
    """A source file as it is now: one that was compiled before is known again by its second and its size alone."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def import_file(path: Path) -> ModuleType:
    """Run the file as a module of its own; what it raises goes to the user as it is."""
    if not path.is_file():
        if path.exists():
            raise PlanError(f"{path} is not a plain file; give a Python file, as in train.py:task")
        near = get_close_matches(path.name, [file.name for file in path.parent.glob("*.py")], n=1)
        hint = f"did you mean {path.parent / near[0]}?" if near else "give a Python file, as in train.py:task"
        raise PlanError(f"there is no file {path}; {hint}")
    path = path.resolve()
    # The same name in every process of a run, and never that of a module that the file itself imports.
    name = f"{TASK_MODULE}{path.stem}_{sha256(str(path).encode()).hexdigest()[:8]}"
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))  # it stays, for what the user's functions import later
    spec = spec_from_loader(name, UncachedFile(name, str(path)))
    assert spec is not None and spec.loader is not None, "a source file always has a loader"
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if type(error) is PlanError:
            raise PlanError(f"{_place(path, error)}: {error}") from None
        if not isinstance(error, SystemExit):
            raise
        hint = "put what runs it as a program under if __name__ == '__main__':"
        raise PlanError(f"{path} called sys.exit({error.code!r}) while it was imported; {hint}") from None
    return module


def _place(path: Path, error: BaseException) -> str:
    """The line of the file that led to an error."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path.name}, line {lines[-1]}" if lines else path.name
