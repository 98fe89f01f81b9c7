"""The scripted HTTP trainer. *sdk*, *tuned* and our gateway use the same trainer.

It uses aiohttp, raw handlers and no validation. As every trainer must, it parses each request and serializes each
reply. A reply has the text, `token_ids` and `logprobs` (as Python writes them), and no prompt ids. Other trainers of
the contract send the same data. In the gRPC modes a reply has more data.
"""

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import aiohttp
from aiohttp import web

from benchmarks.figures import Broken
from benchmarks.flight import Done, Route, Work, in_flight
from benchmarks.policy import AsyncPolicy, made_up_tokens
from benchmarks.processes import Server
from benchmarks.script import REPLY, begin
from osmosis_grpc.protocol.types.events import ChatAnswered
from osmosis_grpc.trainer import ChatRequest, RolloutClient

_JSON = {"Content-Type": "application/json"}


class HttpTrainer:
    """Starts rollouts by POST, answers their chats, and receives their results. An async context."""

    def __init__(self, work: Work, server: Server, route: Route, policy: AsyncPolicy | None = None) -> None:
        self._work = work
        self._server = server
        self._route = route
        self._policy = policy
        """Called at each chat. The reply of the policy is not used."""
        self._reply = _reply(work.tokens)
        self._ended: dict[str, asyncio.Future[dict[str, Any]]] = {}

    async def __aenter__(self) -> "HttpTrainer":
        self._runner = web.ServerRunner(web.Server(self._handle, access_log=None))
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, backlog=4096).start()
        own = f"127.0.0.1:{self._runner.addresses[0][1]}"
        self._url = f"http://{await self._route(own)}"
        connector = aiohttp.TCPConnector(limit=256)
        self._session = aiohttp.ClientSession(f"http://{await self._route(self._server.http)}", connector=connector)
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._session.close()
        await self._runner.cleanup()

    async def run(self, names: Iterable[str], done: Done) -> None:
        """Run rollouts to their end, `in_flight` at a time."""
        await in_flight(names, self._work.in_flight, self._rollout, done)

    async def check(self, name: str) -> None:
        """Read the recorded tokens over gRPC. Raise Broken if our server has not recorded all of them."""
        if not self._server.grpc:
            return
        async with RolloutClient(self._server.grpc) as client:
            kinds = [event.kind async for event in client.events(name)]
        blocks = [kind.response.tokens for kind in kinds if isinstance(kind, ChatAnswered) and kind.response.tokens]
        if [len(block.ids) for block in blocks] != [self._work.tokens] * (self._work.turns if self._work.tokens else 0):
            raise Broken(f"rollout {name}: the gateway recorded tokens of {len(blocks)} of {self._work.turns} replies")

    async def _rollout(self, name: str) -> None:
        self._ended[name] = ended = asyncio.get_running_loop().create_future()
        body = {
            "rollout_id": name,
            "server_url": self._url,
            "messages": begin(),
            "completion_params": {},
            "max_turns": self._work.turns,
        }
        async with self._session.post("/v1/rollout/init", json=body) as answer:
            if answer.status != 202:
                raise Broken(f"rollout {name} was not accepted: {answer.status} {await answer.text()}")
        outcome = await ended
        if outcome["status"] != "COMPLETED":
            raise Broken(f"rollout {name} is {outcome['status']}: {outcome.get('error_message')}")
        recorded = outcome["metrics"]["response_tokens"]
        if recorded != self._work.turns * self._work.tokens:
            raise Broken(f"rollout {name} recorded {recorded} tokens, not {self._work.turns} x {self._work.tokens}")

    async def _handle(self, request: web.BaseRequest) -> web.Response:
        body = json.loads(await request.read())
        if request.path == "/v1/chat/completions":
            if not body["messages"]:
                raise Broken("a chat without messages")
            if self._policy is not None:
                await self._policy(ChatRequest(rollout_id=body["rollout_id"], messages=()))
            elif self._work.latency:
                await asyncio.sleep(self._work.latency)
            return web.Response(body=json.dumps(self._reply).encode(), headers=_JSON)
        ended = self._ended.pop(body["rollout_id"], None)
        if ended is not None and not ended.done():
            ended.set_result(body)
        return web.Response(body=b"{}", headers=_JSON)


def _reply(tokens: int) -> dict[str, Any]:
    """Return the body of every reply."""
    reply: dict[str, Any] = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": "default",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": REPLY}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 0, "completion_tokens": tokens, "total_tokens": tokens},
    }
    if tokens:
        block = made_up_tokens(tokens)
        assert block.logprobs is not None
        reply |= {"token_ids": block.ids.tolist(), "logprobs": block.logprobs.tolist()}
    return reply
