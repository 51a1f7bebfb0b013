"""How does a person share a cluster? One queue of jobs, and rehearsals of its policies."""

from __future__ import annotations

import typer

from covey.cli.jobs import queue, rehearse, submit

app = typer.Typer(help="Share a cluster: a queue of jobs, and a policy for it.", no_args_is_help=True)
app.command("serve")(queue.serve)
app.command("submit", context_settings={"allow_interspersed_args": False})(submit.command)
app.command("list")(queue.list_jobs)
app.command("logs")(queue.logs)
app.command("stop")(queue.stop)
app.command("rehearse")(rehearse.command)
