"""What a ledger holds for the application, completions that it has not confirmed, and how it confirms them."""

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from osmosis_grpc._gen.osmosis.rollout.v1 import rollout_pb2
from osmosis_grpc.errors import AlreadyExists, LedgerError
from osmosis_grpc.storage.data_loss import data_loss
from osmosis_grpc.storage.ledger import Ledger, LedgerRollout
from osmosis_grpc.trainer.chats.attempt import AttemptCache
from osmosis_grpc.trainer.chats.ledger_codec import completion_of, init_bytes, tools_of
from osmosis_grpc.trainer.receipt import LedgerReceipt
from osmosis_grpc.types import Completion, RolloutRequest
from osmosis_grpc.types.completion import clip, describe

log = logging.getLogger(__name__)


class UnconfirmedOutcomes:
    """Hands out what stands in a ledger, each completion made anew from its chats."""

    def __init__(self, ledger: Ledger) -> None:
        self.left: dict[str, None] = dict.fromkeys(ledger.unconfirmed)
        """What an earlier process left and nobody has asked for in this one, oldest first."""
        self._ledger = ledger

    def holds(self, rollout_id: str, attempt: int) -> bool:
        """Whether there is an unconfirmed completion of this attempt or a higher one."""
        return self._ledger.unconfirmed.get(rollout_id, 0) >= attempt

    def fetch(self, rollout_id: str, request: RolloutRequest | None = None) -> "asyncio.Future[Completion]":
        """Read a completion. Raises AlreadyExists for one of another request, LedgerError."""
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self.left.pop(rollout_id, None)
        self._ledger.fetch(rollout_id, partial(self._fetched, future, rollout_id, request))
        return future

    def _fetched(
        self,
        future: "asyncio.Future[Completion]",
        rollout_id: str,
        request: RolloutRequest | None,
        kept: LedgerRollout | None,
        error: LedgerError | None,
    ) -> None:
        if future.done():
            return
        try:
            if error is not None:
                raise error
            if kept is None or kept.completion is None:
                raise AlreadyExists(
                    f"rollout {rollout_id} is over and confirmed; raise `attempt` to run it again",
                    rollout_id=rollout_id,
                    attempt=kept.attempt if kept else 0,
                )
            future.set_result(replace(self._outcome(kept, request), receipt=LedgerReceipt(self._ledger, kept)))
        except Exception as problem:
            future.set_exception(problem)

    def _outcome(self, kept: LedgerRollout, request: RolloutRequest | None) -> Completion:
        """A completion as it was; one of which anything is damaged has FAILED, and keeps no other one waiting."""
        damage = kept.damage
        if not damage:
            if request is not None and kept.init is not None:
                check_same(kept.init, request, kept.attempt)
            try:
                return whole(kept)
            except Exception as error:
                damage = clip(describe(error))
        log.error(
            "the outcome of rollout %s is damaged in the ledger %s: %s; it has FAILED (DATA_LOSS)",
            kept.rollout_id,
            self._ledger.name,
            damage,
        )
        return data_loss("ledger", kept.rollout_id, kept.attempt, damage, result_id=kept.result_id or "")


def whole(kept: LedgerRollout) -> Completion:
    """A completion with what it refers to, as it was when it was recorded."""
    entry = AttemptCache(kept.attempt)
    entry.tools = tools_of(kept)
    entry.learn(kept.chats)
    completion = completion_of(kept)
    if entry.refers_beyond(completion):
        raise LedgerError("a chat that it refers to is missing")
    return entry.complete(completion)


def check_same(init: bytes, request: RolloutRequest, attempt: int) -> None:
    """Whether a request is the one that stands in the ledger, but for its attempt. Raises AlreadyExists."""
    kept = rollout_pb2.InitRequest.FromString(init)
    if init_bytes(replace(request, attempt=kept.attempt)) != init:
        raise AlreadyExists(
            f"rollout {request.rollout_id} was started with another request",
            rollout_id=request.rollout_id,
            attempt=attempt,
        )
