"""The trainer's ledger. Each call becomes statements of the next commit.

A trainer continues after a restart with what the ledger has: attachment ids, rollouts with their Init and attempt, and
answered chats. It keeps an outcome until the confirmation, and the ids of a confirmed outcome for some time after that.
Messages are stored in wire form, without credentials and callback states.
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Literal

from osmosis_grpc.protocol.errors import LedgerError
from osmosis_grpc.protocol.types import RolloutOutcome
from osmosis_grpc.storage.ledger.rows import (
    LEDGER,
    NOTE,
    ChatRow,
    Found,
    LedgerRollout,
    Then,
    end_sum,
    read_rollout,
    restore,
)
from osmosis_grpc.storage.ledger.writer import Statement, Writer
from osmosis_grpc.storage.sqlite.database import LockedFile, explained
from osmosis_grpc.storage.sqlite.file_schema import row_sum, with_sum
from osmosis_grpc.supervise import Supervisor

_ASSIGN = """
INSERT INTO rollout (rollout_id, attempt, server_key, affinity_key, init, assignment_sum) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (rollout_id) DO UPDATE SET attempt = excluded.attempt, server_key = excluded.server_key,
    affinity_key = excluded.affinity_key, init = excluded.init, assignment_sum = excluded.assignment_sum,
    tools = NULL, result_id = NULL, outcome = NULL, ended = NULL, tools_sum = NULL, end_sum = NULL
    WHERE excluded.attempt > rollout.attempt OR rollout.result_id IS NULL
"""
_ENTER = """
INSERT INTO rollout (rollout_id, attempt, server_key, affinity_key, init, assignment_sum) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (rollout_id) DO UPDATE SET attempt = excluded.attempt, server_key = '', affinity_key = '', init = NULL,
    tools = NULL, assignment_sum = excluded.assignment_sum, result_id = NULL, outcome = NULL, ended = NULL,
    tools_sum = NULL, end_sum = NULL
    WHERE excluded.attempt > rollout.attempt
"""
_RESERVE = """
INSERT INTO rollout (rollout_id, attempt, server_key, affinity_key, init, ended, assignment_sum, end_sum)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (rollout_id) DO UPDATE SET attempt = excluded.attempt, server_key = '', affinity_key = '', init = NULL,
    tools = NULL, assignment_sum = excluded.assignment_sum, result_id = NULL, outcome = NULL, ended = excluded.ended,
    tools_sum = NULL, end_sum = excluded.end_sum
    WHERE excluded.attempt > rollout.attempt OR (excluded.attempt = rollout.attempt AND rollout.init IS NULL)
"""
"""Also renews the time of a reservation: a row without an Init and with an end is one."""
_CHAT = """
INSERT OR REPLACE INTO chat
    (position, rollout_id, attempt, sample, number, continues, offered, question, reply, checksum)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_COMPLETE = """
UPDATE rollout SET result_id = ?, outcome = ?, ended = ?, end_sum = ?
WHERE rollout_id = ? AND attempt = ? AND result_id IS NULL
"""
_ADD_CONFIRMED = """
INSERT OR REPLACE INTO confirmed
SELECT rollout_id, attempt, result_id, ?, ? FROM rollout WHERE rollout_id = ? AND attempt = ? AND result_id = ?
"""
_ORPHANS = "DELETE FROM chat WHERE rollout_id = ? AND rollout_id NOT IN (SELECT rollout_id FROM rollout)"
_CHATS_TO = "DELETE FROM chat WHERE rollout_id = ? AND attempt <= ?"
_SET_ATTACHMENT = """
INSERT INTO attachment VALUES (?, ?, ?, ?, ?) ON CONFLICT (server_key) DO UPDATE SET
    attachment_id = excluded.attachment_id, journal_id = excluded.journal_id, seen = excluded.seen,
    checksum = excluded.checksum
"""
_CALLBACK_KEYS = {"run": "", "secret": "callbacks"}
"""The server_keys of the attachments whose ids are the callback run and the callback secret."""


