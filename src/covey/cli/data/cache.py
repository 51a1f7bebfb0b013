"""covey data cache: the stripes of far data on this host's disk, and the keeper that shares them with other hosts."""

from __future__ import annotations

import json as text_of
import time
from pathlib import Path
from typing import Annotated

import typer

from covey.cli import json_file, options
from covey.cli.errors import explained
from covey.cli.options import flag, teller
from covey.errors import PlanError

CACHE = "Cache"

app = typer.Typer(help="See and clear the cache of far data; share it with other hosts.", no_args_is_help=True)

Folder = Annotated[
    Path | None,
    flag("--cache", "DIR", "Where stripes are. (default: $COVEY_DATA/stripes, ~/.cache/covey/stripes)", CACHE),
]
Limit = Annotated[
    str | None, flag("--limit", "SIZE", "At most this much: 500GB. (default: 5% of the disk stays free)", CACHE)
]
Pool = Annotated[Path, typer.Argument(metavar="FILE", help="The file of the pool: the hosts, and their keys.")]
Addresses = Annotated[
    list[str], typer.Argument(metavar="HOST:PORT…", help="Where the keeper of each host listens.", show_default=False)
]
At = Annotated[str, flag("--at", "HOST:PORT", "Which of the pool's hosts this one is.", options.RUN)]
Sets = Annotated[
    list[str] | None, typer.Argument(metavar="[SET…]", help="Sets by the first letters of their names. (default: all)")
]


@app.command("show")
@options.grouped
def show(*, cache: Folder = None, output: options.OutputFlags) -> None:
    """Show the sets of the cache, the least recently used first.

    covey data cache show
    """
    json = output.json
    with explained(output.voice):
        json_file.check(json)
        from covey.data.stripe_cache.cache_folder import CacheFolder
        from covey.decoding import printable
        from covey.simulate.units import format_bytes

        place = CacheFolder(cache)
        found = place.sets()
        json_file.write(json, text_of.dumps([one._asdict() for one in found], indent=1) + "\n")
        if output.quiet or json == json_file.OUTPUT:
            return
        for one in found:
            used = "in use" if one.in_use else time.strftime("%Y-%m-%d %H:%M", time.localtime(one.used))
            size = f"{format_bytes(one.bytes)} in {one.stripes} stripes"
            typer.echo(f"{one.name[:12]}  {size:<28} {used:<17} {printable(one.place)}")
        typer.echo(f"{place.folder}: {format_bytes(sum(one.bytes for one in found))}")


@app.command("clear")
@options.grouped
def clear(*, sets: Sets = None, cache: Folder = None, manner: options.VoiceFlags) -> None:
    """Remove sets from the cache, but none that a process uses.

    covey data cache clear 3f9a2c
    """
    with explained(manner.voice):
        from covey.data.stripe_cache.cache_folder import CacheFolder

        place = CacheFolder(cache)
        known = [one.name for one in place.sets()]
        for begin in sets or ():
            if sum(name.startswith(begin) for name in known) != 1:
                raise PlanError(f"{begin}: one set must have a name that begins like this; see covey data cache show")
        chosen = [name for name in known if not sets or name.startswith(tuple(sets))]
        kept = [name for name in chosen if not place.remove(name)]
        if not manner.quiet:
            typer.echo(f"removed {len(chosen) - len(kept)} sets" + (f"; {len(kept)} are in use" if kept else ""))


@app.command("pool")
@options.grouped
def pool(*, file: Pool, addresses: Addresses, manner: options.VoiceFlags) -> None:
    """Make a pool of hosts that share their caches: a file with new keys, which each of them needs.

    covey data cache pool pool.json 10.0.0.1:7171 10.0.0.2:7171
    """
    with explained(manner.voice):
        from covey.engines.keeper.keeper_pool import new_pool

        if file.exists():
            raise PlanError(f"{file} exists: name another file, or remove it to make new keys")
        new_pool(file, addresses)
        if not manner.quiet:
            typer.echo(f"{file}: copy it to all hosts (it has secret keys), and start on each of them")
            for address in addresses:
                typer.echo(f"  covey data cache keep {file} --at {address}")


@app.command("keep")
@options.grouped
def keep(*, file: Pool, at: At, cache: Folder = None, limit: Limit = None, manner: options.VoiceFlags) -> None:
    """Be the keeper of this host, for all jobs of this user, until Ctrl-C.

    covey data cache keep pool.json --at 10.0.0.1:7171
    """
    with explained(manner.voice):
        from covey.engines.interrupt import Interrupt, interruptible
        from covey.engines.keeper import keeper_process
        from covey.engines.keeper.keeper_pool import read_pool
        from covey.simulate.units import parse_size

        interrupt, most = Interrupt(), None if limit is None else int(parse_size(limit))
        with interruptible(interrupt):
            keeper_process.keep(read_pool(file), at, cache, most, interrupt, teller(manner.voice))
