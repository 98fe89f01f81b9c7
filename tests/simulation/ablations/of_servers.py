"""Safeguards of agent servers: Init, cancel, the commit of what is answered, delivery, recovery, windows, slots."""

from dataclasses import replace
from typing import Any

from osmosis_grpc.engine.acceptance import Acceptance
from osmosis_grpc.engine.admission import Admission
from osmosis_grpc.engine.chat_calls import ChatCalls
from osmosis_grpc.engine.eventlog import EventLog
from osmosis_grpc.engine.outbox import Outbox
from osmosis_grpc.engine.recorded_chats import Recording
from osmosis_grpc.engine.recovery import Recovery
from osmosis_grpc.engine.runner import Runner
from osmosis_grpc.engine.shutdown import Shutdown
from osmosis_grpc.engine.termination import Termination
from osmosis_grpc.engine.tombstones import Tombstones
from osmosis_grpc.protocol.types import events
from osmosis_grpc.protocol.types.failure_reasons import FailureReason
from osmosis_grpc.server.attachment import Attachment
from osmosis_grpc.server.attachment_registry import Attachments
from osmosis_grpc.storage.journal.credentials import Secrets
from tests.simulation.ablations.ablation import nothing, without


@without("idempotency of Init", Acceptance, "_find_or_begin", "an equal Init starts the rollout again")
def _(original: Any) -> Any:
    def find_or_begin(self: Any, init: Any, owner: str, peer: Any, chats: Any) -> Any:
        table = self._context.table
        known = table.highest(init.request.rollout_id)
        if known is None or known.attempt != init.request.attempt:
            return original(self, init, owner, peer, chats)
        table.highest = lambda rollout_id: None
        try:
            return original(self, init, owner, peer, chats)
        finally:
            del table.highest

    return find_or_begin


@without(
    "attempts of Init",
    Acceptance,
    "_find_or_begin",
    "an Init of a lower attempt starts beside the higher one",
    "foreign trainer",
)
def _(original: Any) -> Any:
    def find_or_begin(self: Any, init: Any, owner: str, peer: Any, chats: Any) -> Any:
        table = self._context.table
        known = table.highest(init.request.rollout_id)
        if known is None or known.attempt <= init.request.attempt:
            return original(self, init, owner, peer, chats)
        table.highest = lambda rollout_id: None
        try:
            return original(self, init, owner, peer, chats)
        finally:
            del table.highest

    return find_or_begin


@without("tombstones", Tombstones, "take", "a cancel that came before its Init has no effect", "foreign trainer")
def _(original: Any) -> Any:
    return lambda self, record: False


def _at_once(ended: type) -> Any:
    """Returns what follows the commit of an event at once, and commits the event later."""

    def ablate(original: Any) -> Any:
        def append(self: Any, record: Any, kind: Any, then: Any = None, *, entry: Any = None) -> None:
            if then is None or not isinstance(kind, ended):
                original(self, record, kind, then, entry=entry)
                return
            original(self, record, kind, None, entry=entry)
            self._follow_up(record, then)

        return append

    return ablate


without("commit before an Init is answered", EventLog, "append", "a crash forgets an accepted rollout", "slow disk")(
    _at_once(events.Accepted)
)
without(
    "commit before an outcome is sent", EventLog, "append", "after a crash a rollout ends a second time", "slow disk"
)(_at_once(events.Ended))


@without(
    "commit before a cancel is answered",
    EventLog,
    "barrier",
    "a crash takes back an answered cancel",
    "foreign trainer",
)
def _(original: Any) -> Any:
    return lambda self, then: then(None)


@without("cancel in the journal", Runner, "cancel", "after a crash a cancelled rollout runs on", "foreign trainer")
def _(original: Any) -> Any:
    return lambda self, record, reason: self.decide(record, Termination.cancelled(reason))


@without(
    "silence of superseded attempts",
    Runner,
    "supersede",
    "a superseded attempt runs on beside the newer one",
    "supersede",
)
def _(original: Any) -> Any:
    return nothing(original)


@without("stopping of agents", Runner, "_stop", "a cancelled agent never stops, and its rollout never ends")
def _(original: Any) -> Any:
    return nothing(original)


@without(
    "end without the agent",
    Runner,
    "_abandon",
    "an agent that ignores its cancel keeps its rollout open",
    "wild agents",
)
def _(original: Any) -> Any:
    return nothing(original)


@without("time limit of rollouts", Runner, "limit", "an agent that hangs never ends", "wild agents")
def _(original: Any) -> Any:
    return nothing(original)


@without("freeing of slots", Runner, "free_slot", "the slots of ended rollouts are never free again")
def _(original: Any) -> Any:
    return nothing(original)


@without("slots", Admission, "enter", "more agents run than a server has slots for", "tiny limits")
def _(original: Any) -> Any:
    def enter(self: Any, record: Any) -> bool:
        record.reserved = False
        self._run(record)
        return True

    return enter


@without("retries of outcomes", Outbox, "_retry", "an outcome whose first delivery fails is never delivered")
def _(original: Any) -> Any:
    return nothing(original)


@without("one result id", Outbox, "_send", "each try of a delivery has another result id")
def _(original: Any) -> Any:
    def send(self: Any, peer: Any, outcome: Any) -> Any:
        return original(self, peer, replace(outcome, result_id=self._context.system.new_id()))

    return send


@without("recovery", Recovery, "recover", "rollouts of the previous process never end", "crash server")
def _(original: Any) -> Any:
    def recover(self: Any, peer_of: Any) -> Any:
        journal = self._context.journal
        journal.unsettled = list
        try:
            return original(self, peer_of)
        finally:
            del journal.unsettled

    return recover


@without(
    "recorded replies", Recording, "reply", "after a crash an agent's answered chats are asked again", "crash server"
)
def _(original: Any) -> Any:
    return lambda self, asked: None


@without(
    "parking",
    Shutdown,
    "_end",
    "a server that stops ends rollouts that its next process could continue",
    "restart in good order",
)
def _(original: Any) -> Any:
    def end(self: Any, record: Any) -> None:
        reason = FailureReason.SHUTDOWN
        self._runner.decide(record, Termination.server_failed(reason, "the server shut down", "shutdown"))

    return end


@without("grace of trainers", Attachments, "_wait_for", "a broken stream ends all rollouts of its trainer", "cut")
def _(original: Any) -> Any:
    def wait_for(self: Any, attachment: Any) -> None:
        self._engine.lose(attachment.tenant, "its stream broke")
        original(self, attachment)

    return wait_for


@without(
    "window of chats", Attachment, "_on_window", "a server opens more chats than its trainer allows", "tiny limits"
)
def _(original: Any) -> Any:
    def on_window(self: Any, message: Any) -> None:
        self._chat_window = 1_000_000
        self._ask()

    return on_window


@without("resending after a break", Attachment, "take", "a chat or outcome on a broken stream gets no answer", "cut")
def _(original: Any) -> Any:
    def take(self: Any, stream: Any, hello: Any, *, granted: int) -> None:
        self._open.clear()
        self._results.clear()
        original(self, stream, hello, granted=granted)

    return take


@without("retries of chats", ChatCalls, "ask", "a chat fails when its trainer is away for a moment")
def _(original: Any) -> Any:
    async def ask(self: Any, request: Any) -> Any:
        return await self._try(self._record.peer, request)

    return ask


@without(
    "deletion of credentials", Secrets, "drop", "the credentials of delivered rollouts stay on the disk", "callback"
)
def _(original: Any) -> Any:
    return nothing(original)
