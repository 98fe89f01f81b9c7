"""Runs commands in this process, beside a server on its event loop. Records need a process: see tests.processes."""

import asyncio

from click.testing import Result
from typer.testing import CliRunner

from osmosis_grpc.cli import build


async def command(*arguments: str, given: str | None = None) -> Result:
    """Run `osmosis-grpc ARGUMENTS` on a thread, with the text `given` on stdin."""
    return await asyncio.to_thread(CliRunner().invoke, build(), arguments, given, {"COLUMNS": "80"})
