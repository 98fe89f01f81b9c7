"""The scripted trainers over gRPC, with callbacks and with attachments."""

import asyncio
import socket
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Any, Self

from benchmarks.figures import Broken
from benchmarks.flight import Done, Route, Work
from benchmarks.policy import Policy, scripted
from benchmarks.processes import Server
from benchmarks.script import begin
from osmosis_grpc.trainer import Credentials, RolloutOutcome, RolloutRequest, Trainer, TrainerConfig, TransportName


class GrpcTrainer:
    """Runs rollouts over the transport that the work's mode names: attach or callback. An async context."""

    def __init__(
        self, work: Work, server: Server, route: Route, policy: Policy | None = None, *, token: str = ""
    ) -> None:
        self._work = work
        self._server = server
        self._route = route
        self._policy = policy or scripted(work.tokens, work.latency)
        self._credentials = Credentials(token=token)
        self._transport: TransportName = "callback" if work.mode == "callback" else "attach"
        self._listen = ""
        if self._transport == "callback":
            with socket.create_server(("127.0.0.1", 0)) as probe:
                self._listen = f"127.0.0.1:{probe.getsockname()[1]}"
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self.trainer = await self._stack.enter_async_context(
            Trainer(
                await self._route(self._server.grpc),
                self._policy,
                transport=self._transport,
                listen=self._listen,
                credentials=self._credentials,
                ledger=self._work.ledger or None,
                config=TrainerConfig(callback_target=await self._route(self._listen) if self._listen else ""),
            )
        )
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._stack.aclose()

    async def run(self, names: Iterable[str], done: Done) -> None:
        """Run rollouts to their end, `in_flight` at a time.

        Takes the next outcome while an earlier one is confirmed, unless the work says `confirm_each`. If the trainer
        waits for each confirmation, one rollout ends with each commit, and most of those in flight have ended and wait.
        """
        turns = self._work.turns
        requests = (RolloutRequest(rollout_id=name, messages=begin(), max_turns=turns) for name in names)
        async with asyncio.TaskGroup() as confirmations:
            async for outcome in self.trainer.run(requests, max_in_flight=self._work.in_flight):
                check(outcome, self._work)
                confirmation = confirmations.create_task(self._confirm(outcome, done))
                if self._work.confirm_each:
                    await confirmation

    async def _confirm(self, outcome: RolloutOutcome, done: Done) -> None:
        await outcome.confirm()
        done()


def check(outcome: RolloutOutcome, work: Work) -> None:
    """Raise Broken for an outcome that is not COMPLETED. With tokens, also raise it for one that is not trainable."""
    if outcome.status != "COMPLETED":
        raise Broken(f"rollout {outcome.rollout_id} is {outcome.status}: {outcome.failure}")
    if not work.tokens:
        return
    sample = outcome.samples["main"]
    sampled = sum(segment.sampled for segment in sample.segments)
    if not sample.trainable or sampled != work.turns * work.tokens:
        reason = sample.not_trainable_reason or f"{sampled} sampled tokens in {len(sample.segments)} segments"
        raise Broken(f"rollout {outcome.rollout_id} cannot be trained on: {reason}")
