"""A journal's folder while this process has it: its lock, connections and secrets, and what stood there at first."""

from contextlib import ExitStack
from pathlib import Path

from osmosis_grpc.storage.journal import schema
from osmosis_grpc.storage.journal.credentials import Secrets
from osmosis_grpc.storage.journal.reader import Reader
from osmosis_grpc.storage.journal.repair import mend
from osmosis_grpc.storage.sqlite.database import connect
from osmosis_grpc.storage.sqlite.locked_file import LockedFile, explained


class Folder:
    """Made or mended where it has to be. Raises JournalError."""

    def __init__(self, folder: Path) -> None:
        with explained(schema.JOURNAL, folder, "stop it"), ExitStack() as stack:
            self._open(folder, stack)
            self.close = stack.pop_all().close
            """Lets others open it."""

    def _open(self, folder: Path, stack: ExitStack) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.file = LockedFile(folder / schema.FILE, folder / "lock", schema.JOURNAL)
        stack.callback(self.file.close)
        self.path = self.file.path
        made = mend(self.file.database, self.path)
        self.secrets = Secrets(folder / "credentials")
        self.reads = connect(self.path)
        stack.callback(self.reads.close)
        self.reads.execute("PRAGMA query_only = 1")
        reader = Reader(self.reads)
        self.journal_id = str(reader.fact("journal_id"))
        self.forgotten_position = int(reader.fact("forgotten_position") or 0)
        self.last_position = max(reader.number("SELECT max(position) FROM events"), self.forgotten_position)
        last_sequence = reader.number("SELECT max(sequence) FROM rollouts")
        self.last_sequence = max(last_sequence, int(reader.fact("last_sequence") or 0))
        self.clock = float(reader.fact("clock"))
        """The journal's time, as far as the process before has recorded it."""
        self.closed = bool(made or reader.fact("closed"))
        """Whether the process before has closed the journal, or there was none."""
        self.file.database.execute(schema.FACT, schema.fact("closed", 0))
