"""Trainers of the new kind, with the scenario for a policy: by callbacks, attached, and dialled by the server."""

import asyncio
import dataclasses
import time
from contextlib import AsyncExitStack
from typing import Any

import pytest

from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.errors import AlreadyExists, FailedPrecondition, Internal, ResourceExhausted, Unavailable
from osmosis_grpc.trainer import (
    ChatRequest,
    ChatResponse,
    InitResult,
    RolloutClient,
    RolloutOutcome,
    RolloutRequest,
    Trainer,
)
from tests.callback_trainer import CallbackTrainer
from tests.legacy.scenarios import MESSAGE_TOKENS, REPLY_TOKENS, Outcome, Scenario


class NewTrainer:
    """One scenario's trainer. Used as `async with NewTrainer(scenario) as trainer`."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.tries: list[float] = []
        """When each chat was asked, whatever came of it."""
        self.chats: list[ChatRequest] = []
        """The chats it answered."""
        self.outcomes: list[RolloutOutcome] = []
        """The outcomes it got."""
        self._faults = list(scenario.faults)
        self._server = CallbackTrainer(self.policy)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "NewTrainer":
        await self._stack.enter_async_context(self._server)
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._stack.aclose()

    async def play(self, agent_server: str) -> tuple[Outcome, str]:
        """Start the rollout at HOST:PORT, see it through: its outcome and its error text."""
        answers = await asyncio.gather(*(self.init(agent_server) for _ in range(self.scenario.inits)))
        assert sum(answer.created for answer in answers) == 1
        assert all(answer.tools == answers[0].tools for answer in answers), "the same Init is answered the same"
        self.tools = list(answers[0].tools)
        outcome = await self._server.outcome(self.scenario.name, timeout=20)
        self.outcomes.append(outcome)
        return outcome_of(outcome), outcome.failure.message if outcome.failure else ""

    async def init(self, agent_server: str) -> InitResult:
        """Send the Init, once."""
        async with RolloutClient(agent_server) as client:
            return await client.init(self.request, callback=self._server.callback())

    @property
    def request(self) -> RolloutRequest:
        """The scenario as a request."""
        scenario = self.scenario
        return RolloutRequest(
            rollout_id=scenario.name,
            messages=scenario.messages,
            completion_params=scenario.params,
            max_turns=scenario.max_turns,
            max_tokens_total=scenario.max_tokens_total,
            metadata=scenario.metadata,
        )

    async def policy(self, request: ChatRequest) -> ChatResponse:
        self.tries.append(time.monotonic())
        if self._faults:
            fault = self._faults.pop(0)
            if fault.kind == "broken":
                raise Internal("the sampler is broken")
            if fault.kind == "unavailable":
                raise Unavailable("the sampler is unavailable")
            raise ResourceExhausted("the sampler is busy", retry_after=fault.retry_after)
        if request.chat_number > len(self.scenario.script):
            raise FailedPrecondition(f"there is no chat {request.chat_number} in the script")
        self.chats.append(request)
        await asyncio.sleep(self.scenario.latency)  # the trainer's latency
        message, finish_reason = self.scenario.script[request.chat_number - 1]
        reply = dataclasses.replace(answer(request, message, tokens=REPLY_TOKENS), finish_reason=finish_reason)
        if self.scenario.tells_tokens:
            return reply
        sampled = request.chat_number - 1
        prompt = REPLY_TOKENS * sampled + MESSAGE_TOKENS * (len(request.messages) - sampled)
        usage = {"prompt_tokens": prompt, "completion_tokens": REPLY_TOKENS}
        return dataclasses.replace(reply, tokens=None, prompt_ids=None, usage=usage)


class AttachedTrainer(NewTrainer):
    """One that opens a stream to the agent server."""

    async def __aenter__(self) -> "AttachedTrainer":
        return self

    async def play(self, agent_server: str) -> tuple[Outcome, str]:
        """See NewTrainer. The same Init more than once is the same rollout, joined."""
        trainer = await self.trainer(agent_server)
        async with asyncio.timeout(20):
            outcomes = await asyncio.gather(*(trainer.rollout(self.request) for _ in range(self.scenario.inits)))
        outcome = outcomes[0]
        assert all(other is outcome for other in outcomes)
        self.outcomes.append(outcome)
        self.tools = list(self.chats[0].tools or ()) if self.chats else None
        return outcome_of(outcome), outcome.failure.message if outcome.failure else ""

    async def trainer(self, agent_server: str) -> Trainer:
        """Who is attached to it."""
        return await self._stack.enter_async_context(Trainer([agent_server], self.policy))

    async def again(self, agent_server: str) -> RolloutOutcome | None:
        """What a trainer gets that has forgotten everything and asks again; None where it has not."""
        async with asyncio.timeout(20), Trainer([agent_server], self.policy) as fresh:
            return await fresh.rollout(self.request)


class Hub:
    """The one trainer that an agent server dials: it hosts the policies of all scenarios."""

    def __init__(self) -> None:
        self.scenarios: dict[str, DialledTrainer] = {}
        self.trainer = Trainer([], self.policy, listen="127.0.0.1:0")

    async def policy(self, request: ChatRequest) -> ChatResponse:
        return await self.scenarios[request.rollout_id].policy(request)


class DialledTrainer(AttachedTrainer):
    """One that the agent server has opened a stream to."""

    def __init__(self, hub: Hub, scenario: Scenario) -> None:
        super().__init__(scenario)
        self._hub = hub
        hub.scenarios[scenario.name] = self

    async def trainer(self, agent_server: str) -> Trainer:
        """Who was dialled."""
        return self._hub.trainer

    async def again(self, agent_server: str) -> None:
        """It remembers."""
        with pytest.raises(AlreadyExists):
            await self._hub.trainer.rollout(self.request)


def outcome_of(outcome: RolloutOutcome) -> Outcome:
    """An outcome in the words that both kinds of trainer have."""
    metrics = outcome.metrics
    return Outcome(
        status="COMPLETED" if outcome.status == "COMPLETED" else "ERROR",
        finish_reason=outcome.finish_reason,
        messages=list(outcome.messages),
        reward=outcome.reward,
        num_llm_calls=metrics.num_llm_calls,
        num_tool_calls=metrics.num_tool_calls,
        prompt_tokens=metrics.prompt_tokens,
        response_tokens=metrics.response_tokens,
    )
