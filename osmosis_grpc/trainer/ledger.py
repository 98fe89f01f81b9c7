"""The trainer's ledger: what it has promised, kept on its disk.

Attachment ids, rollouts with their Init and attempt, every chat that was answered, completions
until they are confirmed, and for some time after that their ids. Written in the wire's form,
without credentials and callback states.
"""

import asyncio
import secrets
import sqlite3
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from osmosis_grpc.errors import LedgerError
from osmosis_grpc.journal.lock import Lock
from osmosis_grpc.supervise import Supervisor
from osmosis_grpc.trainer.ledger_file import open_file
from osmosis_grpc.trainer.ledger_writer import Statement, Then, Writer
from osmosis_grpc.types import Completion

_PLACE = """
INSERT INTO rollout (rollout_id, attempt, place, together, init) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (rollout_id) DO UPDATE SET attempt = excluded.attempt, place = excluded.place, together = excluded.together,
    init = excluded.init, tools = NULL, result_id = NULL, completion = NULL, ended = NULL
    WHERE excluded.attempt > rollout.attempt OR rollout.result_id IS NULL
"""
_ENTER = """
INSERT INTO rollout (rollout_id, attempt) VALUES (?, ?)
ON CONFLICT (rollout_id) DO UPDATE SET attempt = excluded.attempt, place = '', together = '', init = NULL, tools = NULL,
    result_id = NULL, completion = NULL, ended = NULL
    WHERE excluded.attempt > rollout.attempt
"""
_OPEN = "UPDATE rollout SET tools = ? WHERE rollout_id = ? AND attempt = ?"
_CHAT = """
INSERT OR REPLACE INTO chat (rollout_id, attempt, sample, number, continues, offered, question, reply)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
_COMPLETE = """
UPDATE rollout SET result_id = ?, completion = ?, ended = ? WHERE rollout_id = ? AND attempt = ? AND result_id IS NULL
"""
_CONFIRM = """
INSERT OR REPLACE INTO confirmed
SELECT rollout_id, attempt, result_id, ? FROM rollout WHERE rollout_id = ? AND attempt = ? AND result_id = ?
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
INSERT INTO attachment VALUES (?, ?, ?, ?) ON CONFLICT (place) DO UPDATE SET
    attachment_id = excluded.attachment_id, journal_id = excluded.journal_id, seen = excluded.seen
