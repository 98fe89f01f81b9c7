"""Points between two steps at which a test may kill the process, as a power cut would.

No point is armed by default.
"""

import os
import signal

armed: dict[str, int] = {}
"""How many times each point may still be reached; the last time kills the process."""


def arm(text: str | None = None) -> None:
    """Arm points: NAME[:NTH][,NAME[:NTH]...]; without a text those of OSMOSIS_FAILPOINT, which only tests set.

    Raises ValueError for a wrong text.
    """
    text = os.environ.get("OSMOSIS_FAILPOINT", "") if text is None else text
    for row in filter(None, text.split(",")):
        name, _, nth = row.strip().partition(":")
        count = int(nth or 1)
        if not name or count < 1:
            raise ValueError(f"{row!r} is not NAME or NAME:NTH")
        armed[name] = count


def reach(name: str) -> None:
    """Kill the process if this point is armed and is reached the NTH time; stderr gets the name first."""
    if armed and name in armed:
        armed[name] -= 1
        if not armed[name]:
            os.write(2, f"killed at failpoint {name}\n".encode())
            os.kill(os.getpid(), signal.SIGKILL)
