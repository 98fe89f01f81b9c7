"""A committer whose thread runs before its constructor has ended."""

import threading
from types import SimpleNamespace

from osmosis_grpc.storage.sqlite.committer import Committer


class Reporting(Committer):
    """Reports once for each commit."""

    def _new(self):
        return []

    def _commit(self, items):
        self._on_loop(print, "committed")

    def _fail(self, items, error):
        raise AssertionError from error


class Hasty:
    """A consumer that consumes on a thread as soon as it is made."""

    def __init__(self, consuming):
        self.reports = []
        self.error = None
        self.thread = threading.Thread(target=self._consume, args=(consuming,))
        self.thread.start()
        self.thread.join(0.1)  # the thread runs as far as it can before the committer has its queue

    def _consume(self, consuming):
        try:
            consuming.consume([])
        except Exception as error:
            self.error = error

    def report(self, call, *arguments):
        self.reports.append(arguments)


async def test_the_thread_waits_for_the_end_of_the_constructor():
    made = []

    def consumer(supervisor, job, consuming):
        made.append(Hasty(consuming))
        return made[0]

    file = SimpleNamespace(database=None, check=lambda: None)
    supervisor = SimpleNamespace(system=SimpleNamespace(consumer=consumer))
    Reporting(file, None, None, supervisor)
    (hasty,) = made
    hasty.thread.join(10)
    assert hasty.error is None
    assert len(hasty.reports) == 1
