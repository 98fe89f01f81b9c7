"""When the server ends, or is killed, ends the processes that a library has started.

These processes inherit the environment variables of the server. One of the variables is the marker of a workspace. When
this process dies, the reaper (osmosis_grpc.tools.reaper) kills every process with the marker.
"""

import logging
import os
from threading import Lock

from osmosis_grpc.supervise.fork_guard import forks
from osmosis_grpc.tools.reaper import MARKER
from osmosis_grpc.tools.workspace import Workspace

log = logging.getLogger(__name__)

_lock = Lock()
_marked: dict[int, Workspace] = {}
"""The workspace of this process, by the value of forks()."""


def end_with_server() -> None:
    """Make every process that is started from now on end with this one. Blocks."""
    with _lock:
        if forks() in _marked:
            return
        space = _marked[forks()] = Workspace()
        try:
            space.make()
        except OSError as error:
            log.warning("processes of environments may stay when this server is killed: %s", error)
            return
        os.environ[MARKER] = space.marker
