"""The cache of a trainer. It has one entry for each rollout, and records each outcome once."""

import asyncio
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace
from functools import partial, partialmethod
from typing import Any

from osmosis_grpc.engine.failpoints import reach
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import outcome_pb2
from osmosis_grpc.protocol.errors import Aborted, CallError, LedgerError, NotFound, Unavailable
from osmosis_grpc.protocol.types import ChatRequest, Receipt, RolloutOutcome
from osmosis_grpc.storage.ledger import ChatRow, LedgerRollout, SqliteLedger
from osmosis_grpc.supervise import OnFailure, Supervisor, job
from osmosis_grpc.trainer.chats.attempt_cache import UNWRITTEN_RETRY, AttemptCache, reply_of, unwritten
from osmosis_grpc.trainer.chats.ledger_codec import learn, tools_of
from osmosis_grpc.trainer.chats.policy_errors import ChatKey, key_of
from osmosis_grpc.trainer.chats.policy_table import Policies, PolicyTable
from osmosis_grpc.trainer.chats.sample_state import PendingChat
from osmosis_grpc.trainer.chats.sampler import Sampler
from osmosis_grpc.trainer.metrics import Metrics

SWEEP = job("trainer.sweep", OnFailure.RESTART)

Recorded = Callable[[Receipt | CallError, RolloutOutcome | None], None]
"""Takes the answer for the server, and the outcome if this call has recorded it."""


class LedgerReceipt:
    """Confirms one outcome. After unpickling in another process, it has no ledger, and confirm() raises LedgerError."""

    __slots__ = ("_key", "_ledger")

    def __init__(self, ledger: SqliteLedger | None, rollout_id: str, attempt: int, result_id: str | None) -> None:
        self._ledger = ledger
        self._key = rollout_id, attempt, result_id or ""

    async def confirm(self) -> None:
        if self._ledger is None:
            raise LedgerError("an outcome is confirmed in the trainer's process: the ledger is open there")
        await self._ledger.confirm(*self._key)

    def __deepcopy__(self, memo: object) -> "LedgerReceipt":
        return LedgerReceipt(self._ledger, *self._key)

    __copy__ = partialmethod(__deepcopy__, None)

    def __reduce__(self) -> tuple[type["LedgerReceipt"], tuple[None, str, int, str]]:
        return LedgerReceipt, (None, *self._key)


