"""Formats a rollout's conversations for a terminal. conversation.py formats the messages of one conversation."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from osmosis_grpc.agent.tool_runs import ToolRun
from osmosis_grpc.cli.conversation import Conversation
from osmosis_grpc.cli.screen import Line, wrapped
from osmosis_grpc.protocol.types import ChatRequest, Message, RolloutOutcome, Sample
from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.records.reading.message_text import ToolEnd
from osmosis_grpc.records.reading.phrases import counted, reward_text

Chats = Sequence[tuple[ChatRequest, Message]]
Messages = Sequence[Mapping[str, Any]]
Numbers = Mapping[int, int] | None


def transcript(outcome: RolloutOutcome, runs: Sequence[ToolRun], chats: Chats = ()) -> Iterator[str]:
    """Yield the lines for an outcome's samples, and the lines for its end.

    `chats` are the requests with their replies. If the chats of a sample branch, each branch is shown separately.
    """
    timed = [run for run in runs if run.latency is not None]
    for name, sample in (outcome.samples or {"no chat": Sample()}).items():
        tools = {(0, run.call_id): ToolEnd(run.latency) for run in timed if run.sample in ("", name)}
        yield from sample_lines(name, sample, chats, Conversation(sample.messages, tools=tools))
        for line in reward_lines(sample, several=len(outcome.samples) > 1):
            yield printable(f"  {line}")
    metrics = outcome.metrics
    counts = f"{counted(metrics.num_llm_calls, 'turn')}, {counted(metrics.num_tool_calls, 'tool call')}"
    yield f"{outcome.status}: {counts}, {reward_text(outcome)}, {metrics.total_latency_ms / 1000:.2f} s"
    if outcome.failure:
        for frame in outcome.failure.frames:
            yield printable(f"  {frame.file}:{frame.line} in {frame.function}: {frame.code}")


def sample_lines(name: str, sample: Sample, chats: Chats, known: Conversation) -> Iterator[Line]:
    """Yield the lines of a sample's conversation, and of each of its branches.

    `chats` are the answered chats of all samples. `known` has the messages of the sample, and what else is known.
    """
    heading = f"conversation ({', '.join([name, *_origin(sample)])})"
    for piece in wrapped(heading, known.view.width):
        yield Line.of(piece, "head")
    for first, numbers, messages in _branches([chat for chat in chats if chat[0].sample == name], known.messages):
        if first > 1:
            yield Line.of(f"-- chat {first} begins another branch --", "note", 2)
        part = Conversation(messages, numbers, known.tools, known.notes, known.view)
        for line in part.lines():
            yield line.indented(2)


def _origin(sample: Sample) -> Iterator[str]:
    """Yield a sample's policy, its parent, and whether it is not trained on or was cut."""
    if sample.policy:
        yield f"policy {sample.policy}"
    if sample.parent is not None:
        chat = f" chat {sample.parent.chat_number}" if sample.parent.chat_number else ""
        yield f"from {sample.parent.sample}{chat}"
    if sample.train is False:
        yield "not trained on"
    if sample.cut:
        yield f"cut: {sample.cut}"


def reward_lines(sample: Sample, *, several: bool) -> Iterator[str]:
    """Yield the rewards of a sample and its chats. The last line of the transcript has a single sample's reward."""
    if (several and sample.reward is not None) or sample.reward_components:
        yield _graded(sample.reward, sample.reward_components)
    for chat in sample.chat_rewards:
        yield f"chat {chat.chat_number}: {_graded(chat.reward, chat.reward_components)}"


def _graded(reward: float | None, components: Mapping[str, float]) -> str:
    parts = ", ".join(f"{name} {value:g}" for name, value in components.items())
    return ("no reward" if reward is None else f"reward {reward:g}") + (f" ({parts})" if parts else "")


def _branches(chats: Chats, messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, Numbers, Messages]]:
    """Yield each branch: the number of its first chat, its replies, and the messages that begin there.

    The replies are the index of each reply with the number of its chat; None if no chat is known. `messages` is the
    conversation that the agent reported. It replaces the branch that it begins with.
    """
    begins: dict[int, int] = {}  # the newest chat of a branch to the branch's first chat
    known: dict[int, int] = {}  # the first chat of a branch to its number of messages that an earlier branch shows
    whole: dict[int, Messages] = {}
    replies: dict[int, dict[int, int]] = {}  # the first chat of a branch to the index and the number of each reply
    for request, reply in chats:
        number, history = request.chat_number, [*request.messages, reply]
        first = begins.pop(request.parent_chat, number)
        if first == number:
            known[first] = request.prefix_len
        begins[number], whole[first] = first, history
        replies.setdefault(first, {})[len(history) - 1] = number
    if not whole:
        yield 1, None, messages
        return
    for first in reversed(whole):
        if len(whole) == 1 or list(messages[: len(whole[first])]) == whole[first]:
            whole[first] = messages
            break
    for first, shown in whole.items():
        start = known[first] if len(whole) > 1 else 0
        numbers = {index - start: number for index, number in replies[first].items()}
        yield first if len(whole) > 1 else 1, numbers, shown[start:]
