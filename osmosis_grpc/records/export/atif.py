"""Converts rollouts to ATIF v1.7, the Agent Trajectory Interchange Format."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import Message, Sample
from osmosis_grpc.records.export.recorded import RecordedRollout, Reply, facts, replies

_IMAGES = {"image/jpeg": (".jpg", ".jpeg"), "image/png": (".png",), "image/gif": (".gif",), "image/webp": (".webp",)}
"""The media types of ATIF, with their file name extensions."""
_DATA = re.compile(r"data:([\w/+.-]+)[;,]")
VERSION = "ATIF-v1.7"
_SOURCES = {"system": "system", "developer": "system", "user": "user", "assistant": "agent"}
_KNOWN = {"role", "content", "reasoning_content", "reasoning", "tool_calls", "tool_call_id"}
"""The keys of messages that have a field in ATIF. All others go into the step's `extra`."""


def content_parts(content: Any) -> tuple[str | list[dict[str, Any]], dict[str, Any]]:
    """Convert content to ATIF. Also return what ATIF cannot express, for the `extra` of the step.

    Parts that are neither texts nor images of a known type go into `extra` under "content_parts", by their index.
    """
    if content is None:
        return "", {}
    if isinstance(content, str):
        return content, {}
    if not isinstance(content, list):
        return "", {"content": content}
    made, left = [], {}
    for index, part in enumerate(content):
        converted = _part(part)
        if converted is None:
            left[str(index)] = part
        else:
            made.append(converted)
    return made, {"content_parts": left} if left else {}


def _part(part: Any) -> dict[str, Any] | None:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, Mapping):
        return None
    if part.get("type") in ("text", "input_text", "output_text") and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if part.get("type") in ("image_url", "input_image"):
        image = part.get("image_url")
        url = image.get("url") if isinstance(image, Mapping) else image
        media_type = _media_type(url) if isinstance(url, str) else None
        if media_type is not None:
            return {"type": "image", "source": {"media_type": media_type, "path": url}}
    return None


def _media_type(url: str) -> str | None:
    data = _DATA.match(url)
    if data:
        return data[1] if data[1] in _IMAGES else None
    path = re.split(r"[?#]", url, maxsplit=1)[0].lower()
    return next((name for name, ends in _IMAGES.items() if path.endswith(ends)), None)


def atif_trajectory(rollout: RecordedRollout, *, tokens: bool = True) -> dict[str, Any]:
    """Return the ATIF trajectory of a rollout as JSON.

    Args:
        rollout: The rollout.
        tokens: Whether each step of a reply has its token ids and logprobs. If the messages of the sample don't match
            the replies of its chats, the tokens are in the trajectory's extra.osmosis.unmatched_replies.

    Raises:
        InvalidArgument: The rollout has no message. A trajectory needs at least one step.
    """
    outcome = rollout.outcome
    names = [name for name, sample in outcome.samples.items() if sample.messages]
    main = "main" if "main" in names else next(iter(names), "")
    sample = outcome.samples[main] if main else Sample(messages=rollout.messages)
    if not sample.messages:
        raise InvalidArgument("outcomes", f"rollout {outcome.rollout_id} has no message, and a trajectory needs one")
    made = _trajectory(rollout, main, sample, tokens)
    metrics = outcome.metrics
    made["final_metrics"] = {
        "total_prompt_tokens": metrics.prompt_tokens,
        "total_completion_tokens": metrics.response_tokens,
        "total_steps": len(made["steps"]),
        "extra": {"total_latency_ms": metrics.total_latency_ms, "num_tool_calls": metrics.num_tool_calls},
    }
    made["extra"]["osmosis"] |= facts(outcome)
    if rollout.label is not None:
        made["extra"]["osmosis"]["label"] = rollout.label
    fork = rollout.fork
    if fork is not None:
        chat = {"sample": fork.sample, "chat_number": fork.chat_number}
        made["extra"]["osmosis"]["forked_from"] = {"rollout_id": fork.rollout_id, "attempt": fork.attempt, **chat}
    others = [name for name in names if name != main]
    if others:
        made["subagent_trajectories"] = [_trajectory(rollout, name, outcome.samples[name], tokens) for name in others]
    return made


def _trajectory(rollout: RecordedRollout, name: str, sample: Sample, tokens: bool) -> dict[str, Any]:
    outcome = rollout.outcome
    steps = _steps(sample.messages)
    about: dict[str, Any] = {"sample": name} if name else {}
    if sample.parent is not None:
        about["parent"] = {"sample": sample.parent.sample, "chat_number": sample.parent.chat_number}
    if sample.policy:
        about["policy"] = sample.policy
    if sample.cut:
        about["cut"] = sample.cut
    if (reward := outcome.reward_of(name)) is not None:
        about["reward"] = reward
    if tokens and sample.segments:
        about |= _add_tokens(steps, sample)
    agent: dict[str, Any] = {"name": rollout.agent_loop or "agent", "version": outcome.agent_version or "unknown"}
    if rollout.tools:
        agent["tool_definitions"] = list(rollout.tools)
    return {
        "schema_version": VERSION,
        "session_id": outcome.rollout_id,
        "trajectory_id": f"{outcome.rollout_id}/{outcome.attempt}/{name or 'request'}",
        "agent": agent,
        "steps": steps,
        "extra": {"osmosis": about},
    }


