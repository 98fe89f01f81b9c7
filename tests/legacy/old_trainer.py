"""A trainer of the old kind: HTTP, written from the contract.

It posts Inits, answers chats at {server_url}/v1/chat/completions with the scenario's next
reply, and takes outcomes at {server_url}/v1/rollout/completed. Tokens stand beside the
choices, by the formula that the new trainer's policy uses, so that both make the same ones.
"""

import asyncio
import math
import time
from typing import Any

import aiohttp
import numpy as np
from aiohttp import web

from osmosis_grpc.policies import formula
from tests.legacy.old_contract import CompletionsRequest, InitResponse, RolloutRequest, RolloutResponse, body
from tests.legacy.scenarios import REPLY_TOKENS, Outcome, Scenario

API_KEY = "the-trainers-key"


class OldTrainer:
    """One scenario's trainer. Used as `async with OldTrainer(scenario) as trainer`."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.address = ""
        """http://HOST:PORT."""
        self.tries: list[float] = []
        """When each chat was asked, whatever came of it."""
        self.chats: list[dict[str, Any]] = []
        """The bodies of the chats it answered."""
        self.outcomes: list[dict[str, Any]] = []
        """The bodies of the outcomes it got."""
        self._faults = list(scenario.faults)
        self._history: list[dict[str, Any]] = []
        self._tokens = np.empty(0, dtype="<u4")
        self._completed = asyncio.Event()

    async def __aenter__(self) -> "OldTrainer":
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.add_routes(
            [web.post("/v1/chat/completions", self._chat), web.post("/v1/rollout/completed", self._complete)]
        )
        self._runner = web.AppRunner(app, shutdown_timeout=1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.address = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._runner.cleanup()

    async def play(self, agent_server: str) -> tuple[Outcome, str]:
        """Start the rollout at http://HOST:PORT, see it through: its outcome and its error text."""
        answers = await asyncio.gather(*(self.init(agent_server) for _ in range(self.scenario.inits)))
        assert all(answer == answers[0] for answer in answers), "the same Init is answered the same"
        self.tools = answers[0].tools
        async with asyncio.timeout(20):
            await self._completed.wait()
        return self._outcome(RolloutResponse.model_validate(self.outcomes[0]))

    async def init(self, agent_server: str) -> InitResponse:
        """Post the Init, once."""
        scenario = self.scenario
        request = RolloutRequest(
            rollout_id=scenario.name,
            server_url=self.address,
            messages=scenario.messages,
            completion_params=scenario.params,
            max_turns=scenario.max_turns,
            max_tokens_total=scenario.max_tokens_total,
            metadata=scenario.metadata,
            api_key=API_KEY,
        )
        url = f"{agent_server}/v1/rollout/init"
        async with aiohttp.ClientSession() as session, session.post(url, json=body(request)) as answer:
            assert answer.status == 202, await answer.text()
            reported = InitResponse.model_validate_json(await answer.read())
        assert reported.rollout_id == scenario.name
        return reported

    @staticmethod
    def _outcome(got: RolloutResponse) -> tuple[Outcome, str]:
        metrics = got.metrics
        assert metrics is not None
        assert got.finish_reason is not None
        outcome = Outcome(
            status=got.status,
            finish_reason=got.finish_reason,
            messages=got.final_messages,
            reward=got.reward,
            num_llm_calls=metrics.num_llm_calls,
            num_tool_calls=metrics.num_tool_calls,
            prompt_tokens=metrics.prompt_tokens,
            response_tokens=metrics.response_tokens,
        )
        return outcome, got.error_message or ""

    async def _complete(self, request: web.Request) -> web.Response:
        if not _authorized(request):
            return web.json_response({"detail": "who are you?"}, status=401)
        self.outcomes.append(await request.json())
        self._completed.set()
        return web.json_response({"status": "ok"})

    async def _chat(self, request: web.Request) -> web.Response:
        if not _authorized(request):
            return web.json_response({"detail": "who are you?"}, status=401)
        sent = await request.json()
        self.tries.append(time.monotonic())
        if self._faults:
            fault = self._faults.pop(0)
            if fault.kind != "busy":
                return web.json_response({"detail": f"the sampler is {fault.kind}"}, status=500)
            headers = {"Retry-After": str(math.ceil(fault.retry_after or 0))}
            return web.json_response({"detail": "the sampler is busy"}, status=429, headers=headers)
        asked = CompletionsRequest.model_validate(sent)
        if asked.rollout_id != self.scenario.name or len(self.chats) >= len(self.scenario.script):
            return web.json_response({"detail": f"there is no chat {len(self.chats) + 1} in the script"}, status=400)
        self.chats.append(sent)
        number = len(self.chats)
        await asyncio.sleep(self.scenario.latency)  # the trainer's latency
        return web.json_response(self._reply(number, asked))

    def _reply(self, number: int, asked: CompletionsRequest) -> dict[str, Any]:
        message, finish_reason = self.scenario.script[number - 1]
        known = len(self._history)
        assert asked.messages[:known] == self._history, "a history only grows"
        new = [formula.message_ids(asked.rollout_id, "main", at) for at in range(known, len(asked.messages))]
        prompt = np.concatenate([self._tokens, *new])
        block = formula.reply_tokens(asked.rollout_id, "main", number, REPLY_TOKENS)
        assert block.logprobs is not None
        self._history = [*asked.messages, message]
        self._tokens = np.concatenate([prompt, block.ids])
        reply = {
            "id": f"chat-{number}",
            "object": "chat.completion",
            "created": 1700000000,
            "model": asked.model,
            "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
            "usage": {
                "prompt_tokens": len(prompt),
                "completion_tokens": REPLY_TOKENS,
                "total_tokens": len(prompt) + REPLY_TOKENS,
            },
        }
        if not self.scenario.tells_tokens:
            return reply
        ids, logprobs = block.ids.tolist(), block.logprobs.tolist()
        return reply | {"token_ids": ids, "logprobs": logprobs, "prompt_token_ids": prompt.tolist()}


def _authorized(request: web.Request) -> bool:
    return request.headers.get("Authorization") == f"Bearer {API_KEY}"
