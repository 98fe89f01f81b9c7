"""Safeguards of trainers: chats, attempts, results, the ledger, lost servers, subscriptions."""

from typing import Any

from osmosis_grpc.protocol.errors import Aborted
from osmosis_grpc.protocol.types import Receipt
from osmosis_grpc.storage.ledger.sqlite_ledger import SqliteLedger
from osmosis_grpc.trainer.chats import rollout_cache
from osmosis_grpc.trainer.chats.attempt_cache import AttemptCache
from osmosis_grpc.trainer.chats.rollout_cache import RolloutCache
from osmosis_grpc.trainer.outcome_recorder import OutcomeRecorder
from osmosis_grpc.trainer.scheduler import Scheduler
from osmosis_grpc.trainer.submissions import Submissions
from osmosis_grpc.trainer.transports.attach.link import AttachedServer
from osmosis_grpc.trainer.transports.attach.open_requests import Subscription, Subscriptions
from tests.simulation.ablations.ablation import nothing, without


@without("joining of chats", AttemptCache, "chat", "a chat that is asked again is sampled again")
def _(original: Any) -> Any:
    def chat(self: Any, request: Any, sampler: Any) -> Any:
        sample = self.samples.get(request.sample)
        if sample is not None:
            sample.asked.pop(request.chat_number, None)
        return original(self, request, sampler)

    return chat


@without("attempts of chats", RolloutCache, "rollout", "chats of an old attempt are sampled")
def _(original: Any) -> Any:
    def rollout(self: Any, rollout_id: str, attempt: int, now: float) -> Any:
        try:
            return original(self, rollout_id, attempt, now)
        except Aborted as error:
            return original(self, rollout_id, error.attempt, now)

    return rollout


@without("result ids", rollout_cache, "_known", "another result of an attempt counts as a repetition")
def _(original: Any) -> Any:
    return lambda entry, outcome: Receipt.ALREADY_RECORDED


@without("results are kept", RolloutCache, "record", "an outcome that comes again is recorded again")
def _(original: Any) -> Any:
    def record(self: Any, outcome: Any, *args: Any, **named: Any) -> None:
        entry = self.rollout(outcome.rollout_id, outcome.attempt, 0.0)
        if entry.committing is None:
            entry.result_id = None
        original(self, outcome, *args, **named)

    return record


@without("commit before a receipt", SqliteLedger, "complete", "a crash loses an outcome that was answered RECORDED")
def _(original: Any) -> Any:
    def complete(self: Any, outcome: Any, data: bytes, then: Any, **named: Any) -> None:
        original(self, outcome, data, lambda result, error: None, **named)
        then(None, None)

    return complete


@without(
    "commit before a reply is sent",
    SqliteLedger,
    "chat",
    "a crash loses a reply that its agent has",
    "crash at a commit",
)
def _(original: Any) -> Any:
    def chat(self: Any, kept: Any, then: Any, *, enter: bool) -> None:
        original(self, kept, lambda result, error: None, enter=enter)
        then(None, None)

    return chat


@without(
    "chats in the ledger",
    rollout_cache,
    "learn",
    "after a crash a trainer samples answered chats again",
    "crash trainer",
)
def _(original: Any) -> Any:
    return nothing(original)


@without("confirmations", SqliteLedger, "confirm", "a confirmed outcome comes again after a restart")
def _(original: Any) -> Any:
    async def confirm(self: Any, rollout_id: str, attempt: int, result_id: str) -> None:
        return None

    return confirm


@without("rollouts in the ledger", Submissions, "restore", "a restarted trainer does not wait for its rollouts")
def _(original: Any) -> Any:
    return nothing(original)


@without("reserved attempts", SqliteLedger, "reserve", "what no caller got begins anew as an old attempt")
def _(original: Any) -> Any:
    def reserve(self: Any, rollout_id: str, attempt: int, then: Any) -> None:
        self.drop(rollout_id, attempt - 1, then)

    return reserve


@without("forgetful servers", AttachedServer, "_on_unknown_rollouts", "a rollout that its server forgot never ends")
def _(original: Any) -> Any:
    return nothing(original)


@without("lost servers", Scheduler, "_lost", "the rollouts of a server that does not return never end")
def _(original: Any) -> Any:
    return nothing(original)


@without("resending of Inits", AttachedServer, "send_init", "an Init on a broken stream is never sent again")
def _(original: Any) -> Any:
    def send_init(self: Any, rollout: Any) -> None:
        sent = self.__dict__.setdefault("sent", set())
        if rollout.key not in sent or self.stream is None:
            original(self, rollout)
        if self.stream is not None:
            sent.add(rollout.key)

    return send_init


@without("old outcomes", OutcomeRecorder, "_begin", "an outcome of an old attempt is taken for the newest one's")
def _(original: Any) -> Any:
    def begin(self: Any, report: Any, outcome: Any) -> None:
        try:
            original(self, report, outcome)
        except Aborted:
            self._recorded(report, Receipt.RECORDED, outcome)

    return begin


@without("resuming of subscriptions", Subscription, "message", "after a break a reader begins at the first event again")
def _(original: Any) -> Any:
    def message(self: Any) -> Any:
        found = original(self)
        found.request.after_event = 0
        self._after = 0
        return found

    return message


@without(
    "repeating of subscriptions", Subscriptions, "resend_all", "after a break a reader gets no further event", "cut"
)
def _(original: Any) -> Any:
    return nothing(original)


@without("end of samplings", AttemptCache, "close", "the samplings of an ended rollout go on")
def _(original: Any) -> Any:
    return lambda self: self.samples.clear()
