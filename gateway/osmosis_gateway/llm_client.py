"""OsmosisLLMClient, an HTTP client for agents that use the legacy contract without an agent server."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from osmosis_gateway import chat_bodies, http_bodies
from osmosis_gateway.outgoing_calls import Base, Calls
from osmosis_grpc.agent import CompletionsResult
from osmosis_grpc.agent.model_client import with_positional
from osmosis_grpc.agent.request_model import RolloutMetrics
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import (
    ChatRequest,
    Failure,
    FailureReason,
    OutcomeStatus,
    RolloutOutcome,
    Sample,
    jsontext,
)
from osmosis_grpc.protocol.types.json_values import number_of
from osmosis_grpc.protocol.types.messages import copy_messages, tool_dicts
from osmosis_grpc.protocol.types.requests import check_header, own_params
from osmosis_grpc.settings.settings import RolloutClientSettings, get_settings


class OsmosisLLMClient:
    """Calls the trainer at `server_url` for one rollout. Use it as `async with OsmosisLLMClient(url, id) as llm`.

    Parameters that are left out come from the settings. If a chat or a report fails, it raises OsmosisTransportError,
    OsmosisServerError, OsmosisTimeoutError or OsmosisValidationError.
    """

    def __init__(
        self,
        server_url: str,
        rollout_id: str,
        api_key: str | None = None,
        timeout_seconds: float | None = None,
        max_retries: int | None = None,
        complete_rollout_retries: int | None = None,
        settings: RolloutClientSettings | None = None,
    ) -> None:
        known = settings or get_settings().client
        given = {
            "timeout_seconds": timeout_seconds,
            "max_retries": max_retries,
            "complete_rollout_retries": complete_rollout_retries,
        }
        self._settings = RolloutClientSettings.model_validate(
            known.model_dump() | {name: value for name, value in given.items() if value is not None}
        )
        self._base = Base.of(server_url, "server_url")
        self.server_url = server_url.rstrip("/")
        self.rollout_id = rollout_id
        self.timeout_seconds = self._settings.timeout_seconds
        self.max_retries = self._settings.max_retries
        self.complete_rollout_retries = self._settings.complete_rollout_retries
        self.api_key = api_key
        self._key = check_header(api_key or "", "api_key")
        self._calls = Calls(self._settings)
        self._metrics = RolloutMetrics()

    async def __aenter__(self) -> "OsmosisLLMClient":
        await self._calls.__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._calls.__aexit__()

    async def chat_completions(
        self, messages: Sequence[Mapping[str, Any]], *values: Any, **params: Any
    ) -> CompletionsResult:
        """Return the model's reply to the history. `params` are sampling parameters; unknown parameters are forwarded.

        `values` are the same parameters by position: temperature, top_p, max_tokens, stop and logprobs. Raises
        InvalidArgument for a value that the contract cannot carry.
        """
        params = with_positional(values, params)
        await self.__aenter__()
        tools = params.pop("tools", None)
        request = ChatRequest(
            rollout_id=self.rollout_id,
            messages=copy_messages(messages, "messages"),
            params=own_params(params, "params"),
            tools=None if tools is None else tool_dicts(tools),
        )
        began = time.monotonic()
        raw = await self._post(chat_bodies.CHAT_PATH, chat_bodies.chat_body(request), self._settings.max_retries)
        response = chat_bodies.read_reply(raw)
        self._count(response.usage or {}, (time.monotonic() - began) * 1000)
        block: Any = response.tokens
        return CompletionsResult(
            message=response.message,
            token_ids=block and block.ids,
            logprobs=block and block.logprobs,
            usage=dict(response.usage or {}),
            finish_reason=response.finish_reason,
            extra=response.extra,
        )

    async def complete_rollout(
        self,
        status: str,
        final_messages: Sequence[Mapping[str, Any]],
        finish_reason: str = "stop",
        error_message: str | None = None,
        metrics: Any = None,
        reward: float | None = None,
    ) -> None:
        """Report the result with status COMPLETED or ERROR. Any 2xx answer acknowledges the report.

        `metrics` are RolloutMetrics of osmosis_grpc.rollout or of osmosis_grpc.protocol.types.
        """
        await self.__aenter__()
        if status not in ("COMPLETED", "ERROR"):
            raise InvalidArgument("status", f"is {status!r}, neither COMPLETED nor ERROR")
        number = None if reward is None else number_of(reward)
        if reward is not None and number is None:
            raise InvalidArgument("reward", f"{reward!r} is not a finite number")
        completed = status == "COMPLETED"
        counts: Any = metrics or self._metrics
        failure = None if completed else Failure("agent", "", reason=FailureReason.AGENT_ERROR)
        body = http_bodies.result_body(
            RolloutOutcome(
                rollout_id=self.rollout_id,
                status=OutcomeStatus.COMPLETED if completed else OutcomeStatus.FAILED,
                finish_reason=finish_reason,
                samples={"main": Sample(messages=copy_messages(final_messages, "final_messages"))},
                failure=failure,
                reward=number,
                metrics=counts,
            )
        )
        if not completed:
            body["error_message"] = error_message or "the agent gave up without a reason"
        await self._post(http_bodies.COMPLETED_PATH, body, self._settings.complete_rollout_retries)

    def get_metrics(self) -> RolloutMetrics:
        """Return the latency and token counts of the chats so far."""
        return self._metrics.model_copy()

    async def _post(self, path: str, body: dict[str, Any], retries: int) -> bytes:
        sent = jsontext.render(body).encode()
        return await self._calls.post(self._base.join(path), sent, key=self._key, retries=retries)

    def _count(self, usage: Mapping[str, Any], milliseconds: float) -> None:
        counts = self._metrics
        prompt, reply = (max(0, usage.get(name, 0)) for name in ("prompt_tokens", "completion_tokens"))
        counts.llm_latency_ms += milliseconds
        counts.num_llm_calls += 1
        counts.prompt_tokens += prompt
        counts.response_tokens += reply
        counts.max_context_tokens = max(counts.max_context_tokens, prompt + reply)
