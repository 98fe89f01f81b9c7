"""Converts requests, chats and outcomes to the rows of a ledger, and back."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import chat_pb2, message_pb2, outcome_pb2, rollout_pb2
from osmosis_grpc.protocol.types import ChatRequest, InitRequest, RolloutOutcome, RolloutRequest, ToolDict
from osmosis_grpc.protocol.wire.chat import chat_bytes, chat_from_wire, reply_bytes, reply_from_wire
from osmosis_grpc.protocol.wire.message import tools_from_wire
from osmosis_grpc.protocol.wire.outcome import outcome_from_wire
from osmosis_grpc.protocol.wire.rollout import init_from_wire, init_to_wire
from osmosis_grpc.storage.ledger import ChatRow, LedgerRollout
from osmosis_grpc.trainer.chats.sample_state import PendingChat, SampleState

Samples = dict[str, SampleState]


def question_of(received: ChatRequest, parent_chat: int) -> bytes:
    """Return the bytes of a received chat if the ledger can store them unchanged; otherwise b"".

    That is so if the chat has only the messages after the reply of `parent_chat`, and no field that the row omits.
    """
    more = received.prefix_len or received.tools_overridden or received.state
    return b"" if more or received.parent_chat != parent_chat else received.wire


def kept_chat(request: ChatRequest, asked: PendingChat) -> ChatRow:
    """Return the ledger's row for an answered chat: the question as a delta, and the reply as bytes."""
    return ChatRow(
        request.rollout_id,
        request.attempt,
        request.sample,
        request.chat_number,
        asked.parent_chat,
        asked.body[2],
        request.wire or _question(request),
        reply_bytes(asked.kept()),
    )


def _question(request: ChatRequest) -> bytes:
    if request.state or request.tools_overridden:
        request = replace(request, state=b"", tools=None, tools_overridden=False)
    if request.prefix_len and not request.parent_chat:  # a fork, whose prompt has the tokens of the original
        request = replace(request, prefix_len=0, known_ids=None)
    return chat_bytes(request, delta=True, all_tools=False, blobs=True)


def learn(samples: Samples, chats: Iterable[ChatRow]) -> None:
    """Add chats to their samples, in the order of their answers."""
    for chat in chats:
        question = chat_from_wire(chat_pb2.ChatRequest.FromString(chat.question))
        reply = reply_from_wire(chat_pb2.ChatResponse.FromString(chat.reply))
        sample = samples.get(chat.sample)
        if sample is None:
            sample = samples[chat.sample] = SampleState(chat.sample)
        sample.learn(question, chat.parent_chat, chat.offered, reply)


def all_chats(rollout_id: str, attempt: int, samples: Samples) -> Iterator[ChatRow]:
    """Yield the answered chats of an attempt in the order of their numbers, with full histories."""
    for name, sample in samples.items():
        for number, asked in sorted(sample.asked.items()):
            if asked.response is not None:
                node, params, _, purpose, policy = asked.body
                question = ChatRequest(
                    rollout_id=rollout_id,
                    attempt=attempt,
                    sample=name,
                    chat_number=number,
                    messages=sample.tree.messages(node),
                    params=json.loads(params),
                    purpose=purpose,
                    policy=policy,
                    tools_overridden=False,
                )
                yield kept_chat(question, asked)


def outcome_of(kept: LedgerRollout) -> RolloutOutcome:
    return outcome_from_wire(outcome_pb2.RolloutOutcome.FromString(kept.outcome or b""), "outcome")


def request_of(kept: LedgerRollout) -> RolloutRequest:
    return init_from_wire(rollout_pb2.InitRequest.FromString(kept.init or b"")).request


def init_bytes(request: RolloutRequest) -> bytes:
    """Return a request as the ledger stores it. Equal requests have equal bytes."""
    init = init_to_wire(InitRequest(request=request), secrets=False, blobs=True)
    return init.SerializeToString(deterministic=True)


def tools_of(kept: LedgerRollout) -> list[ToolDict] | None:
    """Return the tools in the answer to a rollout's Init; None without an answer."""
    if kept.tools is None:
        return None
    return tools_from_wire(message_pb2.Tools.FromString(kept.tools).tools, "tools")
