"""A trainer that speaks the old HTTP contract, for tests: it answers as a test sets it up, and records the calls."""

import asyncio
import json
import time

from aiohttp import web

from osmosis_grpc.policies import ToolCallingMock
from osmosis_grpc.protocol.types import ChatRequest


class LegacyTrainer:
    """Used as `async with LegacyTrainer() as trainer`. Answers chats as the tool-calling mock."""

    def __init__(self, port=0, tokens=True, host="127.0.0.1"):
        self.host, self.port = host, port
        self.chats = []
        self.outcomes = []
        self.keys = []
        self.headers = []
        self.chat_faults = []
        """Statuses, (status, headers) or exceptions of seconds to wait, one per chat before it is answered."""
        self.complete_statuses = []
        """One per outcome; after the last, 200."""
        self.in_flight = self.most_in_flight = 0
        self.peers = set()
        self.latency = 0.0
        self.gate = asyncio.Event()
        """Chats wait until it is set."""
        self.gate.set()
        self.usage = None
        """Replaces the usage of every reply."""
        self.tokens = tokens
        """Whether replies carry tokens."""
        self.times = []
        """When each call arrived, by time.monotonic()."""
        self._mock = ToolCallingMock()
        self._numbers = {}
        self._arrived = asyncio.Event()

    async def __aenter__(self):
        app = web.Application(client_max_size=2**30)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/rollout/completed", self._completed)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.host, self.port, backlog=4096, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *exc):
        await self._runner.cleanup()

    @property
    def url(self):
        return f"http://{self.host}:{self.port}"

    def init_body(self, rollout_id="r1", question="What is 2 * 3?", **more):
        """A request to start a rollout."""
        messages = [{"role": "user", "content": question}]
        return {
            "rollout_id": rollout_id,
            "server_url": self.url,
            "messages": messages,
            "completion_params": {},
            "api_key": f"key-{rollout_id}",
            "metadata": {"ground_truth": "6"},
        } | more

    async def completed(self, count=1, seconds=10):
        """Wait until so many outcomes have been acknowledged."""
        async with asyncio.timeout(seconds):
            while len(self.outcomes) < count:
                self._arrived.clear()
                await self._arrived.wait()
        return self.outcomes[count - 1]

    def _hear(self, request):
        self.times.append(time.monotonic())
        self.keys.append(request.headers.get("Authorization"))
        self.headers.append(dict(request.headers))
        self.peers.add(request.transport.get_extra_info("peername"))

    async def _chat(self, request):
        body = await request.json()
        self._hear(request)
        self.chats.append(body)
        self.in_flight += 1
        self.most_in_flight = max(self.in_flight, self.most_in_flight)
        try:
            await self.gate.wait()
            if self.latency:
                await asyncio.sleep(self.latency)  # as a model takes
            if self.chat_faults:
                fault = self.chat_faults.pop(0)
                status, headers = fault if isinstance(fault, tuple) else (fault, {})
                return web.Response(status=status, headers=headers, text="not now")
        finally:
            self.in_flight -= 1
        number = self._numbers[body["rollout_id"]] = self._numbers.get(body["rollout_id"], 0) + 1
        reply = await self._mock(
            ChatRequest(rollout_id=body["rollout_id"], chat_number=number, messages=body["messages"])
        )
        answer = {
            "id": body["rollout_id"],
            "object": "chat.completion",
            "created": 1,
            "model": "default",
            "choices": [{"index": 0, "message": reply.message, "finish_reason": reply.finish_reason}],
            "usage": dict(reply.usage) if self.usage is None else self.usage,
        }
        if self.tokens:
            answer |= {
                "token_ids": reply.tokens.ids.tolist(),
                "logprobs": reply.tokens.logprobs.tolist(),
                "prompt_token_ids": reply.prompt_ids.tolist(),
            }
        return web.json_response(answer)

    async def _completed(self, request):
        body = json.loads(await request.text())
        self._hear(request)
        status = self.complete_statuses.pop(0) if self.complete_statuses else 200
        if 200 <= status < 300:
            self.outcomes.append(body)
            self._arrived.set()
        return web.Response(status=status)
