"""trainer.proto: chats and completions between server and trainer."""

from collections.abc import Sequence

from osmosis_grpc._gen.osmosis.rollout.v1 import message_pb2
from osmosis_grpc._gen.osmosis.rollout.v1 import trainer_pb2 as pb
from osmosis_grpc.errors import InvalidArgument
from osmosis_grpc.types import jsontext
from osmosis_grpc.types.chat import ChatPurpose, ChatRequest, ChatResponse
from osmosis_grpc.types.completion import Outcome
from osmosis_grpc.types.requests import check_id
from osmosis_grpc.wire.message import (
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
from osmosis_grpc.wire.tokens import block_from_wire, block_to_wire, ids_to_wire, spans_from_wire, spans_to_wire

_PURPOSES = {ChatPurpose.POLICY: pb.CHAT_PURPOSE_POLICY, ChatPurpose.JUDGE: pb.CHAT_PURPOSE_JUDGE}
_PURPOSE_OF: dict[int, ChatPurpose] = {number: purpose for purpose, number in _PURPOSES.items()}
_PURPOSE_OF[pb.CHAT_PURPOSE_UNSPECIFIED] = ChatPurpose.POLICY
_OUTCOMES = {outcome: pb.CompleteOutcome.Value(f"COMPLETE_OUTCOME_{outcome}") for outcome in Outcome}
_OUTCOME_OF: dict[int, Outcome] = {number: outcome for outcome, number in _OUTCOMES.items()}


def chat_to_wire(request: ChatRequest) -> pb.ChatRequest:
    """A chat with its history in full."""
    return pb.ChatRequest(
        rollout_id=request.rollout_id,
        attempt=request.attempt,
        sample=request.sample,
        number=request.number,
        full=pb.FullHistory(messages=[message_to_wire(m) for m in request.messages]),
        tools=tools_to_wire(request.tools),
        sampling=params_to_wire(request.params) if request.params else None,
        purpose=_PURPOSES[request.purpose],
        state=request.state,
    )


def chat_from_wire(message: pb.ChatRequest, timeout: float | None = None) -> ChatRequest:
    """A chat, checked. Raises InvalidArgument naming the field."""
    check_id(message.rollout_id, "rollout_id")
    check_id(message.sample, "sample")
    if message.number == 0:
        raise InvalidArgument("number", "counts from 1")
    history = message.WhichOneof("history")
    if history is None:
        raise InvalidArgument("history", "is missing")
    if history == "delta":
        raise InvalidArgument("delta", "is not served by this trainer; send the history in full")
    return ChatRequest(
        rollout_id=message.rollout_id,
        attempt=message.attempt or 1,
        sample=message.sample,
        number=message.number,
        messages=messages_from_wire(message.full.messages, "full.messages"),
        tools=tools_from_wire(message.tools.tools, "tools.tools") if message.HasField("tools") else None,
        params=params_from_wire(message.sampling, "sampling"),
        purpose=purpose_from_wire(message.purpose),
        state=message.state,
        timeout=timeout,
    )


def tools_to_wire(tools: "Sequence[object] | None") -> message_pb2.Tools | None:
    """A chat's own tools, None for those of the rollout."""
    if tools is None:
        return None
    return message_pb2.Tools(tools=[tool_to_wire(tool) for tool in tools])  # type: ignore[arg-type]


def purpose_to_wire(purpose: ChatPurpose) -> pb.ChatPurpose.ValueType:
    """What a reply is for."""
    return _PURPOSES[purpose]


def purpose_from_wire(purpose: int) -> ChatPurpose:
    """What a reply is for. Raises InvalidArgument for one that is not known."""
    known = _PURPOSE_OF.get(purpose)
    if known is None:
        raise InvalidArgument("purpose", f"{purpose} is not a purpose")
    return known


def reply_to_wire(response: ChatResponse) -> pb.ChatResponse:
    """A reply."""
    return pb.ChatResponse(
        message=message_to_wire(response.message),
        finish_reason=response.finish_reason,
        usage=usage_to_wire(response.usage) if response.usage is not None else None,
        tokens=block_to_wire(response.tokens) if response.tokens is not None else None,
        prompt=ids_to_wire(response.prompt_ids) if response.prompt_ids is not None else None,
        prompt_prefix=response.prompt_prefix,
        versions=spans_to_wire(response.versions),
        extra_json=jsontext.render(response.extra) if response.extra else "",
    )


def reply_from_wire(message: pb.ChatResponse) -> ChatResponse:
    """A reply, checked. Raises InvalidArgument naming the field."""
    response = ChatResponse(
        message=message_from_wire(message.message, "message"),
        finish_reason=message.finish_reason,
        usage=usage_from_wire(message.usage, "usage") if message.HasField("usage") else None,
        tokens=block_from_wire(message.tokens, "tokens") if message.HasField("tokens") else None,
        prompt_ids=block_from_wire(message.prompt, "prompt").ids if message.HasField("prompt") else None,
        prompt_prefix=message.prompt_prefix,
        versions=spans_from_wire(message.versions),
        extra=jsontext.parse_object(message.extra_json, "extra_json"),
        size=message.ByteSize(),
    )
    response.check()
    return response


def outcome_to_wire(outcome: Outcome) -> pb.CompleteOutcome.ValueType:
    """What became of a completion."""
    return _OUTCOMES[outcome]


def outcome_from_wire(outcome: int) -> Outcome | None:
    """What became of a completion; None for an answer that says nothing."""
    return _OUTCOME_OF.get(outcome)
