"""Frames and messages of a trainer."""

from typing import Any

import grpc

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import (
    attach_pb2,
    chat_pb2,
    control_pb2,
    error_pb2,
    message_pb2,
    outcome_pb2,
    rollout_pb2,
)

HEARTBEAT = attach_pb2.TrainerFrame(heartbeat=attach_pb2.Heartbeat())


def hello(**fields: Any) -> attach_pb2.TrainerFrame:
    """Return the first frame of a stream. `fields` are fields of TrainerHello, and must have `attachment_id`."""
    default: dict[str, Any] = {
        "process_id": "raw",
        "version": "raw 1",
        "protocol_min": 1,
        "protocol_max": 1,
        "max_open_chats": 100,
    }
    return attach_pb2.TrainerFrame(hello=attach_pb2.TrainerHello(**(default | fields)))


def init(rollout_id: str, *, turns: int = 1, agent_loop: str = "talk", **fields: Any) -> attach_pb2.TrainerFrame:
    """Start a rollout. Its metadata has `turns`. `fields` are further fields of InitRequest or of its spec."""
    question = message_pb2.Message(role="user", text="How are you?")
    spec = rollout_pb2.RolloutSpec(agent_loop=agent_loop, messages=[question], metadata_json=f'{{"turns": {turns}}}')
    own = {name: fields.pop(name) for name in rollout_pb2.RolloutSpec.DESCRIPTOR.fields_by_name if name in fields}
    spec.MergeFrom(rollout_pb2.RolloutSpec(**own))
    request = rollout_pb2.InitRequest(rollout_id=rollout_id, spec=spec)
    request.MergeFrom(rollout_pb2.InitRequest(**fields))
    return attach_pb2.TrainerFrame(init=request)


def reply(text: str) -> chat_pb2.ChatResponse:
    """Return a chat's response without tokens."""
    message = message_pb2.Message(role="assistant", text=text)
    return chat_pb2.ChatResponse(message=message, finish_reason="stop")


def chat_reply(chat: chat_pb2.ChatRequest, **result: Any) -> attach_pb2.TrainerFrame:
    """Answer a chat with `response` or `status`."""
    return attach_pb2.TrainerFrame(
        chat_reply=attach_pb2.ChatReply(
            rollout_id=chat.rollout_id, attempt=chat.attempt, sample=chat.sample, chat_number=chat.chat_number, **result
        )
    )


def recorded(outcome: outcome_pb2.RolloutOutcome) -> attach_pb2.TrainerFrame:
    """Answer an outcome with RECORDED."""
    return attach_pb2.TrainerFrame(
        complete_reply=attach_pb2.CompleteReply(
            rollout_id=outcome.rollout_id,
            attempt=outcome.attempt,
            result_id=outcome.result_id,
            receipt=outcome_pb2.RECEIPT_RECORDED,
        )
    )


def cancel(name: str, **request: Any) -> attach_pb2.TrainerFrame:
    """Cancel rollouts. `request` has the fields of CancelRequest."""
    ask = attach_pb2.CancelFrame(id=name, request=control_pb2.CancelRequest(**request))
    return attach_pb2.TrainerFrame(cancel=ask)


def subscribe(name: str, rollout_id: str, *, tokens: bool = False, **request: Any) -> attach_pb2.TrainerFrame:
    """Follow a rollout's events. `request` has further fields of StreamEventsRequest."""
    wanted = control_pb2.StreamEventsRequest(rollout_id=rollout_id, **request)
    return attach_pb2.TrainerFrame(subscribe=attach_pb2.Subscribe(id=name, request=wanted, tokens=tokens))


def window(size: int) -> attach_pb2.TrainerFrame:
    """Set how many chats may be open."""
    return attach_pb2.TrainerFrame(window=attach_pb2.TrainerWindow(max_open_chats=size))


def unknown_chat(chat: chat_pb2.ChatRequest) -> error_pb2.Status:
    """Return the status of a trainer that does not know the chat to which a delta refers."""
    status = error_pb2.Status(code=grpc.StatusCode.FAILED_PRECONDITION.value[0], message="no such chat")
    status.details.add().Pack(error_pb2.UnknownChat(sample=chat.sample, chat_number=chat.delta.parent_chat))
    return status
