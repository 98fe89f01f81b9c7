"""A trainer's controller of the Osmosis SDK 0.2.18, written from the facts about its HTTP contract.

It posts rollouts to {server}/rollout, streams replies at {url}/chat/completions, and takes the two callbacks. Strict as
the SDK was: a chat without its bearer token or its headers, an unknown sample, and a callback with unknown fields are
refused. With `one_sample` it is a controller of 0.3.0: the rollout is in the path of the URLs, the result has one
sample, and chats have a key of their own.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any, Literal

import aiohttp
from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

KEY = "the-controllers-key"
LLM_KEY = "the-models-key"
Message = dict[str, Any]
Reply = Callable[[str, str, list[Message]], Message]
"""Takes the rollout's id, the sample's id and the messages."""
FORWARDED = ("messages", "temperature", "top_p", "max_tokens", "tools")


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Ended(Strict):
    rollout_id: str
    status: Literal["success", "failure"]
    err_message: str | None
    err_category: Literal["timeout", "validation_error", "http_error", "agent_error"] | None


class Completion(Ended):
    extra_fields: dict[str, Any] | None


class RewardedSample(Strict):
    messages: list[Message]
    label: str | None
    reward: float | None = Field(allow_inf_nan=False)
    remove_sample: bool
    metrics: dict[str, Any]
    extra_fields: dict[str, Any]


class NamedSample(RewardedSample):
    id: str


class Graded(Ended):
    samples: dict[str, NamedSample]
    sample: Any
    """It belongs to 0.3.0. The SDK's own models ignore keys that they do not know."""


class GradedOne(Ended):
    sample: RewardedSample | None
    samples: Any


def answer(rollout_id: str, sample: str, messages: list[Message]) -> Message:
    return {"role": "assistant", "content": "The answer is 6."}


