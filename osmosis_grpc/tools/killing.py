"""Kills the processes of workspaces. One search through the processes of the machine serves all threads that wait.

A search takes longer the more processes there are. If each of a thousand programs that end at once searched for itself,
the searches would keep the event loop from running.
"""

import os
import threading

from osmosis_grpc.tools import reaper


def kill_marked(markers: reaper.Markers) -> None:
    """Kill the processes of markers, see reaper.kill_marked(). It blocks, so it is called on a thread."""
    reaper.kill_marked(markers, _searches.kill_once)


class _Batch:
    """The markers of one search, and what it has found."""

    def __init__(self) -> None:
        self.markers: dict[str, int | None] = {}
        self.found: reaper.Found | None = None


class _Searches:
    """Runs one search at a time. The threads that wait meanwhile share the next one."""

    def __init__(self) -> None:
        self.forked()

    def forked(self) -> None:
        """Begin anew in a forked child, because a thread of its parent may have held a lock."""
        self._lock = threading.Lock()
        self._searching = threading.Lock()
        self._next = _Batch()

    def kill_once(self, markers: reaper.Markers) -> reaper.Found:
        """Do what reaper.kill_once() does, after this call has begun."""
        with self._lock:
            batch = self._next
            batch.markers |= markers
        with self._searching:
            if batch.found is None:
                with self._lock:
                    self._next = _Batch()
                batch.found = reaper.kill_once(batch.markers)
        found, unsure = batch.found
        return {marker: found[marker] for marker in markers if marker in found}, unsure


_searches = _Searches()
os.register_at_fork(after_in_child=_searches.forked)
