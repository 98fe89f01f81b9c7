"""The trainer's ledger in SQLite.

Attachment ids, rollouts with their Init and attempt, every chat that was answered, completions
until they are confirmed, and for some time after that their ids. Written in the wire's form,
without credentials and callback states.
"""

import asyncio
import secrets
import sqlite3
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from osmosis_grpc.errors import LedgerError
from osmosis_grpc.storage.ledger.ledger_port import ChatRow, LedgerRollout, Then
from osmosis_grpc.storage.ledger.rows import Found, assignment_sum, end_sum, restored, whole_rollout
from osmosis_grpc.storage.ledger.schema import LEDGER
from osmosis_grpc.storage.ledger.writer import Statement, Writer
from osmosis_grpc.storage.sqlite.checksum import row_sum
from osmosis_grpc.storage.sqlite.locked_file import LockedFile, explained
from osmosis_grpc.supervise import Supervisor
from osmosis_grpc.types import Completion

_ASSIGN = """
INSERT INTO rollout (rollout_id, attempt, server_key, affinity_key, init, assignment_sum) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (rollout_id) DO UPDATE SET attempt = excluded.attempt, server_key = excluded.server_key,
    affinity_key = excluded.affinity_key, init = excluded.init, assignment_sum = excluded.assignment_sum,
    tools = NULL, result_id = NULL, completion = NULL, ended = NULL, tools_sum = NULL, end_sum = NULL
    WHERE excluded.attempt > rollout.attempt OR rollout.result_id IS NULL
"""
_ENTER = """
INSERT INTO rollout (rollout_id, attempt, server_key, affinity_key, init, assignment_sum) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (rollout_id) DO UPDATE SET attempt = excluded.attempt, server_key = '', affinity_key = '', init = NULL,
    tools = NULL, assignment_sum = excluded.assignment_sum, result_id = NULL, completion = NULL, ended = NULL,
    tools_sum = NULL, end_sum = NULL
    WHERE excluded.attempt > rollout.attempt
"""
_OPEN = "UPDATE rollout SET tools = ?, tools_sum = ? WHERE rollout_id = ? AND attempt = ?"
_CHAT = """
INSERT OR REPLACE INTO chat
    (position, rollout_id, attempt, sample, number, continues, offered, question, reply, checksum)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_COMPLETE = """
UPDATE rollout SET result_id = ?, completion = ?, ended = ?, end_sum = ?
WHERE rollout_id = ? AND attempt = ? AND result_id IS NULL
"""
_CONFIRM = """
INSERT OR REPLACE INTO confirmed
SELECT rollout_id, attempt, result_id, ?, ? FROM rollout WHERE rollout_id = ? AND attempt = ? AND result_id = ?
"""
_CONFIRMED = "DELETE FROM rollout WHERE rollout_id = ? AND attempt = ? AND result_id = ?"
_ANEW = "DELETE FROM confirmed WHERE rollout_id = ? AND attempt < ?"
_DROP = "DELETE FROM rollout WHERE rollout_id = ? AND attempt <= ? AND result_id IS NULL"
_FORGET = "DELETE FROM rollout WHERE rollout_id = ? AND result_id IS NULL"
_FORGET_CONFIRMED = "DELETE FROM confirmed WHERE rollout_id = ?"
_ORPHANS = "DELETE FROM chat WHERE rollout_id = ? AND rollout_id NOT IN (SELECT rollout_id FROM rollout)"
_LOWER_CHATS = "DELETE FROM chat WHERE rollout_id = ? AND attempt < ?"
_CHATS_TO = "DELETE FROM chat WHERE rollout_id = ? AND attempt <= ?"
_SEE = """
INSERT INTO attachment VALUES (?, ?, ?, ?, ?) ON CONFLICT (server_key) DO UPDATE SET
    attachment_id = excluded.attachment_id, journal_id = excluded.journal_id, seen = excluded.seen,
    checksum = excluded.checksum
