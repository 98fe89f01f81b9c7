"""Formats a rollout's conversations for a terminal: turns, and each tool call with its result.

Control characters in the texts are escaped.
"""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from osmosis_grpc.agent.current_context import ToolRun
from osmosis_grpc.types import ChatRequest, Message, RolloutOutcome, Sample
from osmosis_grpc.types.outcome import printable

Chats = Sequence[tuple[ChatRequest, Message]]
Part = tuple[int, Sequence[Mapping[str, Any]]]

MOST_MESSAGES = 30
"""The most messages of a conversation that are shown."""
MOST_LINES = 8
MOST_CHARS = 200


def transcript(outcome: RolloutOutcome, runs: Sequence[ToolRun], chats: Chats = ()) -> Iterator[str]:
    """Yield the lines for an outcome's samples, and the lines for its end.

    `chats` are the requests with their replies. If the chats of a sample branch, each branch is shown separately.
    """
    timed = [run for run in runs if run.latency is not None]
    for name, sample in (outcome.samples or {"no chat": Sample()}).items():
        yield f"conversation ({_line(', '.join([name, *_origin(sample)]))})"
        latencies = {run.call_id: run.latency or 0.0 for run in timed if run.sample in ("", name)}
        for number, part in _branches([chat for chat in chats if chat[0].sample == name], sample.messages):
            if number > 1:
                yield f"  -- chat {number} begins another branch --"
            for line in _conversation(part, latencies, number):
                yield f"  {line}"
        for line in _rewards(sample, several=len(outcome.samples) > 1):
            yield _line(f"  {line}")
    metrics = outcome.metrics
    counts = f"{counted(metrics.num_llm_calls, 'turn')}, {counted(metrics.num_tool_calls, 'tool call')}"
    yield f"{outcome.status}: {counts}, {reward_text(outcome)}, {metrics.total_latency_ms / 1000:.2f} s"
    if outcome.failure:
        for frame in outcome.failure.frames:
            yield _line(f"  {frame.file}:{frame.line} in {frame.function}: {frame.code}")


def reward_text(outcome: RolloutOutcome) -> str:
    """Return the rollout's reward as a text. Without one, return how many samples have a reward of their own."""
    if outcome.reward is not None:
        return f"reward {outcome.reward:g}"
    rewarded = sum(sample.reward is not None for sample in outcome.samples.values())
    return f"rewards of {counted(rewarded, 'sample')}" if rewarded else "no reward"


def _origin(sample: Sample) -> Iterator[str]:
    """Yield a sample's policy, its parent, and whether it is not trained on."""
    if sample.policy:
        yield f"policy {sample.policy}"
    if sample.parent is not None:
        chat = f" chat {sample.parent.chat_number}" if sample.parent.chat_number else ""
        yield f"from {sample.parent.sample}{chat}"
    if sample.train is False:
        yield "not trained on"


def _rewards(sample: Sample, *, several: bool) -> Iterator[str]:
    """Yield the rewards of a sample and its chats. The last line of the transcript has a single sample's reward."""
    if (several and sample.reward is not None) or sample.reward_components:
        yield _graded(sample.reward, sample.reward_components)
    for chat in sample.chat_rewards:
        yield f"chat {chat.chat_number}: {_graded(chat.reward, chat.reward_components)}"


def _graded(reward: float | None, components: Mapping[str, float]) -> str:
    parts = ", ".join(f"{name} {value:g}" for name, value in components.items())
    return ("no reward" if reward is None else f"reward {reward:g}") + (f" ({parts})" if parts else "")


def _branches(chats: Chats, messages: Sequence[Mapping[str, Any]]) -> Sequence[Part]:
    """Return each branch of a conversation: the number of its first chat, and the messages that begin there.

    `messages` is the conversation that the agent reported. It replaces the branch that it begins with.
    """
    begins: dict[int, int] = {}  # the newest chat of a branch to the branch's first chat
    known: dict[int, int] = {}  # the first chat of a branch to its number of messages that an earlier branch shows
    whole: dict[int, Sequence[Mapping[str, Any]]] = {}
    for request, reply in chats:
        number, history = request.chat_number, [*request.messages, reply]
        first = begins.pop(request.parent_chat, number)
        if first == number:
            known[first] = request.prefix_len
        begins[number], whole[first] = first, history
    if len(whole) < 2:
        return [(1, messages)]
    for first in reversed(whole):
        if list(messages[: len(whole[first])]) == whole[first]:
            whole[first] = messages
            break
    return [(first, history[known[first] :]) for first, history in whole.items()]


