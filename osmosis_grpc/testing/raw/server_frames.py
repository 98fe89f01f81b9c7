"""Frames and messages of an agent server."""

from typing import Any

import grpc

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import (
    attach_pb2,
    chat_pb2,
    control_pb2,
    error_pb2,
    event_pb2,
    message_pb2,
    outcome_pb2,
    rollout_pb2,
    tokens_pb2,
)

HEARTBEAT = attach_pb2.ServerFrame(heartbeat=attach_pb2.Heartbeat())


def hello(**fields: Any) -> attach_pb2.ServerFrame:
    """Return the first frame of a stream. `fields` are fields of ServerHello, and must have `journal_id`."""
    default: dict[str, Any] = {
        "process_id": "raw",
        "version": "raw 1",
        "protocol_min": 1,
        "protocol_max": 1,
        "max_open_rollouts": 10,
        "agent_loops": ["talk"],
    }
    return attach_pb2.ServerFrame(hello=attach_pb2.ServerHello(**(default | fields)))


def accepted(request: rollout_pb2.InitRequest, *tools: message_pb2.Tool) -> attach_pb2.ServerFrame:
    """Accept the rollout of an Init."""
    response = rollout_pb2.InitResponse(
        rollout_id=request.rollout_id, attempt=request.attempt, tools=tools, created=True
    )
    return init_reply(request, response=response)


def init_reply(request: rollout_pb2.InitRequest, **result: Any) -> attach_pb2.ServerFrame:
    """Answer an Init with `response` or `status`."""
    reply = attach_pb2.InitReply(rollout_id=request.rollout_id, attempt=request.attempt, **result)
    return attach_pb2.ServerFrame(init_reply=reply)


def chat(request: rollout_pb2.InitRequest, number: int = 1, **fields: Any) -> attach_pb2.ServerFrame:
    """Send a chat. Its history is the rollout's own messages, unless `fields` has `full` or `delta`."""
    default: dict[str, Any] = {
        "rollout_id": request.rollout_id,
        "attempt": request.attempt,
        "sample": "main",
        "chat_number": number,
    }
    if not {"full", "delta"} & fields.keys():
        default["full"] = chat_pb2.FullHistory(messages=request.spec.messages)
    return attach_pb2.ServerFrame(chat=chat_pb2.ChatRequest(**(default | fields)))


def delta(parent_chat: int, *texts: str) -> chat_pb2.DeltaHistory:
    """Return a history as a delta, which has the number of the chat that it continues, and new user messages."""
    messages = [message_pb2.Message(role="user", text=text) for text in texts]
    return chat_pb2.DeltaHistory(parent_chat=parent_chat, messages=messages)


def complete(request: rollout_pb2.InitRequest, **fields: Any) -> attach_pb2.ServerFrame:
    """Report the end of a rollout. `fields` are fields of RolloutOutcome."""
    default: dict[str, Any] = {
        "rollout_id": request.rollout_id,
        "attempt": request.attempt,
        "result_id": f"result of {request.rollout_id}",
        "status": outcome_pb2.OUTCOME_STATUS_COMPLETED,
        "finish_reason": "stop",
    }
    outcome = outcome_pb2.RolloutOutcome(**(default | fields))
    return attach_pb2.ServerFrame(complete=outcome_pb2.CompleteRequest(outcome=outcome))


def referring(*chats: int, runs: tuple[int, ...]) -> dict[str, Any]:
    """Return fields of a RolloutOutcome that refer to these chats of the sample `main`. `runs` are the mask runs."""
    segment = tokens_pb2.Segment(chats=chats, mask_runs=runs)
    sample = tokens_pb2.Sample(name="main", trainable=True, segments=[segment], prefix_chat=chats[-1])
    return {"samples": [sample]}


def window(size: int) -> attach_pb2.ServerFrame:
    """Set how many rollouts may be open."""
    return attach_pb2.ServerFrame(window=attach_pb2.ServerWindow(max_open_rollouts=size))


def status(code: grpc.StatusCode, message: str = "no") -> error_pb2.Status:
    """Return a status, for a field of a frame."""
    return error_pb2.Status(code=code.value[0], message=message)


def event(name: str, number: int, rollout_id: str, **kind: Any) -> attach_pb2.ServerFrame:
    """Return an event for the subscription `name`. `kind` is one kind of TrajectoryEvent, as a field."""
    trajectory_event = event_pb2.TrajectoryEvent(rollout_id=rollout_id, attempt=1, event_number=number, **kind)
    response = control_pb2.StreamEventsResponse(event=trajectory_event)
    return attach_pb2.ServerFrame(event=attach_pb2.EventFrame(id=name, response=response))
