"""covey lab: the labs of this machine, whose hosts are cut off, killed and restored while a run goes on."""

from __future__ import annotations

import json as text_of
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covey.cli import json_file, options
from covey.cli.errors import explained
from covey.cli.options import flag
from covey.errors import PlanError

if TYPE_CHECKING:
    from covey.engines.lab.running import Lab

app = typer.Typer(help="See the labs of this machine; cut off, kill and restore their hosts.", no_args_is_help=True)

Host = Annotated[str, typer.Argument(metavar="HOST", help="A host of the lab, such as h1.")]
Which = Annotated[str | None, flag("--lab", "NAME", "Which lab, where several run: see covey lab list.", options.RUN)]


@app.command("list")
@options.grouped
def list_labs(*, output: options.OutputFlags) -> None:
    """Show every lab, and the state of its links."""
    json = output.json
    with explained(output.voice):
        json_file.check(json)
        found = [_told(lab) for lab in _labs()]
        json_file.write(json, text_of.dumps(found, indent=1) + "\n")
        if output.quiet or json == json_file.OUTPUT:
            return
        for lab in found:
            typer.echo(f"{lab['lab']}  process {lab['process']}{'' if lab['running'] else ', which is gone'}")
            for name, link in lab["hosts"].items():
                state = "cut" if link["cut"] else "up"
                typer.echo(f"  {name:<5} {state:<4} {link['sent']:,} bytes sent, {link['received']:,} received")
        if not found:
            typer.echo("no lab is running")


@app.command()
@options.grouped
def cut(*, host: Host, lab: Which = None, manner: options.VoiceFlags) -> None:
    """Let nothing pass a host's data link, until it is restored."""
    with explained(manner.voice):
        _chosen(lab).cut(host)
        if not manner.quiet:
            typer.echo(f"{host} is cut off: covey lab restore {host}")


@app.command()
@options.grouped
def kill(*, host: Host, lab: Which = None, manner: options.VoiceFlags) -> None:
    """Kill a host's processes and cut its links, as a power cut does, until it is restored."""
    with explained(manner.voice):
        _chosen(lab).kill(host)
        if not manner.quiet:
            typer.echo(f"{host} is dead: covey lab restore {host}")


@app.command()
@options.grouped
def restore(*, host: Host, lab: Which = None, manner: options.VoiceFlags) -> None:
    """Let a host's links work again; one that was killed is used again by a run that went on without it."""
    with explained(manner.voice):
        _chosen(lab).restore(host)
        if not manner.quiet:
            typer.echo(f"{host} is linked again")


@app.command()
@options.grouped
def clean(*, manner: options.VoiceFlags) -> None:
    """Remove what launchers left that were killed; the next lab would do so too."""
    with explained(manner.voice):
        _labs()
        from covey.engines.lab import running

        with running.locked():
            dead = running.reap()
        if not manner.quiet:
            typer.echo("\n".join(f"removed {lab.name}" for lab in dead) or "nothing was left")


def _labs() -> list[Lab]:
    from covey.engines.lab import iproute, running

    if missing := iproute.missing():
        raise PlanError(missing)
    return running.labs()


def _chosen(wanted: str | None) -> Lab:
    """The lab that is meant: the only one that runs, unless it is named."""
    alive = [lab for lab in _labs() if lab.name.alive]
    named = [lab for lab in alive if wanted is None or str(lab.name) == wanted]
    if not named:
        there = ", ".join(str(lab.name) for lab in alive) or "none"
        raise PlanError(f"no lab {wanted} is running; there is {there}" if wanted else "no lab is running")
    if len(named) > 1:
        raise PlanError(
            f"several labs are running; name one: --lab {' or --lab '.join(str(lab.name) for lab in named)}"
        )
    return named[0]


def _told(lab: Lab) -> dict[str, Any]:
    hosts = {host: {"cut": lab.is_cut(host), **lab.traffic(host)._asdict()} for host in lab.hosts}
    return {"lab": str(lab.name), "process": lab.name.pid, "running": lab.name.alive, "hosts": hosts}
