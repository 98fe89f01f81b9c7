"""chat.proto: chats between server and trainer, and the receipt of an outcome."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from sys import intern
from typing import Any

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import chat_pb2 as pb
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import message_pb2, outcome_pb2
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import jsontext
from osmosis_grpc.protocol.types.chat import ChatPurpose, ChatRequest, ChatResponse
from osmosis_grpc.protocol.types.extras import Extras
from osmosis_grpc.protocol.types.outcome import Receipt
from osmosis_grpc.protocol.types.requests import check_id, check_policy_name
from osmosis_grpc.protocol.types.tokens import Ids
from osmosis_grpc.protocol.wire.field_conversion import EnumNames
from osmosis_grpc.protocol.wire.message import (
    frozen_bytes,
    message_from_wire,
    message_to_wire,
    messages_from_wire,
    params_from_wire,
    params_to_wire,
    tool_to_wire,
    tools_from_wire,
    usage_from_wire,
    usage_to_wire,
)
from osmosis_grpc.protocol.wire.protobuf_encoding import head, repeated, varint
from osmosis_grpc.protocol.wire.tokens import (
    array_bytes,
    block_bytes,
    block_from_wire,
    extra_bytes,
    prompt_from_wire,
    spans_from_wire,
    spans_to_wire,
)

PURPOSES = EnumNames(ChatPurpose, pb.ChatPurpose, "a purpose")
PURPOSES.names[pb.CHAT_PURPOSE_UNSPECIFIED] = ChatPurpose.POLICY
RECEIPTS = EnumNames(Receipt, outcome_pb2.Receipt, "a receipt")
_TOKENS, _PROMPT = 4, 5  # the fields of ChatResponse that have arrays
_FULL, _DELTA = 5, 6  # the fields of ChatRequest that have a history
_FULL_MESSAGES, _FULL_PARENT, _FULL_PREFIX = 1, 2, 3  # the fields of FullHistory
_DELTA_PARENT, _DELTA_MESSAGES = 1, 2  # the fields of DeltaHistory
_FORKED_PREFIX = pb.ChatRequest.DESCRIPTOR.fields_by_name["forked_prefix"].number
_PREFIX_TOKENS, _PREFIX_MESSAGES = 1, 2  # the fields of ForkedPrefix
_NO_PROMPT: tuple[Ids | None, Extras] = None, jsontext.NOTHING
_NUMBER = pb.ChatRequest.DESCRIPTOR.fields_by_name["chat_number"].number


def chat_bytes(request: ChatRequest, *, delta: bool = False, all_tools: bool = True, blobs: bool = False) -> bytes:
    """Return a serialized chat. The messages must not change afterwards.

    With `delta`, a chat that continues an earlier chat has only the messages after that chat's reply. Without
    `all_tools`, the tools are left out if they are the rollout's tools. With `blobs`, long data URLs become blobs; the
    receiver must have the feature `blobs`.
    """
    parts = [
        _name(request.rollout_id, request.attempt, request.sample, request.purpose, request.policy),
        varint(_NUMBER, request.chat_number),
    ]
    tools = request.tools if all_tools or request.tools_overridden else None
    if tools is not None or request.params or request.state:
        rest = pb.ChatRequest(
            sampling=params_to_wire(request.params) if request.params else None,
            tools=tools_to_wire(tools),
            state=request.state,
        )
        parts.append(rest.SerializeToString())
    if delta and request.parent_chat:
        parent_chat = varint(_DELTA_PARENT, request.parent_chat)
        new = repeated(_DELTA_MESSAGES, frozen_bytes(request.messages[request.prefix_len :], blobs=blobs))
        parts += (head(_DELTA, len(parent_chat) + len(new)), parent_chat, new)
    else:
        whole = repeated(_FULL_MESSAGES, frozen_bytes(request.messages, blobs=blobs))
        if request.parent_chat:
            whole += varint(_FULL_PARENT, request.parent_chat) + varint(_FULL_PREFIX, request.prefix_len)
        elif request.prefix_len:
            parts.append(_forked_prefix(request))
        parts += (head(_FULL, len(whole)), whole)
    return b"".join(parts)


def _forked_prefix(request: ChatRequest) -> bytes:
    """Return the serialized field `forked_prefix` of a chat that continues a recorded chat of the original."""
    prefix = varint(_PREFIX_MESSAGES, request.prefix_len)
    if request.known_ids is not None:
        ids = array_bytes(request.known_ids)
        prefix = head(_PREFIX_TOKENS, len(ids)) + ids + prefix
    return head(_FORKED_PREFIX, len(prefix)) + prefix


@lru_cache(1024)
def _name(rollout_id: str, attempt: int, sample: str, purpose: ChatPurpose, policy: str) -> bytes:
    """Return serialized fields. The chats of a sample with the same purpose begin with these bytes."""
    number = PURPOSES.numbers[purpose]
    name = pb.ChatRequest(rollout_id=rollout_id, attempt=attempt, sample=sample, purpose=number, policy=policy)
    return name.SerializeToString()


def chat_from_wire(
    message: pb.ChatRequest, timeout: float | None = None, credential: str = "", *, keep: bool = False
) -> ChatRequest:
    """Return a checked chat. A delta has only the new messages. With `keep` the chat also has its bytes.

    Raises InvalidArgument naming the field.
    """
    check_id(message.rollout_id, "rollout_id")
    check_id(message.sample, "sample")
    if message.chat_number == 0:
        raise InvalidArgument("chat_number", "counts from 1")
    history = message.WhichOneof("history")
    if history is None:
        raise InvalidArgument("history", "is missing")
    given: pb.FullHistory | pb.DeltaHistory
    if history == "delta":
        given, parent_chat, prefix = message.delta, message.delta.parent_chat, 0
        if not parent_chat:
            raise InvalidArgument("delta.parent_chat", "counts from 1")
    else:
        given, parent_chat, prefix = message.full, message.full.parent_chat, message.full.prefix_messages
        if bool(parent_chat) is not bool(prefix) or prefix > len(given.messages):
            raise InvalidArgument("full.prefix_messages", "is set with parent_chat, and at most the number of messages")
    known_ids = None
    if message.HasField("forked_prefix"):
        prefix = message.forked_prefix.messages
        if message.forked_prefix.HasField("tokens"):
            known_ids, _ = prompt_from_wire(message.forked_prefix.tokens, "forked_prefix.tokens")
        if parent_chat or prefix > len(given.messages):
            raise InvalidArgument("forked_prefix", "goes with a full history without parent_chat that has its messages")
    return ChatRequest(
        rollout_id=message.rollout_id,
        attempt=message.attempt or 1,
        sample=message.sample,
        chat_number=message.chat_number,
        messages=messages_from_wire(given.messages, f"{history}.messages"),
        parent_chat=parent_chat,
        prefix_len=prefix,
        known_ids=known_ids,
        tools=tools_from_wire(message.tools.tools, "tools.tools") if message.HasField("tools") else None,
        tools_overridden=message.HasField("tools"),
        params=params_from_wire(message.sampling, "sampling") if message.HasField("sampling") else {},
        purpose=PURPOSES.read(message.purpose, "purpose"),
        policy=check_policy_name(message.policy, "policy") if message.policy else "",
        state=message.state,
        credential=credential,
        timeout=timeout,
        wire=message.SerializeToString() if keep else b"",
    )


_ENCODED_TOOLS = 256
_encoded_tools: dict[int, tuple[Sequence[Mapping[str, Any]], message_pb2.Tools]] = {}
"""The tools that were encoded last, by the id of their list. An entry keeps its list alive."""


def tools_to_wire(tools: Sequence[Mapping[str, Any]] | None) -> message_pb2.Tools | None:
    """Return a chat's own tools as a message; None if it uses the rollout's tools. The tools must not change later."""
    if tools is None:
        return None
    known = _encoded_tools.get(id(tools))
    if known is not None:
        return known[1]
    encoded = message_pb2.Tools(tools=[tool_to_wire(tool) for tool in tools])
    if len(_encoded_tools) >= _ENCODED_TOOLS:
        _encoded_tools.pop(next(iter(_encoded_tools)), None)  # loops of several threads encode
    _encoded_tools[id(tools)] = tools, encoded
    return encoded


def reply_bytes(response: ChatResponse) -> bytes:
    """Return a serialized reply. Its arrays are copied once."""
    rest = pb.ChatResponse(
        message=message_to_wire(response.message),
        finish_reason=response.finish_reason,
        usage=usage_to_wire(response.usage) if response.usage is not None else None,
        prompt_prefix=response.prompt_prefix,
        versions=spans_to_wire(response.versions) if response.versions else (),
        extra_json=jsontext.render(response.extra) if response.extra else "",
    )
    parts = [rest.SerializeToString()]
    if response.tokens is not None:
        tokens = block_bytes(response.tokens)
        parts += [head(_TOKENS, len(tokens)), tokens]
    if response.prompt_ids is not None:
        prompt = array_bytes(response.prompt_ids) + extra_bytes(response.prompt_extras)
        parts += [head(_PROMPT, len(prompt)), prompt]
    return b"".join(parts)


def reply_from_wire(message: pb.ChatResponse, *, keep: bool = False) -> ChatResponse:
    """Return a checked reply. With `keep` the reply also has its bytes. Raises InvalidArgument naming the field."""
    finish_reason, data = message.finish_reason, message.SerializeToString() if keep else b""
    prompt_ids, prompt_extras = prompt_from_wire(message.prompt, "prompt") if message.HasField("prompt") else _NO_PROMPT
    response = ChatResponse(
        message=message_from_wire(message.message, "message"),
        finish_reason=intern(finish_reason) if len(finish_reason) < 16 else finish_reason,
        usage=usage_from_wire(message.usage, "usage") if message.HasField("usage") else None,
        tokens=block_from_wire(message.tokens, "tokens") if message.HasField("tokens") else None,
        prompt_ids=prompt_ids,
        prompt_extras=prompt_extras,
        prompt_prefix=message.prompt_prefix,
        versions=spans_from_wire(message.versions) if message.versions else (),
        extra=jsontext.parse_object(message.extra_json, "extra_json"),
        size=len(data) if keep else message.ByteSize(),
        wire=data,
    )
    response.check(arrays=False)
    return response
