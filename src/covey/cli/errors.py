"""What went wrong, said once and clearly, and the exit code for it.

0    done                                   (a target that was not reached is no failure: the table says so)
1    something failed while it ran
2    the request cannot run as written      (what would work is in the message)
130  interrupted
"""

from __future__ import annotations

import errno
import select
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from covey import faults, names
from covey.cli.options import Voice
from covey.errors import CheckpointError, CoveyError, PeerLost, PlanError, RoleFailed

FAILED, REFUSED, INTERRUPTED = 1, 2, 130
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO)  # a disk is no mistake of covey's


@contextmanager
def explained(voice: Voice, *, guest: bool = False) -> Iterator[None]:
    """Turn whatever is raised inside into a message on stderr and an exit code; a guest leaves them to its leader."""
    try:
        with names.typed():
            yield
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except KeyboardInterrupt:
        complain("Interrupted.")
        raise typer.Exit(INTERRUPTED) from None
    except CoveyError as error:
        from covey.decoding import printable

        if guest and not isinstance(error, PeerLost):
            raise typer.Exit from None
        if voice == "verbose":
            print(printable("".join(traceback.format_exception(error))), end="", file=sys.stderr)
        elif isinstance(error, RoleFailed):  # in words of a role, which may be on another host
            print(printable(str(error)).rstrip(), file=sys.stderr)
        else:
            complain("Error:", "\n".join([str(error), *getattr(error, "__notes__", ())]))
        raise typer.Exit(REFUSED if isinstance(error, PlanError | CheckpointError) else FAILED) from None
    except OSError as error:
        _tell_of_system(error, voice)
        raise typer.Exit(FAILED) from None
    except Exception as error:
        print(_without_covey(error, voice), end="", file=sys.stderr)
        raise typer.Exit(FAILED) from None


def _tell_of_system(error: OSError, voice: Voice) -> None:
    if error.errno == errno.EPIPE and nobody_reads():
        raise error  # typer ends the process without a word
    if error.errno not in FULL or faults.users_line(error):
        print(_without_covey(error, voice), end="", file=sys.stderr)
    else:
        complain("Error:", f"{error.filename or 'the output'} could not be written: {error.strerror}")


def nobody_reads() -> bool:
    """Whether stdout is a pipe whose reader has gone, such as `head` when it has enough."""
    watched = select.poll()
    watched.register(sys.stdout.fileno(), select.POLLOUT)
    return any(found & select.POLLERR for _, found in watched.poll(0))


def complain(mark: str, message: str = "") -> None:
    """One red mark and a message, on stderr."""
    from rich.text import Text

    from covey.cli.tables.console import SafeConsole

    # A SPEC's caret points into the line above it, so such a message starts on a line of its own, and nothing wraps.
    body = "".join(f"\n  {line}" for line in message.splitlines()) if "\n" in message else f" {message}"
    text = Text.assemble((mark, "bold red"), body.rstrip())
    SafeConsole(stderr=True, highlight=False).print(text, soft_wrap=True)


def _without_covey(error: Exception, voice: Voice) -> str:
    """The traceback from the user's own code on; all of it when there is none, for then covey is at fault."""
    if voice == "verbose":
        return "".join(traceback.format_exception(error))
    return faults.story(error) or f"{faults.words(error)}\n"