class RolloutCache:
    """The newest attempt of each rollout of a trainer."""

    def __init__(
        self, policies: Policies | PolicyTable, ledger: SqliteLedger | None = None, supervisor: Supervisor | None = None
    ) -> None:
        supervisor = supervisor or Supervisor("the rollout cache")
        self.now: Callable[[], float] = supervisor.system.monotonic
        """Return the time for the parameters `now` and `before`."""
        self._time = supervisor.system.time
        self.metrics = Metrics()
        table = policies if isinstance(policies, PolicyTable) else PolicyTable(policies)
        self.sampler = Sampler(table, self.metrics, supervisor)
        self._ledger = ledger
        self._rollouts: dict[str, AttemptCache] = {}

    def restore(self, kept: Iterable[LedgerRollout], now: float) -> None:
        """Add the rollouts from the ledger."""
        for row in kept:
            entry = self._rollouts[row.rollout_id] = AttemptCache(row.attempt, self._ledger)
            entry.entered, entry.result_id, entry.tools = True, row.result_id, tools_of(row)
            entry.restored = True
            entry.reserved = entry.ended = row.reserved is not None
            since = row.reserved if row.confirmed is None else row.confirmed
            entry.last_used = now if since is None else now - max(0.0, self._time() - since)
            learn(entry.samples, row.chats)

    def chat(self, request: ChatRequest, now: float) -> PendingChat:
        """See AttemptCache.chat. Raises Aborted for an attempt that is no longer the newest."""
        return self.rollout(request.rollout_id, request.attempt, now).chat(request, self.sampler)

    async def answer(self, request: ChatRequest) -> bytes:
        """Wait until a chat is answered, and return its reply as bytes. Raises CallError if its policy call failed."""
        chat = self.chat(request, self.now())
        if not chat.done.done():
            await asyncio.wait({chat.done})
        return self.reply(chat, key_of(request), request.parent_chat)

    def reply(self, chat: PendingChat, key: ChatKey, parent_chat: int) -> bytes:
        """Return the reply of an answered chat as bytes. Raises CallError if its policy call failed."""
        return reply_of(chat, key, parent_chat, self.sampler.errors)

    def check_known(self, rollout_id: str) -> None:
        """Raise NotFound for a rollout without an entry."""
        if rollout_id not in self._rollouts:
            raise NotFound(f"rollout {rollout_id} was not started here", kind="rollout", name=rollout_id)

    def knows(self, rollout_id: str) -> bool:
        """Return whether a rollout has an entry."""
        return rollout_id in self._rollouts

    @property
    def has_ledger(self) -> bool:
        """Whether answered chats are recorded."""
        return self._ledger is not None

    @property
    def open(self) -> int:
        """How many rollouts have no result. Any thread may read it."""
        return sum(entry.result_id is None and not entry.reserved for entry in list(self._rollouts.values()))

    def read_metrics(self, open_rollouts: int) -> dict[str, float]:
        """Return the metrics by name; see Trainer.metrics."""
        sampler = self.sampler
        return self.metrics.read(open_rollouts=open_rollouts, open_chats=sampler.in_flight, version=sampler.version)

    def is_restored(self, rollout_id: str) -> bool:
        """Return whether the newest attempt of a rollout comes from the ledger of an earlier process."""
        return rollout_id in self._rollouts and self._rollouts[rollout_id].restored

    def abandon(self, rollout_id: str, attempt: int, sample: str, chat_number: int) -> None:
        """Stop the policy calls of chats whose replies are no longer wanted. Do nothing for unknown chats.

        An empty `sample` means all samples, and chat number 0 means all chats.
        """
        entry = self._rollouts.get(rollout_id)
        if entry is not None and entry.attempt == (attempt or 1):
            entry.abandon(sample, chat_number)

    def end(self, rollout_id: str, attempt: int) -> None:
        """End an attempt that has no outcome. Do nothing if it is not the newest attempt."""
        entry = self._rollouts.get(rollout_id)
        if entry is not None and entry.attempt == attempt:
            entry.end()

    def complete(self, outcome: RolloutOutcome, now: float) -> tuple[Receipt, RolloutOutcome | None]:
        """Record an outcome without a ledger. Return the answer, and the outcome if this call has recorded it."""
        entry = self.rollout(outcome.rollout_id, outcome.attempt, now)
        if entry.result_id is not None:
            return _known(entry, outcome), None
        recorded = entry.complete(outcome)
        entry.close()
        return Receipt.RECORDED, recorded

    def record(
        self,
        outcome: RolloutOutcome,
        raw: outcome_pb2.RolloutOutcome,
        then: Recorded,
        *,
        abandoned: bool = False,
        chats: Sequence[ChatRow] = (),
    ) -> None:
        """Record an outcome. Then, if there is a ledger after the commit, call `then`.

        Args:
            outcome: The outcome.
            raw: The message as received.
            then: Called with the answer for the server, which is Aborted if the attempt is not the newest.
            abandoned: Whether no caller waits for the outcome. Then a later request runs as the next attempt.
            chats: If not empty, they replace the rollout's chats in the ledger.
        """
        ledger = self._ledger
        try:
            entry = self.rollout(outcome.rollout_id, outcome.attempt, self.now())
        except CallError as error:
            then(error, None)
            return
        if ledger is None:
            receipt, kept = self.complete(outcome, self.now())
            then(receipt, kept)
            if abandoned and kept is not None:
                self.reserve(outcome.rollout_id, outcome.attempt + 1)
            return
        if entry.committing is not None:
            entry.committing.append(partial(self.record, outcome, raw, then, abandoned=abandoned, chats=chats))
            return
        if entry.result_id is not None:
            then(_known(entry, outcome), None)
            return
        recorded = entry.complete(outcome)
        recorded = replace(
            recorded, confirmation=LedgerReceipt(ledger, outcome.rollout_id, outcome.attempt, outcome.result_id)
        )
        entry.committing = []

        def committed(_: Any, error: LedgerError | None) -> None:
            waiting, entry.committing = entry.committing or [], None
            if error is not None:
                entry.result_id = None
                then(unwritten(), None)
            elif self._rollouts.get(outcome.rollout_id) is not entry:
                then(self._is_over(outcome.rollout_id), None)
            else:
                reach("ledger.complete.committed")
                if not abandoned:
                    ledger.unconfirmed[outcome.rollout_id] = outcome.attempt
                entry.close()
                then(Receipt.RECORDED, recorded)
                if abandoned:
                    self.reserve(outcome.rollout_id, outcome.attempt + 1)
            for again in waiting:
                again()

        reach("ledger.complete.before")
        if abandoned:
            ledger.reserve(outcome.rollout_id, outcome.attempt + 1, committed)
        else:
            ledger.complete(outcome, raw.SerializeToString(), committed, enter=not entry.entered, chats=chats)

    def rollout(self, rollout_id: str, attempt: int, now: float) -> AttemptCache:
        """Return the entry of an attempt. If it is higher than the known attempt, replace and close that one.

        Raises Aborted for a lower attempt, or Unavailable until the ledger has the newest attempt.
        """
        entry = self._rollouts.get(rollout_id)
        if entry is not None and attempt < entry.attempt:
            raise self._is_over(rollout_id)
        if entry is None or attempt > entry.attempt:
            lower, entry = entry, AttemptCache(attempt, self._ledger)
            self._rollouts[rollout_id] = entry
            if lower is not None:
                entry.follows = lower.follows or lower.reserved or lower.result_id is not None
                entry.replaces = lower.replaces or (lower.entered and lower.result_id is None)
                lower.replaced = True
                lower.close()
        entry.last_used = now
        return entry

    def _is_over(self, rollout_id: str) -> CallError:
        """Return the error to send to the server of an attempt that is not the newest.

        Aborted ends the attempt at its server, so it is sent only after the ledger has the newest attempt. Otherwise,
        after a crash, the trainer would continue with an attempt that has ended without an outcome.
        """
        entry = self._rollouts.get(rollout_id)
        newest = entry.attempt if entry is not None else 0
        if entry is not None and entry.replaces:
            return Unavailable(
                f"attempt {newest} of rollout {rollout_id} is not yet in the ledger", retry_after=UNWRITTEN_RETRY
            )
        return Aborted(f"rollout {rollout_id} is at attempt {newest}", rollout_id=rollout_id, attempt=newest)

    def entered(self, rollout_id: str, attempt: int, *, dropped: bool = False) -> None:
        """Record that the ledger has an attempt; with `dropped`, that it has no attempt of the rollout."""
        entry = self._rollouts.get(rollout_id)
        if entry is not None and entry.attempt == attempt:
            entry.entered, entry.replaces = not dropped, False

    def reserve(self, rollout_id: str, attempt: int) -> None:
        """Reserve an attempt for the next request of a rollout, because no caller has the outcome of a lower one."""
        entry = self._rollouts.get(rollout_id)
        if entry is None or entry.attempt < attempt:
            entry = self.rollout(rollout_id, attempt, self.now())
            entry.reserved = entry.ended = True
            entry.entered, entry.replaces = self.has_ledger, False

    def let_run_again(self, rollout_id: str, attempt: int) -> None:
        """Let the next request of a rollout run as this attempt, even if it asks for a lower one."""
        entry = self._rollouts.get(rollout_id)
        if entry is not None and entry.attempt == attempt:
            entry.reserved = True

    def is_committing(self, rollout_id: str) -> bool:
        """Return whether the outcome of a rollout's newest attempt is being written to the ledger."""
        entry = self._rollouts.get(rollout_id)
        return entry is not None and entry.committing is not None

    def reserved(self, rollout_id: str) -> int:
        """Return the reserved attempt of a rollout; 0 if none is."""
        entry = self._rollouts.get(rollout_id)
        return entry.attempt if entry is not None and entry.reserved else 0

    def replaces(self, rollout_id: str) -> bool:
        """Return whether the ledger lacks the newest attempt, so that a lower one must stay at its server."""
        entry = self._rollouts.get(rollout_id)
        return entry is not None and entry.replaces

    def sweep(self, before: float, keep: Container[str] = ()) -> None:
        """Drop the rollouts that were last used before a time. Rollouts in `keep` and unconfirmed rollouts stay."""
        unconfirmed: Container[str] = self._ledger.unconfirmed if self._ledger is not None else ()
        old = [
            rollout_id
            for rollout_id, entry in self._rollouts.items()
            if entry.last_used < before
            and rollout_id not in keep
            and rollout_id not in unconfirmed
            and entry.committing is None
        ]
        for rollout_id in old:
            self._rollouts.pop(rollout_id).close()
        if self._ledger is not None:
            self._ledger.forget(old)

    def close(self) -> None:
        """Stop all policy calls, and drop all chats."""
        for entry in self._rollouts.values():
            entry.close()


def _known(entry: AttemptCache, outcome: RolloutOutcome) -> Receipt:
    return Receipt.ALREADY_RECORDED if entry.result_id == outcome.result_id else Receipt.CONFLICT
