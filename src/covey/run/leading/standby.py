"""How does a launcher wait for a run that another one has?"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from covey.checkpoint import CheckpointDirectory
from covey.checkpoint.directory import number_of
from covey.checkpoint.etcd_log import EtcdAway
from covey.checkpoint.launcher_log import LogEntry
from covey.engines.process.forking import ahead
from covey.errors import AnotherLeads, CheckpointError, CoveyError
from covey.names import option
from covey.run import roles
from covey.run.leading.lead import Lead
from covey.run.options import Options
from covey.run.request import Request
from covey.simulate import parse_duration

LOOK = 0.25  # seconds between two looks


def stand_by(given: Options, warm: Callable[[], None]) -> tuple[Lead, Options]:
    """Wait until this launcher leads: the lead, and the options with which the run goes on from its checkpoints.

    If another launcher has finished the run, it ends here: as that one did.
    """
    assert given.checkpoints.checkpoint is not None, "checked with the options"
    checkpoints = CheckpointDirectory(Path(given.checkpoints.checkpoint))
    lead = Lead.of(given, checkpoints)
    waited = _wait(lead, given, warm)
    assert lead.past is not None
    found = checkpoints.all()
    try:
        if lead.past:
            _check_folder(lead.past[-1], lead.log.folder, checkpoints.directory)
            _conclude(lead.past[-1], given, bool(found))
            _check_newest(_kept(lead.past), found, checkpoints.directory)
    except BaseException:
        lead.log.release()
        raise
    if waited:
        given.output.say(f"took over the run: it goes on from {found[-1].name if found else 'its beginning'}")
    resume = given.checkpoints.checkpoint if found else given.checkpoints.resume
    lead.resumed = resume is not None
    return lead, replace(given, checkpoints=replace(given.checkpoints, resume=resume))


def _wait(lead: Lead, given: Options, warm: Callable[[], None]) -> bool:
    """Until this launcher leads; whether it had to wait for another."""
    told = ""
    while True:
        try:
            lead.take()
            return bool(told)
        except AnotherLeads as held:
            line = f"standing by: {str(held).partition(': ')[0]}"
        except EtcdAway as error:
            if not told:
                raise
            line = f"standing by: {error}"
        if not told:
            warm()
        if line != told:
            given.output.say(line)
        told = line
        time.sleep(LOOK)


def _check_folder(last: LogEntry, folder: str, directory: Path) -> None:
    """Refuse another folder than the one of the run of which the log tells."""
    if folder and last.folder not in ("", folder):
        raise CheckpointError(
            f"the log is of a run whose checkpoints are not in {directory}: name their folder with "
            f"{option('checkpoint')}, use another name, or begin a new run without {option('standby', True)}"
        )


def _check_newest(kept: str, found: list[Path], directory: Path) -> None:
    """Refuse a folder that is behind its log. It may be ahead: entries are lost while etcd is away or a disk full."""
    if number_of(Path(kept)) > max(map(number_of, found), default=0):
        raise CheckpointError(
            f"the log says that the run was kept in {kept}, which {directory} does not hold: name the "
            f"folder of that run with {option('checkpoint')}"
        )


def _conclude(last: LogEntry, given: Options, kept: bool) -> None:
    """End as the run did, if it has ended."""
    if last.what not in ("end", "failed"):
        return
    text = last.text.rstrip(".")
    further = f"go on without {option('standby', True)}"
    if kept:
        further += f", with {option('resume', given.checkpoints.checkpoint)}"
    if last.what == "failed":
        raise CoveyError(f"the run failed under another launcher: {text}; once that is mended, {further}")
    given.output.say(f"the run is over: {text}; to train longer, {further}")
    raise SystemExit(0)


def _kept(past: list[LogEntry]) -> str:
    """The newest checkpoint of the run that began last, by its name."""
    begun = max((number for number, one in enumerate(past) if one.what == "begin"), default=0)
    return next((one.text for one in reversed(past[begun:]) if one.what == "checkpoint"), "")


def import_for_roles(asked: Request) -> None:
    """Have torch imported for the roles of a run that may start at any moment."""
    ahead.start_fork_server(roles.__name__, asked.threads, parse_duration(asked.options.processes.stall))
