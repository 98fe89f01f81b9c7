"""Makes the ids of tool calls. An id is unique in its rollout, and the same wherever it is made.

The ids of their calls distinguish equal conversations of one rollout, for example of two sub-agents. For a call without
an id, the trainer and the agent server make the same one, so both have the same history.
"""

from dataclasses import replace
from hashlib import blake2b

from osmosis_grpc.protocol.types.chat import ChatRequest, ChatResponse


def call_prefix(request: ChatRequest) -> str:
    """Return the prefix of the ids of the calls in a reply. `_INDEX` follows, with an index from 0."""
    name = f"{request.rollout_id}\0{request.sample}\0{request.chat_number}"
    return f"call_{blake2b(name.encode(), digest_size=12).hexdigest()}"


def with_call_ids(response: ChatResponse, request: ChatRequest) -> ChatResponse:
    """Return a reply in which each tool call has an id that no other call of the reply has."""
    message: object = response.message  # a policy may return anything
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    if not isinstance(calls, list) or not calls:
        return response
    made, seen = [], set()
    for index, call in enumerate(calls):
        if isinstance(call, dict):
            given = call.get("id")
            if not isinstance(given, str) or not given or given in seen:
                call = {**call, "id": f"{call_prefix(request)}_{index}"}
            seen.add(call["id"])
        made.append(call)
    if all(one is other for one, other in zip(made, calls, strict=True)):
        return response
    return replace(response, message={**response.message, "tool_calls": made}, wire=b"")
