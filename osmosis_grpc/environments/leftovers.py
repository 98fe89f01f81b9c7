"""Ends the processes that a library has started when the server ends, even if the server is killed.

Libraries start processes with the variables of the server. So one of these variables is the marker of a workspace,
whose processes the reaper kills when this process dies (osmosis_grpc.tools.reaper).
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
"""The workspace of this process, by forks()."""


def end_with_server() -> None:
    """Let every process that is started from now on end with this one. It blocks."""
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
