"""The scripted trainers over gRPC: callback (TrainerServer and RolloutClient) and attach."""

from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, Self

from benchmarks.figures import Broken
from benchmarks.flight import Done, Route, Work, in_flight
from benchmarks.policy import Policy, scripted
from benchmarks.processes import Server
from benchmarks.script import begin
from osmosis_grpc.trainer import Completion, RolloutClient, RolloutRequest, TrainerServer, attach


class GrpcTrainer:
    """A trainer over gRPC at one server. An async context."""

    def __init__(self, work: Work, server: Server, route: Route, policy: Policy | None = None) -> None:
        self._work = work
        self._server = server
        self._route = route
        self._policy = policy or scripted(work.tokens, work.latency)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._begin(self._stack.enter_async_context, self._work.ledger or None)
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._stack.aclose()

    async def _begin(self, enter: Callable[..., Awaitable[Any]], ledger: str | None) -> None:
        raise NotImplementedError

    async def run(self, names: Iterable[str], done: Done) -> None:
        """Run rollouts to their end, as many at a time as the work says."""
        raise NotImplementedError


class CallbackTrainer(GrpcTrainer):
    """Starts rollouts by Init and is called back."""

    async def _begin(self, enter: Callable[..., Awaitable[Any]], ledger: str | None) -> None:
        self._trainer = await enter(TrainerServer(self._policy, ledger=ledger))
        self._client = await enter(RolloutClient(await self._route(self._server.grpc)))
        self._callback = replace(self._trainer.callback(), target=await self._route(self._trainer.address))

    async def run(self, names: Iterable[str], done: Done) -> None:
        await in_flight(names, self._work.in_flight, self._rollout, done)

    async def _rollout(self, name: str) -> None:
        await self._client.init(rollout(name, self._work), callback=self._callback)
        completion = await self._trainer.completion(name)
        check(completion, self._work)
        await completion.confirm()


class AttachTrainer(GrpcTrainer):
    """Runs rollouts over one attachment."""

    async def _begin(self, enter: Callable[..., Awaitable[Any]], ledger: str | None) -> None:
        self._trainer = await enter(attach([await self._route(self._server.grpc)], self._policy, ledger=ledger))

    async def run(self, names: Iterable[str], done: Done) -> None:
        requests = (rollout(name, self._work) for name in names)
        async for completion in self._trainer.run(requests, max_in_flight=self._work.in_flight):
            check(completion, self._work)
            await completion.confirm()
            done()


TRAINERS = {"attach": AttachTrainer, "callback": CallbackTrainer}


def rollout(name: str, work: Work) -> RolloutRequest:
    """What is asked for."""
    return RolloutRequest(rollout_id=name, messages=begin(), max_turns=work.turns)


def check(completion: Completion, work: Work) -> None:
    """Refuse a completion that is not COMPLETED, or that cannot be trained on though there were tokens."""
    if completion.status != "COMPLETED":
        raise Broken(f"rollout {completion.rollout_id} is {completion.status}: {completion.failure}")
    if not work.tokens:
        return
    sample = completion.samples["main"]
    sampled = sum(segment.sampled for segment in sample.segments)
    if not sample.trainable or sampled != work.turns * work.tokens:
        reason = sample.not_trainable_reason or f"{sampled} sampled tokens in {len(sample.segments)} segments"
        raise Broken(f"rollout {completion.rollout_id} cannot be trained on: {reason}")
