"""A provider for LiteLLM: its model `osmosis/policy` is the policy of the running rollout. Needs the extra `litellm`.

    litellm = register_litellm_provider()  # once, for example where the module of the agent begins

    reply = await litellm.acompletion(model="osmosis/policy", messages=messages, tools=tools)

Every library that calls models through LiteLLM can use the policy this way, without HTTP requests. Each conversation is
a sample of the rollout. To name the sample, set the header `x-sample-id` in extra_headers.
"""

import importlib
import os
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import cache
from typing import Any
from urllib.parse import unquote
from weakref import WeakKeyDictionary, proxy

from osmosis_grpc.agent.context import RolloutContext, get_rollout_context
from osmosis_grpc.agent.history_chats import POLICY, HistoryChats
from osmosis_grpc.agent.message_keys import History
from osmosis_grpc.agent.results import CompletionsResult, finish_reason_of, logprobs_of, usage_of
from osmosis_grpc.policies.litellm import import_litellm
from osmosis_grpc.protocol.errors import (
    FailedPrecondition,
    InvalidArgument,
    OsmosisRolloutError,
    OsmosisValidationError,
    UnknownChat,
)
from osmosis_grpc.protocol.types.messages import dump_model

__all__ = ["register_litellm_provider"]

PROVIDER = "osmosis"
"""The provider in a model's name. After the slash comes `policy`, or `policy/NAME` for a named policy."""
SAMPLE_HEADER = "x-sample-id"
"""The header that names the sample of a call, percent-encoded. By default, the history determines it."""
TASK_VARIABLE = "OSMOSIS_TASK_FILE"
"""A variable that programs of `serve --command` have."""
_OWN = frozenset({"stream", "stream_options", "tools", "n", "user", "metadata", "extra_body", "max_retries"})
"""Parameters of LiteLLM that are not sampling parameters."""
_ERRORS = {400: "BadRequestError", 429: "RateLimitError", 503: "ServiceUnavailableError", 504: "Timeout"}
"""The class of litellm.exceptions for each status; APIError for others."""
_SIMPLER: dict[type, type] = {InvalidArgument: OsmosisValidationError, UnknownChat: FailedPrecondition}
"""Replacements for error classes that cannot be created from a message alone."""


def register_litellm_provider() -> Any:
    """Add the provider `osmosis` to LiteLLM, and return the module litellm. Idempotent.

    If litellm is not imported yet, it is imported without using the network. Raises MissingExtraError.
    """
    litellm = import_litellm("register_litellm_provider")
    if all(item["provider"] != PROVIDER for item in litellm.custom_provider_map):
        litellm.custom_provider_map.append({"provider": PROVIDER, "custom_handler": _handler()})
    litellm.utils.custom_llm_setup()
    return litellm


@cache
def _handler() -> Any:
    """Return the provider's handler, a CustomLLM, whose methods LiteLLM calls with keyword arguments."""
    custom_llm: Any = importlib.import_module("litellm.llms.custom_llm")
    calls = PolicyCalls()
    methods = {name: staticmethod(getattr(calls, name)) for name in METHODS}
    return type("OsmosisProvider", (custom_llm.CustomLLM,), methods)()


METHODS = ("completion", "acompletion", "streaming", "astreaming")