class OldController:
    """Used as `async with OldController() as controller`."""

    def __init__(self, reply: Reply = answer, *, one_sample: bool = False, port: int = 0) -> None:
        self.reply = reply
        self.port = port
        self.one_sample = one_sample
        self.chat_key = LLM_KEY if one_sample else KEY
        self.chats: list[tuple[str, str, dict[str, Any]]] = []
        """Rollout, sample and body of each answered chat."""
        self.chat_faults: list[Any] = []
        """What the next chats meet: "error" in the stream, "cut" before its end, or a status."""
        self.statuses: dict[str, list[int]] = {"completed": [], "grader": []}
        """What the next callbacks are answered with; then 200."""
        self.calls: list[tuple[str, str]] = []
        """Channel and rollout of each callback in order, whatever it was answered with."""
        self.completions: dict[str, Completion] = {}
        self.grades: dict[str, Any] = {}
        self.stale: list[tuple[str, str]] = []
        """Callbacks after the first of their channel. Their bodies have to equal the first."""
        self.problems: list[str] = []
        self.gate = asyncio.Event()
        """Chats wait for it, with heartbeats."""
        self.gate.set()
        self.waiting = 0
        self._samples: dict[str, set[str]] = {}
        self._arrived = asyncio.Condition()

    async def __aenter__(self) -> "OldController":
        app = web.Application(client_max_size=2**26)
        base = "/v1/rollouts/{rollout_id}" if self.one_sample else "/llm"
        app.add_routes(
            [
                web.post(f"{base}/chat/completions", self._chat),
                web.post("/v1/rollout/completed", self._completed),
                web.post("/v1/grader/completed", self._graded),
            ]
        )
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()
        self.port = self._runner.addresses[0][1]
        self._session = aiohttp.ClientSession()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._session.close()
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def body(self, rollout_id: str = "r1", **more: Any) -> dict[str, Any]:
        """The body of POST /rollout."""
        row = {
            "rollout_id": rollout_id,
            "initial_messages": [{"role": "user", "content": "What is 2 * 3?"}],
            "label": "6",
            "chat_completions_url": f"{self.url}/llm",
            "controller_api_key": KEY,
            "completion_callback_url": f"{self.url}/v1/rollout/completed",
            "grader_callback_url": f"{self.url}/v1/grader/completed",
        }
        if self.one_sample:
            row |= {"chat_completions_url": f"{self.url}/v1/rollouts/{rollout_id}", "llm_api_key": LLM_KEY}
        return row | more

    async def start(self, server: str, rollout_id: str = "r1", *, token: str = "", **more: Any) -> tuple[int, Any]:
        """Post a rollout to HOST:PORT. Return the status and the answer."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        body = {name: value for name, value in self.body(rollout_id, **more).items() if value is not ...}
        async with self._session.post(f"http://{server}/rollout", json=body, headers=headers) as got:
            return got.status, await got.json()

    async def ended(self, rollout_id: str = "r1") -> tuple[Completion, Any]:
        """Wait for both callbacks of a rollout, and return them."""
        async with asyncio.timeout(20), self._arrived:
            await self._arrived.wait_for(lambda: rollout_id in self.grades)
        assert self.problems == []
        return self.completions[rollout_id], self.grades[rollout_id]

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        key = self.chat_key
        if request.headers.get("Authorization") != f"Bearer {key}":
            return web.json_response({"detail": "unauthorized"}, status=401)
        body = await request.json()
        rollout, sample = request.headers.get("x-rollout-id"), request.headers.get("x-sample-id")
        if self.one_sample:
            self._check(rollout is None and sample is None, "headers of 0.2.18 in a chat of 0.3.0")
            rollout, sample = request.match_info["rollout_id"], "only"
        if not rollout or not sample:
            return web.json_response({"detail": "missing required header(s): x-rollout-id, x-sample-id"}, status=400)
        if body.get("stream", True) is not True:
            self.problems.append("a chat that is not streamed")
        self._check(body["model"] == "osmosis-rollout", f"model {body['model']}")
        fault = self.chat_faults.pop(0) if self.chat_faults else None
        if isinstance(fault, int):
            return web.json_response({"detail": "the sampler is away"}, status=fault)
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(request)
        await stream.write(b": ping\n\n")
        self.waiting += 1
        try:
            await self.gate.wait()
        finally:
            self.waiting -= 1
        if fault == "cut":
            return stream
        if fault == "error":
            data = {"error": {"message": f"the sampler broke with key {key}", "type": "server_error"}}
            await stream.write(f"event: error\ndata: {json.dumps(data)}\n\ndata: [DONE]\n\n".encode())
            return stream
        self.chats.append((rollout, sample, body))
        self._samples.setdefault(rollout, set()).add(sample)
        message = self.reply(rollout, sample, body["messages"])
        chunk = {
            "id": "c",
            "object": "chat.completion.chunk",
            "created": 0,
            "model": "m",
            "choices": [
                {
                    "index": 0,
                    "delta": self._delta(message),
                    "finish_reason": "tool_calls" if message.get("tool_calls") else "stop",
                }
            ],
            "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8},
        }
        await stream.write(f": ping\n\ndata: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode())
        return stream

    @staticmethod
    def _delta(message: Message) -> Message:
        calls = [{"index": index} | call for index, call in enumerate(message.get("tool_calls") or ())]
        return message | {"tool_calls": calls} if calls else message

    async def _completed(self, request: web.Request) -> web.Response:
        return await self._callback(request, "completed", Completion, self.completions)

    async def _graded(self, request: web.Request) -> web.Response:
        return await self._callback(request, "grader", GradedOne if self.one_sample else Graded, self.grades)

    async def _callback(
        self, request: web.Request, channel: str, model: type[Ended], first: dict[str, Any]
    ) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {KEY}":
            self.problems.append(f"{channel} without the key")
            return web.json_response({}, status=401)
        body = await request.json()
        self.calls.append((channel, body.get("rollout_id")))
        status = self.statuses[channel].pop(0) if self.statuses[channel] else 200
        if status != 200:
            return web.json_response({}, status=status)
        got: Any = model.model_validate(body)
        async with self._arrived:
            if got.rollout_id in first:
                self.stale.append((channel, got.rollout_id))
                self._check(first[got.rollout_id] == got, f"{channel} contradicts the first of {got.rollout_id}")
            else:
                self._check(channel == "completed" or got.rollout_id in self.completions, "grader before completion")
                first[got.rollout_id] = got
                if isinstance(got, Graded) and got.status == "success":
                    self._check_rewards(got)
            self._arrived.notify_all()
        return web.json_response({"status": "ok"})

    def _check_rewards(self, got: Graded) -> None:
        known = self._samples.get(got.rollout_id, set())
        self._check(set(got.samples) == known, f"samples {set(got.samples)}, and chats came from {known}")
        for name, sample in got.samples.items():
            self._check(sample.remove_sample or sample.reward is not None, f"no reward for {name}")
            self._check(sample.id == name, f"{sample.id} under {name}")

    def _check(self, good: bool, problem: str) -> None:
        if not good:
            self.problems.append(problem)
