"""Finds the folder of a server's journal for commands that read it."""

from pathlib import Path


def state_folder(state_dir: str | None) -> Path:
    """Return the folder of the option, or without it that of the settings. Raises ValueError."""
    if state_dir is None:
        from pydantic import ValidationError

        from osmosis_grpc.settings import get_settings, problems

        try:
            state_dir = get_settings().server.state_dir
        except ValidationError as error:
            raise ValueError(problems(error)) from None
    if state_dir == ":memory:":
        raise ValueError("a journal in memory is gone with its server; --state-dir DIR names one on disk")
    return Path(state_dir)
