"""How does a launcher wait for a run that another one has?"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from covey.checkpoint import CheckpointDirectory
from covey.checkpoint.etcd_log import EtcdAway
from covey.checkpoint.launcher_log import LogEntry
from covey.errors import AnotherLeads, CheckpointError, CoveyError
from covey.names import option
from covey.run.leading.lead import Lead
from covey.run.options import Options

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
    if lead.past and lead.past[-1].what in ("end", "failed"):
        lead.log.release()
        _conclude(lead.past[-1], given)
    kept = _kept(lead.past)
    found = [place.name for place in checkpoints.all()]
    if kept and kept not in found:
        lead.log.release()
        raise CheckpointError(
            f"the log says that the run was kept in {kept}, which {checkpoints.directory} does not hold: name the "
            f"folder of that run with {option('checkpoint')}"
        )
    if waited:
        given.output.say(f"took over the run: it goes on from {found[-1] if found else 'its beginning'}")
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


def _conclude(last: LogEntry, given: Options) -> None:
    if last.what == "failed":
        raise CoveyError(f"the run failed under another launcher: {last.text}")
    given.output.say(f"the run is over: {last.text}")
    raise SystemExit(0)


def _kept(past: list[LogEntry]) -> str:
    """The newest checkpoint of the run that began last, by its name."""
    begun = max((number for number, one in enumerate(past) if one.what == "begin"), default=0)
    return next((one.text for one in reversed(past[begun:]) if one.what == "checkpoint"), "")
