"""Finds the folder of a server's journal for commands that read it."""

from pathlib import Path

from pydantic import ValidationError

from osmosis_grpc.serve.startup import usage_error
from osmosis_grpc.settings import get_settings, problems


def state_folder(command: str, state_dir: str | None) -> Path:
    """Return the folder that the option names, or else the folder of the settings.

    If the folder cannot be used, the command ends with exit code 2.
    """
    try:
        chosen = get_settings().server.state_dir if state_dir is None else state_dir
    except ValidationError as error:
        usage_error(command, problems(error))
    if chosen == ":memory:":
        usage_error(command, "a journal in memory is gone with its server; --state-dir DIR names one on disk")
    return Path(chosen)
