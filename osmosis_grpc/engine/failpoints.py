"""Points in the code at which a test can kill the process, as if the power failed.

No point is armed by default.
"""

import os
import signal

armed: dict[str, int] = {}
"""The armed points. The process is killed when a point is reached this many more times."""


def arm(text: str | None = None) -> None:
    """Arm the points in a text of the form NAME[:NTH][,NAME[:NTH]...]. Raises ValueError for another form.

    Without a text, use the text in OSMOSIS_FAILPOINT. Only tests set this variable.
    """
    text = os.environ.get("OSMOSIS_FAILPOINT", "") if text is None else text
    for row in filter(None, text.split(",")):
        name, _, nth = row.strip().partition(":")
        count = int(nth or 1)
        if not name or count < 1:
            raise ValueError(f"{row!r} is not NAME or NAME:NTH")
        armed[name] = count


def reach(name: str) -> None:
    """If this point is armed and reached for the NTH time, write its name to stderr and kill the process."""
    if armed and name in armed:
        armed[name] -= 1
        if not armed[name]:
            os.write(2, f"killed at failpoint {name}\n".encode())
            os.kill(os.getpid(), signal.SIGKILL)