"""


class KeptChat(NamedTuple):
    """An answered chat, as it stands in the ledger."""

    rollout_id: str
    attempt: int
    sample: str
    number: int
    continues: int
    """The chat that its tokens continue."""
    offered: str
    """What stands for the tools that it offered, in its body."""
    question: bytes
    """A ChatRequest."""
    reply: bytes
    """A ChatResponse."""


@dataclass(slots=True)
class KeptRollout:
    """A rollout, as it stands in the ledger."""

    rollout_id: str
    attempt: int
    place: str
    """Where it was sent: "target HOST:PORT" or "journal ID"; empty where a callback was."""
    together: str
    init: bytes | None
    """An InitRequest; None where a callback was, and once it is confirmed."""
    tools: bytes | None
    """A Tools message, once its Init was answered."""
    result_id: str | None
    completion: bytes | None
    """A Completion as it came, until it is confirmed."""
    confirmed: float | None
    """When it was, by the wall clock."""
    chats: list[KeptChat] = field(default_factory=list)
    """In the order of their answers."""


_Found = tuple[list[KeptRollout], dict[str, tuple[str, str]]]
"""Rollouts, and by place an attachment id and a journal id."""
_ROLLOUT = "rollout_id, attempt, place, together, {}, result_id, {}, NULL"
_KEPT = _ROLLOUT.format("init, tools", "completion")
_CHAT_COLUMNS = ", ".join(KeptChat._fields)


class Ledger:
    """Open from open() to close(), by one process. Used on the event loop's thread."""

    def __init__(
        self, path: Path, ttl: float, supervisor: Supervisor, lock: Lock, database: sqlite3.Connection, found: _Found
    ) -> None:
        self.path = path
        self.unconfirmed: dict[str, int] = {}
        """The attempts of rollouts whose completion is not confirmed, by rollout id, oldest first."""
        self._lock = lock
        self._ttl = ttl
        self._rollouts, self._attachments = found
        self.unconfirmed |= {r.rollout_id: r.attempt for r in self._rollouts if r.result_id and r.confirmed is None}
        self._writer = Writer(database, path, lock, supervisor)

    @classmethod
    async def open(cls, path: str | Path, ttl: float, supervisor: Supervisor | None = None) -> "Ledger":
        """Open a ledger file, made if there is none. Raises LedgerError, also when another process has it."""
        where, supervisor = Path(path), supervisor or Supervisor("the ledger")
        return cls(
            where,
            ttl,
            supervisor,
            *await asyncio.to_thread(open_file, where, lambda database: _restored(database, ttl)),
        )

    def take_restored(self) -> list[KeptRollout]:
        """What stood in the file when it was opened, once: unfinished rollouts with their chats, others bare."""
        taken, self._rollouts = self._rollouts, []
        return taken

    # Attachments.

    def attachment(self, place: str) -> tuple[str, str]:
        """The attachment id for a place, made now or before, and the journal id last seen there."""
        known = self._attachments.get(place)
        if known is None:
            known = self._attachments[place] = secrets.token_urlsafe(24), ""
            self.saw(place, "")
        return known

    def saw(self, place: str, journal_id: str) -> None:
        """A server has attached there."""
        attachment_id, _ = self._attachments[place]
        self._attachments[place] = attachment_id, journal_id
        self._writer.write([(_SEE, (place, attachment_id, journal_id, time.time()))])

    def callback_run(self) -> str:
        """The id of the run that callbacks name; it stays as long as anything of theirs stands here."""
        run_id, _ = self.attachment("")
        self.saw("", "")
        return run_id

    # Rollouts.

    def place(self, rollout_id: str, attempt: int, init: bytes, place: str, together: str, then: Then) -> None:
        """A rollout is about to be sent."""
        self.unconfirmed.pop(rollout_id, None)
        self._writer.write([(_PLACE, (rollout_id, attempt, place, together, init)), *_lower(rollout_id, attempt)], then)

    def opened(self, rollout_id: str, attempt: int, tools: bytes) -> None:
        """Its Init was answered."""
        self._writer.write([(_OPEN, (tools, rollout_id, attempt))])

    def chat(self, kept: KeptChat, then: Then, *, enter: bool) -> None:
        """A chat was answered. `enter` where its attempt is new here."""
        statements = self._entering(kept.rollout_id, kept.attempt) if enter else []
        self._writer.write([*statements, (_CHAT, kept)], then)

    def complete(
        self, completion: Completion, told: bytes, then: Then, *, enter: bool, confirmed: bool,
        chats: Sequence[KeptChat] = (),
    ) -> None:  # fmt: skip
        """A completion has come.

        `enter` where its attempt is new here, `confirmed` where nobody wants it any more; `chats`
        replace those that are kept.
        """
        rollout_id, attempt, result_id = name = completion.rollout_id, completion.attempt, completion.result_id
        statements = self._entering(rollout_id, attempt) if enter else []
        if chats:
            statements += [(_CHATS_TO, (rollout_id, attempt)), *((_CHAT, chat) for chat in chats)]
        statements.append((_COMPLETE, (result_id, told, time.time(), rollout_id, attempt)))
        if confirmed:
            statements += _confirming(*name)
        self._writer.write(statements, then)

    async def confirm(self, rollout_id: str, attempt: int, result_id: str) -> None:
        """A completion has been used: its chats are deleted. Idempotent. Raises LedgerError."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def committed(_: Any, error: LedgerError | None) -> None:
            if error is None and self.unconfirmed.get(rollout_id) == attempt:
                del self.unconfirmed[rollout_id]
            if not future.done():
                future.set_result(None) if error is None else future.set_exception(error)

        self._writer.write(_confirming(rollout_id, attempt, result_id), committed)
        await future

    def _entering(self, rollout_id: str, attempt: int) -> list[Statement]:
        """A new attempt: what was not confirmed of a lower one is dropped."""
        if self.unconfirmed.get(rollout_id, attempt) < attempt:
            del self.unconfirmed[rollout_id]
        return [(_ENTER, (rollout_id, attempt)), *_lower(rollout_id, attempt)]

    def drop(self, rollout_id: str, attempt: int) -> None:
        """A rollout is over, and no completion comes."""
        self._writer.write([(_DROP, (rollout_id, attempt)), (_ORPHANS, (rollout_id,))])

    def forget(self, rollout_ids: Iterable[str]) -> None:
        """Nothing was heard of these for long; completions that are not confirmed stay."""
        statements: list[Statement] = []
        for rollout_id in rollout_ids:
            name = (rollout_id,)
            statements += [(_FORGET, name), (_FORGET_CONFIRMED, name), (_ORPHANS, name)]
        if statements:
            self._writer.write(statements)

    def fetch(self, rollout_id: str, then: Then) -> None:
        """Read a KeptRollout with its chats; None when it is not there."""

        def read(connection: sqlite3.Connection) -> KeptRollout | None:
            row = connection.execute(f"SELECT {_KEPT} FROM rollout WHERE rollout_id = ?", (rollout_id,)).fetchone()  # noqa: S608
            if row is None:
                return None
            kept = KeptRollout(*row)
            query = f"SELECT {_CHAT_COLUMNS} FROM chat WHERE rollout_id = ? AND attempt = ? ORDER BY rowid"  # noqa: S608
            kept.chats.extend(map(KeptChat._make, connection.execute(query, (rollout_id, kept.attempt))))
            return kept

        self._writer.read(read, then)

    async def written(self) -> None:
        """Wait until the ledger has tried to commit everything that was asked before."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._writer.write((), lambda _, error: None if future.done() else future.set_result(None))
        await future

    async def close(self) -> None:
        """Commit what waits, and let the file go."""
        try:
            await self._writer.close()
        finally:
            self._lock.close()