class PolicyCalls:
    """The four kinds of calls: sync and async, streamed and not. Each is one chat of the active rollout."""

    def __init__(self) -> None:
        self._litellm: Any = importlib.import_module("litellm")
        self._chats: WeakKeyDictionary[RolloutContext, HistoryChats] = WeakKeyDictionary()

    def completion(self, **call: Any) -> Any:
        """Return the reply. Within an async function, the task must be allowed to wait, see agent/sync_waits.py."""
        return self._response(call, self._wait(call))

    async def acompletion(self, **call: Any) -> Any:
        """Return the reply."""
        return self._response(call, await self._ask(call))

    def streaming(self, **call: Any) -> Iterator[Any]:
        """Yield the reply in chunks."""
        yield from self._chunks(call, self._wait(call))

    async def astreaming(self, **call: Any) -> AsyncIterator[Any]:
        """Yield the reply in chunks."""
        for chunk in self._chunks(call, await self._ask(call)):
            yield chunk

    async def _ask(self, call: Mapping[str, Any]) -> CompletionsResult:
        try:
            context = _active(call)
            return await context.loop_calls.ask(lambda: self._chat(context, call))
        except OsmosisRolloutError as error:
            raise self._error(error, call) from error

    def _wait(self, call: Mapping[str, Any]) -> CompletionsResult:
        try:
            context = _active(call)
            return context.loop_calls.wait(lambda: self._chat(context, call))
        except OsmosisRolloutError as error:
            raise self._error(error, call) from error

    async def _chat(self, context: RolloutContext, call: Mapping[str, Any]) -> CompletionsResult:
        """Return the reply of the policy. Runs on the event loop of the rollout."""
        given = {**call["optional_params"], **(call["optional_params"].get("extra_body") or {})}
        if given.get("n") not in (None, 1):
            raise InvalidArgument("n", "is not 1: a chat has one reply; ask again for another one")
        chats = self._chats.get(context)
        if chats is None:
            chats = self._chats[context] = HistoryChats(proxy(context))  # a proxy, or the value keeps its key alive
        return await chats.ask(
            History.of([_without_nulls(dump_model(message)) for message in call["messages"]]),
            tools=given.get("tools"),
            params={name: value for name, value in given.items() if name not in _OWN and value is not None},
            model=call["model"],
            sample=unquote((call.get("headers") or {}).get(SAMPLE_HEADER, "")),
        )

    def _response(self, call: Mapping[str, Any], reply: CompletionsResult) -> Any:
        choice = {"index": 0, "message": reply.message, "finish_reason": finish_reason_of(reply)}
        return self._litellm.ModelResponse(
            id=f"chatcmpl-{uuid.uuid4().hex}",
            created=int(time.time()),
            model=call["model"],
            choices=[choice | {"logprobs": logprobs_of(reply) if call["optional_params"].get("logprobs") else None}],
            usage=self._litellm.Usage(**usage_of(reply)),
        )

    def _chunks(self, call: Mapping[str, Any], reply: CompletionsResult) -> Iterator[Any]:
        chunk: Any = self._litellm.types.utils.ModelResponseStream
        message = {name: value for name, value in reply.message.items() if value is not None}
        calls = [{"index": index, **each} for index, each in enumerate(message.pop("tool_calls", None) or ())]
        yield chunk(model=call["model"], choices=[{"index": 0, "delta": message | {"tool_calls": calls or None}}])
        yield {  # LiteLLM only reads the usage of chunks in this format
            "text": "",
            "tool_use": None,
            "is_finished": True,
            "finish_reason": finish_reason_of(reply),
            "usage": usage_of(reply),
            "index": 0,
        }

    def _error(self, error: OsmosisRolloutError, call: Mapping[str, Any]) -> Exception:
        """Convert the error of a chat to an error of LiteLLM that is also an instance of the original class.

        So libraries can handle it, and the failure of the rollout is still attributed correctly.
        """
        status = getattr(error, "status_code", 400)
        base = getattr(self._litellm.exceptions, _ERRORS.get(status, "APIError"))
        options: dict[str, Any] = {"message": str(error), "llm_provider": PROVIDER, "model": call["model"]}
        joined = _joined(base, _SIMPLER.get(type(error), type(error)))
        made: Exception = joined.__new__(joined)
        base.__init__(made, **options, **({"status_code": status} if base.__name__ == "APIError" else {}))
        vars(made).update(vars(error))
        return made


@cache
def _joined(base: type, other: type) -> Any:
    return type(other.__name__, (base, other), {"__module__": __name__})


def _active(call: Mapping[str, Any]) -> RolloutContext:
    """Return the context of the running rollout. Raises InvalidArgument if there is none or the model is unknown."""
    if call["model"] != POLICY and not call["model"].startswith(f"{POLICY}/"):
        known = f"{PROVIDER}/{POLICY} and {PROVIDER}/{POLICY}/NAME, for the trainer's policy NAME"
        raise InvalidArgument("model", f"{PROVIDER}/{call['model']} is unknown; the models are {known}")
    context = get_rollout_context()
    if context is None:
        name = call["model"]
        where = "exists only in the process of the server, while a rollout runs"
        program = TASK_VARIABLE in os.environ
        hint = f"; in a program of `serve --command` the model is openai/{name}" if program else ""
        raise InvalidArgument("model", f"{PROVIDER}/{name} {where}{hint}")
    return context


def _without_nulls(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message without the null keys that LiteLLM adds. A null content stays."""
    return {name: value for name, value in message.items() if value is not None or name == "content"}
