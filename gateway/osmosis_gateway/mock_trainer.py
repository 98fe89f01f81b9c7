"""An HTTP trainer without a model, for tests of agent loops that use the legacy contract.

A reply depends only on the request's body, so a repeated chat gets the same reply, and `created` is always 0. The only
state of the trainer is the tracker of completed rollouts.
"""

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict

from osmosis_grpc.compat.sdk_functions import get_message_content, is_tool_message, is_user_message

ToolCallGenerator = Callable[[dict[str, Any]], list[dict[str, Any]] | None]
"""Takes the last message, or {} if there is none. Returns the tool calls of the reply; None or [] for no calls."""

TOKENS_PER_MESSAGE = 10
"""The number of tokens of each message in a prompt. It does not depend on the message's length."""

_CALCULATION = re.compile(
    r"\b(calculat\w*|add(s|ed|ing|ition)?|sum(s|med)?|plus|minus|subtract\w*|multipl\w*|divid\w*)\b", re.IGNORECASE
)


@dataclass
class RolloutCompletionTracker:
    """Records the completed rollouts of a mock trainer. Any thread can read it."""

    event: threading.Event = field(default_factory=threading.Event)
    """Set while there are responses."""
    responses: list[dict[str, Any]] = field(default_factory=list)
    """Bodies of POST /v1/rollout/completed, without their nulls, in the order of arrival."""
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False, compare=False)

    def record(self, response: dict[str, Any]) -> None:
        """Append a response and wake the callers of `wait`."""
        with self._lock:
            self.responses.append(response)
            self.event.set()

    def clear(self) -> None:
        """Delete all responses."""
        with self._lock:
            self.responses.clear()
            self.event.clear()

    def wait(self, timeout: float = 5.0) -> bool:
        """Block until there is a response, for at most `timeout` seconds. Return whether there is one."""
        return self.event.wait(timeout)


class _Chat(BaseModel):
    """The body of a chat. Like a real trainer, it also checks fields that the mock does not use."""

    rollout_id: str
    messages: list[dict[str, Any]]
    model: str = "default"
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: str | list[str] | None = None
    logprobs: bool | None = None


class _Completed(BaseModel):
    """The body of an outcome; only the rollout id is checked."""

    model_config = ConfigDict(extra="allow")

    rollout_id: str


def create_mock_trainer_app(
    tracker: RolloutCompletionTracker | None = None, tool_call_generator: ToolCallGenerator | None = None
) -> FastAPI:
    """Return an application that replies like a trainer of the legacy contract, for uvicorn or a test client.

    A reply calls a tool if the user asks for a calculation. `tool_call_generator` replaces this rule. `tracker` records
    every completed rollout.
    """
    tracked = RolloutCompletionTracker() if tracker is None else tracker
    app = FastAPI(title="mock trainer")

    @app.post("/v1/chat/completions")
    async def chat(body: _Chat) -> dict[str, Any]:
        """Return the reply to a chat."""
        return _completion(body, tool_call_generator or _tool_calls)

    @app.post("/v1/rollout/completed")
    async def completed(body: _Completed) -> dict[str, str]:
        """Record the report that a rollout has ended. A repeated report is recorded again."""
        tracked.record({key: value for key, value in body.model_dump().items() if value is not None})
        return {"status": "ok"}

    @app.get("/v1/rollout/completed/{rollout_id:path}")
    async def recorded(rollout_id: str) -> dict[str, Any]:
        """Return the last recorded report of a rollout; {} without one."""
        return next((r for r in reversed(tracked.responses) if r.get("rollout_id") == rollout_id), {})

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Health."""
        return {"status": "healthy", "service": "mock-trainer"}

    return app


def fake_token_ids(text: str) -> list[int]:
    """Return the token ids of a reply's text: 0, 1, 2 and so on, one id per character."""
    return list(range(len(text)))


def fake_prompt_token_ids(messages: Sequence[Any]) -> list[int]:
    """Return the token ids of a prompt: 0, 1, 2 and so on, ten ids per message and at least ten."""
    return list(range(TOKENS_PER_MESSAGE * max(1, len(messages))))


def _completion(body: _Chat, tool_calls: ToolCallGenerator) -> dict[str, Any]:
    last = body.messages[-1] if body.messages else {}
    calls = tool_calls(last)
    content = "A tool can tell." if calls else "The calculation is complete." if is_tool_message(last) else "OK."
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = calls
    reply, prompt = fake_token_ids(message["content"]), fake_prompt_token_ids(body.messages)
    return {
        "id": body.rollout_id,
        "object": "chat.completion",
        "created": 0,
        "model": body.model,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": len(prompt),
            "completion_tokens": len(reply),
            "total_tokens": len(prompt) + len(reply),
        },
        "token_ids": reply,
        "logprobs": [0.0] * len(reply),
        "prompt_token_ids": prompt,
    }


def _tool_calls(last: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return a call to the tool `add` if the last message is a user's request for a calculation."""
    if not is_user_message(last) or not _CALCULATION.search(get_message_content(last)):
        return None
    function = {"name": "add", "arguments": '{"a": 5, "b": 3}'}
    return [{"id": "call_mock_add", "type": "function", "function": function}]
