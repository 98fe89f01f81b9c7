"""Says whether a command needs the settings. Their import takes a third of the time of a short command."""

import os
import sys
from pathlib import Path

from osmosis_grpc.settings.option import PREFIX


def sets_options() -> bool:
    """Return whether a variable or the file .env possibly sets an option. If not, all options have their defaults."""
    known = (
        "osmosis_grpc.settings.settings" in sys.modules
    )  # then the import takes no time, and configure() was perhaps called
    return known or Path(".env").exists() or any(name.upper().startswith(PREFIX) for name in os.environ)
