"""covey doctor: can this machine train?"""

from __future__ import annotations

import json as text_of

import typer

from covey.cli import json_file, options
from covey.cli.errors import FAILED, explained
from covey.cli.training import load_plugins

_STYLES = {"ok": "green", "missing": "yellow", "failed": "bold red"}


@options.grouped
def command(*, plugin: options.Plugins = None, output: options.OutputFlags) -> None:
    """Check this machine, and say how to fix what fails."""
    manner, json = output.voice, output.json
    with explained(manner):
        json_file.check(json)
        load_plugins(plugin, manner)
        from rich.text import Text

        from covey import doctor

        console = json_file.console(json)
        findings = []
        for finding in doctor.examine():
            findings.append(finding)
            if manner != "quiet" or finding.fatal:
                state = Text(f"{finding.state:<8}", _STYLES[finding.state])
                console.print(Text.assemble(state, (f"{finding.name:<14}", "bold"), finding.found), soft_wrap=True)
                if finding.fix:
                    console.print(Text(f"{'':<22}{finding.fix}", "dim"), soft_wrap=True)
        told = [{**finding._asdict(), "fatal": finding.fatal} for finding in findings]
        json_file.write(json, text_of.dumps(told, indent=1, ensure_ascii=False) + "\n")
        fatal = [finding.name for finding in findings if finding.fatal]
        if manner != "quiet":
            console.print(f"\nnot ready: {', '.join(fatal)}" if fatal else "\nready to train", style="bold")
        if fatal:
            raise typer.Exit(FAILED)