def _steps(messages: Sequence[Message]) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    for message in messages:
        role = message.get("role")
        if role in ("tool", "function"):
            _observe(steps, message)
        else:
            steps.append(_step(message, _SOURCES.get(str(role), "user"), len(steps) + 1))
    return steps


def _step(message: Message, source: str, number: int) -> dict[str, Any]:
    content, left = content_parts(message.get("content"))
    step: dict[str, Any] = {"step_id": number, "source": source, "message": content}
    extra = {key: value for key, value in message.items() if key not in _KNOWN} | left
    if message.get("role") not in _SOURCES or message.get("role") == "developer":
        extra["role"] = message.get("role")
    if source == "agent":
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        if isinstance(reasoning, str) and reasoning:
            step["reasoning_content"] = reasoning
        calls = message.get("tool_calls")
        if isinstance(calls, list) and calls:
            step["tool_calls"] = [_call(call, f"{number}-{index}") for index, call in enumerate(calls)]
    if extra:
        step["extra"] = extra
    return step


def _call(call: Any, unnamed: str) -> dict[str, Any]:
    """Convert a tool call. Arguments that are not a JSON object go into its `extra`, unchanged."""
    given = call if isinstance(call, Mapping) else {}
    function = given.get("function")
    function = function if isinstance(function, Mapping) else {}
    raw = function.get("arguments")
    arguments = raw
    if isinstance(raw, str):
        try:
            arguments = json.loads(raw) if raw.strip() else {}
        except ValueError:
            arguments = None
    made: dict[str, Any] = {
        "tool_call_id": str(given.get("id") or f"call-{unnamed}"),
        "function_name": str(function.get("name") or ""),
        "arguments": arguments if isinstance(arguments, dict) else {},
    }
    if raw is not None and not isinstance(arguments, dict):
        made["extra"] = {"raw_arguments": raw}
    return made


def _observe(steps: list[dict[str, Any]], message: Message) -> None:
    """Add a tool message to the newest step that has its call, or else to the agent's newest step."""
    call_id = message.get("tool_call_id")
    calls = ((call, step) for step in reversed(steps) for call in step.get("tool_calls", ()))
    owner = next((step for call, step in calls if call["tool_call_id"] == call_id), None)
    content, extra = content_parts(message.get("content"))
    extra |= {key: value for key, value in message.items() if key not in _KNOWN}
    result: dict[str, Any] = {"content": content}
    if owner is not None:
        result["source_call_id"] = call_id
    else:
        extra |= {"tool_call_id": call_id} if call_id else {}
        owner = next((step for step in reversed(steps) if step["source"] == "agent"), None)
    if extra:
        result["extra"] = extra
    if owner is None:  # the history begins with a tool result
        owner = {"step_id": len(steps) + 1, "source": "system", "message": ""}
        steps.append(owner)
    owner.setdefault("observation", {"results": []})["results"].append(result)


def _add_tokens(steps: list[dict[str, Any]], sample: Sample) -> dict[str, Any]:
    """Add the tokens of each reply to its step. Return the tokens that have no step, for the trajectory's `extra`."""
    found = replies(sample)
    agents = [step for step in steps if step["source"] == "agent"]
    if found is None:
        return {"tokens_left_out": "the segments do not say which tokens belong to which reply"}
    left = sample.dropped_chats
    about = {"dropped_replies": [_numbered(reply) for reply in found if reply.chat_number in left]} if left else {}
    found = [reply for reply in found if reply.chat_number not in left]
    if sum(not segment.dropped for segment in sample.segments) == 1:
        # With one segment, replies and steps are in the same order. The first steps of a fork belong to its original.
        agents = agents[-len(found) :]
    if len(found) != len(agents):
        return about | {"unmatched_replies": [_numbered(reply) for reply in found]}
    for step, reply in zip(agents, found, strict=True):
        step["metrics"], step["llm_call_count"] = _metrics(reply), 1
    return about


def _numbered(reply: Reply) -> dict[str, Any]:
    return {"chat_number": reply.chat_number, **_metrics(reply)}


def _metrics(reply: Reply) -> dict[str, Any]:
    made: dict[str, Any] = {
        "prompt_tokens": len(reply.prompt_ids),
        "completion_tokens": len(reply.ids),
        "prompt_token_ids": reply.prompt_ids.tolist(),
        "completion_token_ids": reply.ids.tolist(),
        "logprobs": reply.logprobs.tolist(),
    }
    if reply.version:
        made["extra"] = {"policy_version": reply.version}
    return made