"""


_CALLBACKS = "callbacks"
"""The server_key of their secret among the attachments."""


class SqliteLedger:
    """See Ledger. Open from open() to close(), by one process. Used on the event loop's thread."""

    def __init__(self, file: LockedFile, found: Found, supervisor: Supervisor) -> None:
        self.path = file.path
        self.unconfirmed: dict[str, int] = {}
        """The attempts of rollouts whose completion is not confirmed, by rollout id, oldest first."""
        self._rollouts, self._attachments = found.rollouts, found.attachments
        self._position = found.last_position
        """Of the chat that was answered last."""
        self.unconfirmed |= {r.rollout_id: r.attempt for r in self._rollouts if r.result_id and r.confirmed is None}
        self.writer = Writer(file, supervisor)
        """The thread that reads and writes the file."""

    @classmethod
    async def open(cls, path: str | Path, ttl: float, supervisor: Supervisor | None = None) -> "SqliteLedger":
        """Open a ledger file, made if there is none. Raises LedgerError, also when another process has it."""
        file, found = await asyncio.to_thread(_open_file, Path(path), ttl)
        return cls(file, found, supervisor or Supervisor("the ledger"))

    @property
    def name(self) -> str:
        """See Ledger."""
        return str(self.path)

    def take_restored(self) -> list[LedgerRollout]:
        """What stood in the file when it was opened, once: unfinished rollouts with their chats, others bare."""
        taken, self._rollouts = self._rollouts, []
        return taken

    # Attachments.

    def attachment(self, server_key: str) -> tuple[str, str]:
        """The attachment id for a server_key, made now or before, and the journal id last seen there."""
        known = self._attachments.get(server_key)
        if known is None:
            known = self._attachments[server_key] = secrets.token_urlsafe(24), ""
            self.record_server(server_key, "")
        return known

    def record_server(self, server_key: str, journal_id: str) -> None:
        """A server has attached there."""
        attachment_id, _ = self._attachments[server_key]
        self._attachments[server_key] = attachment_id, journal_id
        row = server_key, attachment_id, journal_id, time.time()
        self.writer.write([(_SEE, (*row, row_sum(b"attachment.checksum", row)))])

    def callback_run(self) -> str:
        """The id of the run that callbacks name; it stays as long as anything of theirs stands here."""
        run_id, _ = self.attachment("")
        self.record_server("", "")
        return run_id

    def callback_secret(self) -> str:
        """The secret that credentials of callbacks are made of."""
        secret, _ = self.attachment(_CALLBACKS)
        self.record_server(_CALLBACKS, "")
        return secret

    # Rollouts.

    def record_assignment(
        self, rollout_id: str, attempt: int, init: bytes, server_key: str, affinity_key: str, then: Then
    ) -> None:
        """A rollout is about to be sent."""
        self.unconfirmed.pop(rollout_id, None)
        row = rollout_id, attempt, server_key, affinity_key, init
        self.writer.write([(_ASSIGN, (*row, assignment_sum(row))), *_lower(rollout_id, attempt)], then)

    def opened(self, rollout_id: str, attempt: int, tools: bytes) -> None:
        """Its Init was answered."""
        check = row_sum(b"rollout.tools_sum", (rollout_id, attempt, tools))
        self.writer.write([(_OPEN, (tools, check, rollout_id, attempt))])

    def chat(self, kept: ChatRow, then: Then, *, enter: bool) -> None:
        """A chat was answered. `enter` where its attempt is new here."""
        statements = self._entering(kept.rollout_id, kept.attempt) if enter else []
        self.writer.write([*statements, self._chat(kept)], then)

    def complete(
        self,
        completion: Completion,
        data: bytes,
        then: Then,
        *,
        enter: bool,
        confirmed: bool,
        chats: Sequence[ChatRow] = (),
    ) -> None:
        """A completion has come.

        `enter` where its attempt is new here, `confirmed` where nobody wants it any more; `chats`
        replace those that are kept.
        """
        rollout_id, attempt, result_id = name = completion.rollout_id, completion.attempt, completion.result_id
        statements = self._entering(rollout_id, attempt) if enter else []
        if chats:
            statements += [(_CHATS_TO, (rollout_id, attempt)), *map(self._chat, chats)]
        end = result_id, data, time.time()
        statements.append((_COMPLETE, (*end, end_sum(rollout_id, attempt, *end), rollout_id, attempt)))
        if confirmed:
            statements += _confirming(*name)
        self.writer.write(statements, then)

    async def confirm(self, rollout_id: str, attempt: int, result_id: str) -> None:
        """A completion has been used: its chats are deleted. Idempotent. Raises LedgerError."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def committed(_: Any, error: LedgerError | None) -> None:
            if error is None and self.unconfirmed.get(rollout_id) == attempt:
                del self.unconfirmed[rollout_id]
            if not future.done():
                future.set_result(None) if error is None else future.set_exception(error)

        self.writer.write(_confirming(rollout_id, attempt, result_id), committed)
        await future

    def _entering(self, rollout_id: str, attempt: int) -> list[Statement]:
        """A new attempt: what was not confirmed of a lower one is dropped."""
        if self.unconfirmed.get(rollout_id, attempt) < attempt:
            del self.unconfirmed[rollout_id]
        row = rollout_id, attempt, "", "", None
        return [(_ENTER, (*row, assignment_sum(row))), *_lower(rollout_id, attempt)]

    def _chat(self, kept: ChatRow) -> Statement:
        """Write a chat behind all others."""
        self._position += 1
        row = self._position, *kept
        return _CHAT, (*row, row_sum(b"chat.checksum", row))

    def drop(self, rollout_id: str, attempt: int) -> None:
        """A rollout is over, and no completion comes."""
        self.writer.write([(_DROP, (rollout_id, attempt)), (_ORPHANS, (rollout_id,))])

    def forget(self, rollout_ids: Iterable[str]) -> None:
        """Nothing was heard of these for long; completions that are not confirmed stay."""
        statements: list[Statement] = []
        for rollout_id in rollout_ids:
            name = (rollout_id,)
            statements += [(_FORGET, name), (_FORGET_CONFIRMED, name), (_ORPHANS, name)]
        if statements:
            self.writer.write(statements)

    def fetch(self, rollout_id: str, then: Then) -> None:
        """Read a LedgerRollout with its chats; None when it is not there."""

        def read(connection: sqlite3.Connection) -> LedgerRollout | None:
            return whole_rollout(connection, rollout_id)

        self.writer.read(read, then)

    async def written(self) -> None:
        """Wait until the ledger has tried to commit everything that was asked before."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.writer.write((), lambda _, error: None if future.done() else future.set_result(None))
        await future

    async def close(self) -> None:
        """Commit what waits, and let the file go."""
        await self.writer.close()


def _open_file(path: Path, ttl: float) -> tuple[LockedFile, Found]:
    """Open a ledger's file for this process alone, and read it. Raises LedgerError."""
    with explained(LEDGER, path, "end that one, or name another ledger"), ExitStack() as stack:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise LedgerError(f"the ledger {path} is a folder: name a file")
        file = LockedFile(path, Path(f"{path}.lock"), LEDGER)
        stack.callback(file.close)
        found = restored(file.database, path, ttl)
        stack.pop_all()
    return file, found


def _lower(rollout_id: str, attempt: int) -> list[Statement]:
    """What stands there of lower attempts goes; below the first there is none."""
    if attempt == 1:
        return []
    return [(_LOWER_CHATS, (rollout_id, attempt)), (_ANEW, (rollout_id, attempt))]


def _confirming(rollout_id: str, attempt: int, result_id: str) -> list[Statement]:
    name = rollout_id, attempt, result_id
    now = time.time()
    check = row_sum(b"confirmed.checksum", (*name, now))
    return [(_CONFIRM, (now, check, *name)), (_CONFIRMED, name), (_CHATS_TO, (rollout_id, attempt))]
