"""The folder of a server's journal, as commands that only read it are given it."""

from pathlib import Path


def state_folder(state_dir: str | None) -> Path:
    """Return the folder that an option names, else the one that the settings name. Raises ValueError."""
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
