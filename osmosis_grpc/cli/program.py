"""The name of this program, for commands that a user can copy."""

import os
import shutil
import sys


def program() -> str:
    """Return the command with which the user can run this program from the current folder."""
    if shutil.which("osmosis-grpc"):
        return "osmosis-grpc"
    return os.path.relpath(sys.argv[0]) if os.access(sys.argv[0], os.X_OK) else "python -m osmosis_grpc"
