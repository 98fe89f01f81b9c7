"""A disk that tests hold or make fail."""

import threading

from osmosis_grpc.storage.journal import writer

PATIENCE = 20.0


class Disk:
    """While `held`, transactions wait before their commit; while `failing`, each one raises."""

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
        """Hold transactions from now on."""
        self._reached.clear()
        self._go.clear()

    @property
    def held(self):
        """Whether a transaction waits."""
        return self._reached.is_set() and not self._go.is_set()

    def go(self):
        """Release the held transactions."""
        self._go.set()
