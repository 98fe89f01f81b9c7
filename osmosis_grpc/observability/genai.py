"""The names of spans and attributes, from OpenTelemetry's semantic conventions for generative AI and our own.

The conventions still change, so no other file contains their names.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from osmosis_grpc.protocol.types import ChatResponse, RolloutOutcome
from osmosis_grpc.protocol.types.messages import Message

SCOPE = "osmosis_grpc"
"""The name of the tracer."""
PROVIDER = "osmosis"

ROLLOUT_ID, ATTEMPT = "osmosis.rollout.id", "osmosis.rollout.attempt"
GROUP_ID = "osmosis.group.id"
STATUS, FINISH_REASON, REWARD = "osmosis.status", "osmosis.finish_reason", "osmosis.reward"
SAMPLE, CHAT_NUMBER = "osmosis.sample", "osmosis.chat.number"
RECORDED = "osmosis.chat.recorded"
POLICY_VERSION = "osmosis.policy.version"
RESUMED = "osmosis.rollout.resumed"

ERROR_TYPE = "error.type"
INPUT_MESSAGES, OUTPUT_MESSAGES = "gen_ai.input.messages", "gen_ai.output.messages"
TOOL_ARGUMENTS, TOOL_RESULT = "gen_ai.tool.call.arguments", "gen_ai.tool.call.result"
_PARAMS = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "max_tokens": "gen_ai.request.max_tokens",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "seed": "gen_ai.request.seed",
}
"""The numeric sampling parameters, and the attribute of each."""

Attributes = dict[str, Any]


def invoke_agent(agent: str, rollout_id: str, attempt: int, group: str = "") -> tuple[str, Attributes]:
    """Return the name and the attributes of the span of a rollout."""
    attributes = _operation("invoke_agent") | {ROLLOUT_ID: rollout_id, ATTEMPT: attempt}
    if agent:
        attributes["gen_ai.agent.name"] = agent
    if group:
        attributes[GROUP_ID] = group
    return _named("invoke_agent", agent), attributes


def ended(outcome: RolloutOutcome) -> Attributes:
    """Return the attributes of a rollout's end."""
    metrics = outcome.metrics
    attributes: Attributes = {STATUS: str(outcome.status), FINISH_REASON: outcome.finish_reason}
    attributes |= _tokens(metrics.prompt_tokens, metrics.response_tokens)
    if outcome.mean_reward is not None:
        attributes[REWARD] = outcome.mean_reward
    if outcome.failure is not None:
        attributes[ERROR_TYPE] = str(outcome.failure.reason or outcome.finish_reason or "failed")
    return attributes


def chat(
    rollout_id: str, attempt: int, sample: str, chat_number: int, params: Mapping[str, Any], policy: str = ""
) -> tuple[str, Attributes]:
    """Return the name and the attributes of the span of a chat. The model is `params["model"]`, else the policy."""
    given = params.get("model")
    model = given if isinstance(given, str) and given else policy
    attributes = _operation("chat") | {
        ROLLOUT_ID: rollout_id,
        ATTEMPT: attempt,
        SAMPLE: sample,
        CHAT_NUMBER: chat_number,
    }
    if model:
        attributes["gen_ai.request.model"] = model
    for name, attribute in _PARAMS.items():
        value = params.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            attributes[attribute] = value
    return _named("chat", model), attributes


def replied(reply: ChatResponse) -> Attributes:
    """Return the attributes of a reply."""
    attributes: Attributes = {"gen_ai.response.finish_reasons": [reply.finish_reason]}
    usage = reply.usage or {}
    prompt = usage.get("prompt_tokens") if reply.prompt_ids is None else reply.prompt_prefix + len(reply.prompt_ids)
    sampled = usage.get("completion_tokens") if reply.tokens is None else len(reply.tokens.ids)
    attributes |= _tokens(prompt, sampled)
    if reply.versions:
        attributes[POLICY_VERSION] = reply.versions[-1].version
    return attributes


def execute_tool(rollout_id: str, attempt: int, name: str, call_id: str) -> tuple[str, Attributes]:
    """Return the name and the attributes of the span of a tool call."""
    attributes = _operation("execute_tool") | {ROLLOUT_ID: rollout_id, ATTEMPT: attempt}
    attributes |= {"gen_ai.tool.name": name, "gen_ai.tool.type": "function"}
    if call_id:
        attributes["gen_ai.tool.call.id"] = call_id
    return _named("execute_tool", name), attributes


def content(messages: Iterable[Message]) -> str:
    """Return messages as JSON text. It is used only if the user has turned on content."""
    return json.dumps(list(messages), ensure_ascii=False, default=str)


def _operation(name: str) -> Attributes:
    return {"gen_ai.operation.name": name, "gen_ai.provider.name": PROVIDER}


def _named(operation: str, name: str) -> str:
    return f"{operation} {name}" if name else operation


def _tokens(prompt: object, sampled: object) -> Attributes:
    found = {"gen_ai.usage.input_tokens": prompt, "gen_ai.usage.output_tokens": sampled}
    return {name: count for name, count in found.items() if isinstance(count, int) and count >= 0}