class SqliteLedger:
    """A ledger file. From open() to close(), the file belongs to one process and one event loop.

    Writes are committed in the order of the calls. `then` is called after the commit.
    """

    def __init__(self, file: LockedFile, found: Found, supervisor: Supervisor) -> None:
        self.name = str(file.path)
        """Names the ledger in error messages."""
        self._rollouts, self._attachments = found.rollouts, found.attachments
        self._position = found.last_position
        """The position of the newest chat."""
        self.process_number = found.process_number
        """Rises with each process that opens the ledger. Below 2**32."""
        self.unconfirmed = {r.rollout_id: r.attempt for r in self._rollouts if r.result_id and r.confirmed is None}
        """The attempt of each rollout whose outcome is not confirmed, by rollout id. The oldest outcome is first."""
        self._system = supervisor.system
        self.writer = Writer(file, supervisor)

    @classmethod
    async def open(cls, path: str | Path, ttl: float, supervisor: Supervisor | None = None) -> "SqliteLedger":
        """Open or create a ledger file. Raises LedgerError, for example if another process has the file open."""
        supervisor = supervisor or Supervisor("the ledger")
        file, found = await supervisor.system.run(_open_file, Path(path), ttl, supervisor.system.time())
        return cls(file, found, supervisor)

    def take_restored(self) -> list[LedgerRollout]:
        """Return the rollouts of an earlier process. Only unfinished rollouts have their chats.

        Later calls return an empty list.
        """
        taken, self._rollouts = self._rollouts, []
        return taken

    # Attachments.

    def attachment(self, server_key: str) -> tuple[str, str]:
        """Return the attachment id for a server, and the last known journal id of the server."""
        known = self._attachments.get(server_key)
        if known is None:
            known = self._attachments[server_key] = self._system.new_secret(), ""
            self.record_server(server_key, "")
        return known

    def record_server(self, server_key: str, journal_id: str) -> None:
        """Record the journal id of a server that was connected."""
        attachment_id, _ = self._attachments[server_key]
        self._attachments[server_key] = attachment_id, journal_id
        row = server_key, attachment_id, journal_id, self._system.time()
        self.writer.write([(_SET_ATTACHMENT, with_sum(b"attachment.checksum", row))])

    def callback_id(self, use: Literal["run", "secret"]) -> str:
        """Return the id of the run that callbacks name, or the secret that makes the credentials of callbacks."""
        server_key = _CALLBACK_KEYS[use]
        attachment_id, _ = self.attachment(server_key)
        self.record_server(server_key, "")  # records the time of this use
        return attachment_id

    # Notes.

    def note(self, name: str) -> str | None:
        """Return the text that write_note() has recorded last under a name; None if there is none."""
        known = self._attachments.get(NOTE + name)
        return None if known is None else known[1]

    async def write_note(self, name: str, text: str) -> None:
        """Record a text of the application under a name. It is a row of the attachments that never becomes old.

        Raises LedgerError.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def committed(_: Any, error: LedgerError | None) -> None:
            if not future.done():
                future.set_result(None) if error is None else future.set_exception(error)

        self._attachments[NOTE + name] = "", text
        row = NOTE + name, "", text, self._system.time()
        self.writer.write([(_SET_ATTACHMENT, with_sum(b"attachment.checksum", row))], committed)
        await future

    # Rollouts.

    def record_assignment(
        self, rollout_id: str, attempt: int, init: bytes, server_key: str, affinity_key: str, then: Then
    ) -> None:
        """Record a rollout before it is sent to a server."""
        self.unconfirmed.pop(rollout_id, None)
        row = rollout_id, attempt, server_key, affinity_key, init
        assign = _ASSIGN, with_sum(b"rollout.assignment_sum", row)
        self.writer.write([assign, *_drop_lower(rollout_id, attempt)], then)

    def opened(self, rollout_id: str, attempt: int, tools: bytes) -> None:
        """Record the tools in the answer to an Init."""
        check = row_sum(b"rollout.tools_sum", (rollout_id, attempt, tools))
        self.writer.write(
            [
                (
                    "UPDATE rollout SET tools = ?, tools_sum = ? WHERE rollout_id = ? AND attempt = ?",
                    (tools, check, rollout_id, attempt),
                )
            ]
        )

    def chat(self, kept: ChatRow, then: Then, *, enter: bool) -> None:
        """Record an answered chat. `enter` is True for the first record of an attempt."""
        statements = self._enter(kept.rollout_id, kept.attempt) if enter else []
        self.writer.write([*statements, self._chat(kept)], then)

    def complete(
        self, outcome: RolloutOutcome, data: bytes, then: Then, *, enter: bool, chats: Sequence[ChatRow] = ()
    ) -> None:
        """Record an outcome. `data` is the outcome in wire form.

        `enter` is True for the first record of an attempt. `chats` replace the recorded chats.
        """
        rollout_id, attempt, result_id = outcome.rollout_id, outcome.attempt, outcome.result_id
        statements = self._enter(rollout_id, attempt) if enter else []
        if chats:
            statements += [(_CHATS_TO, (rollout_id, attempt)), *map(self._chat, chats)]
        end = result_id, data, self._system.time()
        statements.append((_COMPLETE, (*end, end_sum(rollout_id, attempt, *end), rollout_id, attempt)))
        self.writer.write(statements, then)

    async def confirm(self, rollout_id: str, attempt: int, result_id: str) -> None:
        """Record that an outcome was used, and delete the rollout's chats. Idempotent. Raises LedgerError."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def committed(_: Any, error: LedgerError | None) -> None:
            if error is None and self.unconfirmed.get(rollout_id) == attempt:
                del self.unconfirmed[rollout_id]
            if not future.done():
                future.set_result(None) if error is None else future.set_exception(error)

        self.writer.write(_confirm(rollout_id, attempt, result_id, self._system.time()), committed)
        await future

    def _enter(self, rollout_id: str, attempt: int) -> list[Statement]:
        """Return the statements that add a new attempt. Drops the unconfirmed outcome of a lower attempt."""
        if self.unconfirmed.get(rollout_id, attempt) < attempt:
            del self.unconfirmed[rollout_id]
        row = rollout_id, attempt, "", "", None
        return [(_ENTER, with_sum(b"rollout.assignment_sum", row)), *_drop_lower(rollout_id, attempt)]

    def _chat(self, kept: ChatRow) -> Statement:
        self._position += 1
        return _CHAT, with_sum(b"chat.checksum", (self._position, *kept))

    def reserve(self, rollout_id: str, attempt: int, then: Then) -> None:
        """Delete a rollout whose outcome no caller has, and record the attempt as which it runs if requested again."""
        if self.unconfirmed.get(rollout_id, attempt) < attempt:
            del self.unconfirmed[rollout_id]
        row, now = (rollout_id, attempt, "", "", None), self._system.time()
        sums = row_sum(b"rollout.assignment_sum", row), end_sum(rollout_id, attempt, None, None, now)
        self.writer.write([(_RESERVE, (*row, now, *sums)), *_drop_lower(rollout_id, attempt)], then)

    def drop(self, rollout_id: str, attempt: int, then: Then) -> None:
        """Delete a rollout that no server has, and what lower attempts of it have left."""
        if self.unconfirmed.get(rollout_id, attempt) < attempt:
            del self.unconfirmed[rollout_id]
        self.writer.write(
            [
                (
                    "DELETE FROM rollout WHERE rollout_id = ? AND attempt <= ? AND (attempt < ? OR result_id IS NULL)",
                    (rollout_id, attempt, attempt),
                ),
                (_ORPHANS, (rollout_id,)),
            ],
            then,
        )

    def forget(self, rollout_ids: Iterable[str]) -> None:
        """Delete old rollouts. Keeps outcomes that are not confirmed."""
        statements: list[Statement] = []
        for rollout_id in rollout_ids:
            name = (rollout_id,)
            statements += [
                ("DELETE FROM rollout WHERE rollout_id = ? AND result_id IS NULL", name),
                ("DELETE FROM confirmed WHERE rollout_id = ?", name),
                (_ORPHANS, name),
            ]
        if statements:
            self.writer.write(statements)

    def fetch(self, rollout_id: str, then: Then) -> None:
        """Read a rollout, and call `then` with a LedgerRollout and its chats, or with None if there is no rollout."""
        self.writer.read(partial(read_rollout, rollout_id=rollout_id), then)

    async def written(self) -> None:
        """Wait until the ledger has tried to commit every earlier write."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.writer.write((), lambda _, error: None if future.done() else future.set_result(None))
        await future

    async def close(self) -> None:
        """Commit all queued writes, and release the file."""
        await self.writer.close()


def _open_file(path: Path, ttl: float, now: float) -> tuple[LockedFile, Found]:
    """Open a ledger's file for this process alone, and read it. Raises LedgerError."""
    with explained(LEDGER, path, "end that one, or name another ledger"), ExitStack() as stack:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise LedgerError(f"the ledger {path} is a folder: name a file")
        file = LockedFile(path, LEDGER)
        stack.callback(file.close)
        found = restore(file.database, path, ttl, now)
        stack.pop_all()
    return file, found


def _drop_lower(rollout_id: str, attempt: int) -> list[Statement]:
    """Return the statements that delete lower attempts of a rollout. Attempt 1 needs no statements."""
    if attempt == 1:
        return []
    return [
        ("DELETE FROM chat WHERE rollout_id = ? AND attempt < ?", (rollout_id, attempt)),
        ("DELETE FROM confirmed WHERE rollout_id = ? AND attempt < ?", (rollout_id, attempt)),
    ]


def _confirm(rollout_id: str, attempt: int, result_id: str, now: float) -> list[Statement]:
    name = rollout_id, attempt, result_id
    check = row_sum(b"confirmed.checksum", (*name, now))
    return [
        (_ADD_CONFIRMED, (now, check, *name)),
        ("DELETE FROM rollout WHERE rollout_id = ? AND attempt = ? AND result_id = ?", name),
        (_CHATS_TO, (rollout_id, attempt)),
    ]
