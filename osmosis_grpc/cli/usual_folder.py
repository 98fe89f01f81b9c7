"""Finds the state folder that a command reads. Imports neither gRPC nor protobuf."""

from pathlib import Path

from osmosis_grpc.cli.environment import sets_options
from osmosis_grpc.serve.startup import usage_error
from osmosis_grpc.settings.server_options import ServerOptions

MEMORY = ":memory:"
"""The name of a journal in memory."""


def state_folder(command: str, state_dir: str | None) -> Path:
    """Return the folder that the option names, or else the folder of the settings.

    If the folder cannot be used, the command ends with exit code 2.
    """
    folder = usual_folder(command) if state_dir is None else None if state_dir == MEMORY else Path(state_dir)
    if folder is None:
        usage_error(command, "a journal in memory is gone with its server; --state-dir DIR names one on disk")
    return folder


def run_folder(command: str, run: str) -> Path:
    """Return the folder of a run of test or eval. `last` is the newest run.

    If there is no such run, the command ends with exit code 2.
    """
    from osmosis_grpc.protocol.types.outcome import printable
    from osmosis_grpc.records.evaluate.errors import RunError
    from osmosis_grpc.records.evaluate.run_folder import RunFolder

    try:
        return RunFolder.open(run).path
    except RunError as error:
        usage_error(command, printable(f"{error}; --run names the folder of a run of test or eval, or last"))


def usual_folder(command: str) -> Path | None:
    """Return the folder of the settings, or None if they name a journal in memory.

    Wrong settings end the command with exit code 2.
    """
    if not sets_options():
        return Path(ServerOptions.state_dir)
    from pydantic import ValidationError

    from osmosis_grpc.settings.settings import get_settings, problems

    try:
        chosen = get_settings().server.state_dir
    except ValidationError as error:
        usage_error(command, problems(error))
    return None if chosen == MEMORY else Path(chosen)
