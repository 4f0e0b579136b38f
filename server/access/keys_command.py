"""`octavo keys add`: a new API key for the file that --api-keys-file names."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Make API keys for --api-keys-file.", no_args_is_help=True)


@app.callback()
def keys() -> None:
    """Make API keys for --api-keys-file."""


@app.command("add")
def add(
    file: Annotated[Path, typer.Argument(help="the file of --api-keys-file; made if there is none", show_default=False)],
    name: Annotated[str, typer.Argument(help="whose key it is: shown in the log and in /metrics", show_default=False)],
    requests: Annotated[
        int | None, typer.Option(help="requests per minute; 0: no limit; none: the server's", min=0, show_default=False)
    ] = None,
    tokens: Annotated[int | None, typer.Option(help="tokens per minute, likewise", min=0, show_default=False)] = None,
    admin: Annotated[bool, typer.Option("--admin", help="may call the admin endpoints")] = False,
    stdin: Annotated[bool, typer.Option("--stdin", help="take the key from standard input, rather than make one")] = False,
) -> None:
    """Add a key to a file, and print it: the file holds its hash alone, so this is the only time that it is seen.

    A running server reads the file again on SIGHUP.
    """
    from server.access.keys import add_key

    given = sys.stdin.readline().strip() if stdin else None
    key = add_key(file, name, given, admin, requests, tokens)
    if given is None:
        typer.echo(key)
