"""Shares one Trainer between all rollouts of a process, for libraries that create a new object for each rollout."""

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from osmosis_grpc.policies import Policy
from osmosis_grpc.protocol.errors import FailedPrecondition
from osmosis_grpc.trainer import ChatRequest, ChatResponse, RolloutOutcome, RolloutRequest, Trainer


class SharedTrainer:
    """Runs rollouts, each with its own policy. `make` creates the Trainer for a policy, not yet entered."""

    def __init__(self, make: Callable[[Policy], Trainer]) -> None:
        self._policies: dict[str, Policy] = {}
        """The policies of running rollouts, by rollout id."""
        self._trainer = make(self._answer)

    async def start(self) -> None:
        """Start the trainer, and wait for an agent server. Raises Unavailable if none can be reached."""
        await self._trainer.__aenter__()
        try:
            await self._trainer.wait_for_server()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close the trainer."""
        await self._trainer.__aexit__(None, None, None)

    async def outcome(self, request: RolloutRequest, policy: Policy, *, retries: int) -> RolloutOutcome:
        """Run a rollout, repeat it up to `retries` times if it fails, and return its outcome."""
        self._policies[request.rollout_id] = policy
        try:
            async for outcome in self._trainer.run([request], retries=retries):
                return outcome
        finally:
            del self._policies[request.rollout_id]
        raise FailedPrecondition(f"rollout {request.rollout_id} has no outcome")

    async def _answer(self, request: ChatRequest) -> ChatResponse:
        policy = self._policies.get(request.rollout_id)
        if policy is None:
            raise FailedPrecondition(f"rollout {request.rollout_id} is not running here")
        reply = policy(request)
        return await reply if inspect.isawaitable(reply) else reply


@dataclass(slots=True)
class SharedTrainers:
    """The trainers of a process, one for each event loop and key, started when they are first needed."""

    _started: "WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Any, asyncio.Future[SharedTrainer]]]" = field(
        default_factory=WeakKeyDictionary
    )

    async def get(self, key: Any, make: Callable[[Policy], Trainer]) -> SharedTrainer:
        """Return the trainer of a key.

        The first call starts it, and concurrent calls wait for that. All of them raise Unavailable if no agent server
        can be reached; a later call tries again.
        """
        loop = asyncio.get_running_loop()
        known = self._started.setdefault(loop, {})
        if key in known:
            return await asyncio.shield(known[key])
        started = known[key] = loop.create_future()
        try:
            shared = SharedTrainer(make)
            await shared.start()
        except BaseException as error:
            del known[key]
            started.set_exception(error if isinstance(error, Exception) else RuntimeError("the start was cancelled"))
            started.exception()  # mark it as retrieved, because possibly no other caller waits
            raise
        started.set_result(shared)
        return shared

    async def close(self) -> None:
        """Close the trainers of the running event loop."""
        for started in self._started.pop(asyncio.get_running_loop(), {}).values():
            await (await started).close()
