"""A rollout's conversations as lines for a terminal: turns, and each tool call with its result.

The text is an agent's and a model's: nothing in it reaches the terminal as a control character.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osmosis_grpc.agent.current import ToolRun
    from osmosis_grpc.types import Completion

MOST_MESSAGES = 30
"""Messages of a conversation that are shown."""
MOST_LINES = 8
"""Lines of a text."""
MOST_CHARS = 200
"""Characters of a line."""


def transcript(completion: "Completion", runs: "Sequence[ToolRun]") -> Iterator[str]:
    """The lines of a completion's samples, and of how it ended."""
    latencies = {run.call_id: run.latency for run in runs if run.latency is not None}
    samples = {name: sample.messages for name, sample in completion.samples.items()}
    if len(samples) < 2:
        samples = {next(iter(samples), "no chat"): completion.messages}
    for name, messages in samples.items():
        yield f"conversation ({_line(name)})"
        for line in _conversation(messages, latencies):
            yield f"  {line}"
    metrics = completion.metrics
    counts = f"{_count(metrics.num_llm_calls, 'turn')}, {_count(metrics.num_tool_calls, 'tool call')}"
    reward = "no reward" if completion.reward is None else f"reward {completion.reward:g}"
    yield f"{completion.status}: {counts}, {reward}, {metrics.total_latency_ms / 1000:.2f} s"
    if completion.failure:
        for frame in completion.failure.frames:
            yield _line(f"  {frame.file}:{frame.line} in {frame.function}: {frame.code}")


def _conversation(messages: Sequence[Mapping[str, Any]], latencies: Mapping[str, float]) -> Iterator[str]:
    results = [message for message in messages if message.get("role") == "tool"]
    paired: list[int] = []
    turn = 0
    for message in messages[:MOST_MESSAGES]:
        role = message.get("role")
        if role == "tool":
            if id(message) not in paired:
                yield from _text(f"tool ({message.get('tool_call_id')})", message.get("content"))
            continue
        turn += role == "assistant"
        label = f"{turn} assistant" if role == "assistant" else str(role)
        if message.get("content") or not message.get("tool_calls"):
            yield from _text(label, message.get("content"))
        for call in _dicts(message.get("tool_calls")):
            function = _dict(call.get("function"))
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
    if len(messages) > MOST_MESSAGES:
        yield f"... {len(messages) - MOST_MESSAGES} more messages"


def _text(label: str, content: Any) -> Iterator[str]:
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, default=str)
    first, *more = text.splitlines() or [""]
    yield _line(f"{label}: {first}")
    for line in more[: MOST_LINES - 1]:
        yield f"  {_line(line)}"
    if len(more) >= MOST_LINES:
        yield f"  ... {len(more) - MOST_LINES + 1} more lines"


def _line(text: str) -> str:
    from osmosis_grpc.types.completion import printable

    cut = text if len(text) <= MOST_CHARS else text[: MOST_CHARS - 4] + " ..."
    return printable(cut)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _dicts(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list | tuple) else []


def _dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
