"""The commands of osmosis-grpc."""

import sys
from typing import Any

from osmosis_grpc.serve.entrypoint import run


def main() -> None:
    """Run the console script."""
    sys.exit(run(build))


def build() -> Any:
    """Return the typer application."""
    from osmosis_grpc.cli.commands import app
    from osmosis_grpc.serve.json_output import escape_logs

    escape_logs()
    return app