def _lower(rollout_id: str, attempt: int) -> list[Statement]:
    """What stands there of lower attempts goes; below the first there is none."""
    if attempt == 1:
        return []
    return [(_LOWER_CHATS, (rollout_id, attempt)), (_ANEW, (rollout_id, attempt))]


def _confirming(rollout_id: str, attempt: int, result_id: str) -> list[Statement]:
    name = rollout_id, attempt, result_id
    return [(_CONFIRM, (time.time(), *name)), (_CONFIRMED, name), (_CHATS_TO, (rollout_id, attempt))]


def _restored(connection: sqlite3.Connection, ttl: float) -> _Found:
    """What stands in the file, after what is too old in it has gone."""
    old = time.time() - ttl
    connection.execute("BEGIN")
    connection.execute("DELETE FROM confirmed WHERE time < ?", (old,))
    connection.execute("DELETE FROM chat WHERE rollout_id NOT IN (SELECT rollout_id FROM rollout)")
    connection.execute("DELETE FROM attachment WHERE seen < ? AND place NOT IN (SELECT place FROM rollout)", (old,))
    connection.execute("COMMIT")
    running = "CASE WHEN result_id IS NULL THEN {0} END"
    light = _ROLLOUT.format(f"{running.format('init')}, {running.format('tools')}", "NULL")
    rows = connection.execute(f"SELECT {light} FROM rollout ORDER BY ended, rowid")  # noqa: S608
    rollouts = {row[0]: KeptRollout(*row) for row in rows}
    over = connection.execute("SELECT rollout_id, attempt, '', '', NULL, NULL, result_id, NULL, time FROM confirmed")
    confirmed = [KeptRollout(*row) for row in over]
    chats = connection.execute(
        f"SELECT {_CHAT_COLUMNS} FROM chat JOIN rollout USING (rollout_id, attempt) "  # noqa: S608
        "WHERE result_id IS NULL ORDER BY chat.rowid"
    )
    for chat in map(KeptChat._make, chats):
        rollouts[chat.rollout_id].chats.append(chat)
    attachments = {place: (id_, journal) for place, id_, journal in connection.execute(
        "SELECT place, attachment_id, journal_id FROM attachment")}  # fmt: skip
    return [*confirmed, *rollouts.values()], attachments
