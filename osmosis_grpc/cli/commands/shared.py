"""Options of several commands."""

from typing import Annotated

import typer

Attempt = Annotated[
    int | None, typer.Option("--attempt", metavar="N", min=1, help="Which attempt. Default: the newest.")
]
Json = Annotated[bool, typer.Option("--json", help="Only JSON records on stdout.")]
