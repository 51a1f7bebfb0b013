"""Whose code raised an exception? Its message, and the part of its traceback that helps."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType

from covey.errors import CoveyError, PlanError

OURS = Path(__file__).resolve().parent
INSTALLED = tuple(Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "purelib", "platlib"))
PACKAGES = {"site-packages", "dist-packages"}  # also of the user, of Debian, and of a folder in PYTHONPATH
REPORT = "This is a mistake in covey, not in your code; please report it."
CAUSED = "The above exception was the direct cause of the following exception:"  # as Python says it

_MARK = "_covey_part_of_the_task"


class in_task:
    """What is raised inside comes of a part of the user's task; `about` describes what that part was given."""

    __slots__ = ("about", "part")

    def __init__(self, part: str, about: Callable[[], str] | None = None) -> None:
        self.part, self.about = part, about

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if isinstance(error, Exception) and not isinstance(error, CoveyError) and not hasattr(error, _MARK):
            about = self.about() if self.about else ""
            with suppress(AttributeError):  # an exception of the user's own may have no room for it
                setattr(error, _MARK, f"{self.part}: {about}" if about else self.part)


@contextmanager
def refusing_task() -> Iterator[None]:
    """(Before a run starts) A part of the task that raises without a line of the user's own is refused by its name."""
    try:
        yield
    except CoveyError:
        raise
    except Exception as error:
        if users_line(error) is not None:
            raise
        raise PlanError(f"Task: {words(error)}") from error


def words(error: BaseException) -> str:
    """The exception as Python would end its traceback, in one piece; where no line of the user's is in it, whose."""
    told = traceback.TracebackException(type(error), error, None)
    told.__notes__ = []
    said = list(told.format_exception_only())[-1].strip()
    part = getattr(error, _MARK, "")
    return said if not part or users_line(error) else f"{said} (in the task's {part})"


def story(error: BaseException) -> str:
    """The traceback from the user's own first line on; all of it where the mistake is covey's.

    Nothing where a part of the task failed without a line of the user's own: the frames of torch tell no more. Of a
    file of the user's that cannot be read as Python, the line.
    """
    begin = users_line(error)
    if begin is None and isinstance(error, SyntaxError) and error.filename and is_users(error.filename):
        return "".join(traceback.format_exception_only(error))
    if begin is None and hasattr(error, _MARK):
        return ""
    shown = "".join(traceback.format_exception(type(error), error, begin or error.__traceback__))
    return shown if begin or isinstance(error, CoveyError) else f"{shown}{REPORT}\n"


def users_lines(error: BaseException) -> list[str]:
    """The frames of the user's own code, and the exception as Python would end its traceback, with its notes.

    Before them the same of its cause, where a line of the user's is in that.
    """
    lines, cause, seen = _own_lines(error), error.__cause__, {id(error)}
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if users_line(cause) is not None:
            lines = [*_own_lines(cause), "", CAUSED, "", *lines]
        cause = cause.__cause__
    return lines


def _own_lines(error: BaseException) -> list[str]:
    frames = ((frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if _is_users(frame))
    told = traceback.StackSummary.extract(frames).format()
    said = [f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())]
    return ["Traceback (most recent call last):", *(line.rstrip("\n") for line in told), *said] if told else said


def users_line(error: BaseException) -> TracebackType | None:
    """The first frame that is neither covey's, nor Python's, nor an installed package's."""
    at = error.__traceback__
    while at is not None and not _is_users(at.tb_frame):
        at = at.tb_next
    return at


def _is_users(frame: FrameType) -> bool:
    filename = frame.f_code.co_filename
    if filename.startswith("<"):  # no file: typed in a terminal or a notebook, or made by Python or a package
        return not filename.startswith("<frozen") and frame.f_globals.get("__name__") == "__main__"
    return is_users(filename)


def is_users(filename: str) -> bool:
    """Whether a file is neither covey's, nor Python's, nor an installed package's."""
    path = Path(filename).resolve()
    installed = any(path.is_relative_to(folder) for folder in (OURS, *INSTALLED))
    return not installed and not PACKAGES.intersection(path.parts)
