"""A disk that can be made to take its time, or to fail."""

import threading

from osmosis_grpc.storage.journal import writer

PATIENCE = 20.0


class Disk:
    """While `held`, no transaction gets to its commit; while `failing`, each ends with an error."""

    def __init__(self, monkeypatch):
        self.failing = False
        self._go = threading.Event()
        self._go.set()
        self._reached = threading.Event()
        real = writer.execute

        def execute(database, statement, rows):
            if not self._go.is_set():
                self._reached.set()
                self._go.wait(PATIENCE)
            if self.failing:
                raise OSError("the disk is full")
            real(database, statement, rows)

        monkeypatch.setattr(writer, "execute", execute)
        monkeypatch.setattr(writer, "RETRY", 0.01)

    def hold(self):
        """Let no transaction be committed from now on."""
        self._reached.clear()
        self._go.clear()

    @property
    def held(self):
        """Whether a transaction waits."""
        return self._reached.is_set() and not self._go.is_set()

    def go(self):
        """Go on."""
        self._go.set()
