"""Places at which a test may kill the process, as a power cut would: between two steps, without a last word.

Nothing is armed unless somebody says so at the process's start.
"""

import os
import signal

armed: dict[str, int] = {}
"""How often each place may still be passed, the fatal time included."""


def arm(text: str) -> None:
    """Arm places: name[:nth][,name[:nth]...]. Raises ValueError for a count that is none."""
    for row in filter(None, text.split(",")):
        name, _, nth = row.strip().partition(":")
        count = int(nth or 1)
        if not name or count < 1:
            raise ValueError(f"{row!r} is not NAME or NAME:NTH")
        armed[name] = count


def arm_from_environment() -> None:
    """Arm the places that the environment variable OSMOSIS_FAILPOINT names. Only tests set it."""
    arm(os.environ.get("OSMOSIS_FAILPOINT", ""))


def reach(name: str) -> None:
    """Pass a place; the nth time is the last thing this process does, but for saying so on stderr."""
    if armed and name in armed:
        armed[name] -= 1
        if not armed[name]:
            os.write(2, f"killed at failpoint {name}\n".encode())
            os.kill(os.getpid(), signal.SIGKILL)