def _conversation(messages: Sequence[Mapping[str, Any]], latencies: Mapping[str, float], first: int) -> Iterator[str]:
    """Yield the lines of messages. `first` is the number of the first reply. A repeated turn is shown once."""
    results = [message for message in messages if message.get("role") == "tool"]
    paired: list[int] = []
    number, shown, seen = first - 1, 0, 0
    for turn, times in _turns(messages):
        number += turn[0].get("role") == "assistant"
        for message in turn[: MOST_MESSAGES - shown]:
            yield from _message(message, number, results, paired, latencies)
        shown += len(turn)
        if shown > MOST_MESSAGES:
            yield f"... {len(messages) - seen - MOST_MESSAGES + shown - len(turn)} more messages"
            return
        if times > 1:
            yield f"... and the same {counted(times - 1, 'more time')}"
        number += times - 1
        seen += len(turn) * times


def _turns(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[list[Mapping[str, Any]], int]]:
    """Yield each turn, and how often it repeats in a row. A turn is a reply with the messages that follow the reply.

    Turns that differ only in call ids count as equal.
    """
    turns: list[list[Mapping[str, Any]]] = []
    for message in messages:
        if not turns or message.get("role") == "assistant":
            turns.append([])
        turns[-1].append(message)
    for _, same in itertools.groupby(turns, lambda turn: [_what(message) for message in turn]):
        found = list(same)
        yield found[0], len(found)


def _what(message: Mapping[str, Any]) -> str:
    """Return a key of a message. Messages that differ only in call ids have the same key."""
    functions = [call.get("function") for call in mappings(message.get("tool_calls"))]
    return json.dumps([message.get("role"), message.get("content"), functions], default=str)


def _message(
    message: Mapping[str, Any],
    number: int,
    results: Sequence[Mapping[str, Any]],
    paired: list[int],
    latencies: Mapping[str, float],
) -> Iterator[str]:
    """Yield the lines of one message and of the results of its calls. Add the ids of the results to `paired`."""
    role = message.get("role")
    if role == "tool":
        if id(message) not in paired:
            yield from _text(f"tool ({message.get('tool_call_id')})", message.get("content"))
        return
    label = f"{number} assistant" if role == "assistant" else str(role)
    if message.get("content") or not message.get("tool_calls"):
        yield from _text(label, message.get("content"))
    for call in mappings(message.get("tool_calls")):
        function = mapping(call.get("function"))
        yield _line(f"{label} calls {function.get('name')} {function.get('arguments')}")
        wanted = call.get("id")
        result = next((r for r in results if r.get("tool_call_id") == wanted and id(r) not in paired), None)
        if result is None:
            yield "    no result"
            continue
        paired.append(id(result))
        latency = latencies.get(str(wanted))
        took = "" if latency is None else f" ({latency * 1000:.1f} ms)"
        for line in _text(f"result{took}", result.get("content")):
            yield f"    {line}"


def _text(label: str, content: Any) -> Iterator[str]:
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, default=str)
    first, *more = text.splitlines() or [""]
    yield _line(f"{label}: {first}")
    for line in more[: MOST_LINES - 1]:
        yield f"  {_line(line)}"
    if len(more) >= MOST_LINES:
        yield f"  ... {len(more) - MOST_LINES + 1} more lines"


def _line(text: str) -> str:
    cut = text if len(text) <= MOST_CHARS else text[: MOST_CHARS - 4] + " ..."
    return printable(cut)


def counted(number: int, noun: str) -> str:
    """Return a number and its noun, in the plural unless the number is 1."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def mappings(value: Any) -> list[Mapping[str, Any]]:
    """Return the mappings in a list; an empty list for anything else."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list | tuple) else []


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a mapping as it is; an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}
