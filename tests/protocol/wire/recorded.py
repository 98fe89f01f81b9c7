"""What a release puts on the wire and into a journal, recorded for later ones to read.

`python -m tests.protocol.wire.recorded` writes recorded/VERSION.json for this version; once that is released its file
is never written again.
"""

import base64
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.json_format import MessageToDict

from osmosis_grpc import __version__
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import chat_pb2, event_pb2, outcome_pb2, rollout_pb2
from osmosis_grpc.protocol.types import ChatPurpose, ChatRequest, TrajectoryEvent, events
from osmosis_grpc.protocol.wire.chat import chat_bytes, chat_from_wire, reply_bytes, reply_from_wire
from osmosis_grpc.protocol.wire.event import event_from_wire, event_to_wire, kind_from_bytes, kind_to_bytes
from osmosis_grpc.protocol.wire.outcome import outcome_from_wire, outcome_to_wire
from osmosis_grpc.protocol.wire.rollout import init_from_wire, init_to_wire
from tests.protocol.wire.test_event import COMPLETION, FIXTURES, INIT, RESPONSE, SPARSE, TOOL, USER

FOLDER = Path(__file__).with_name("recorded")
CHAT = ChatRequest(
    rollout_id="r",
    attempt=2,
    sample="judge",
    chat_number=3,
    messages=[USER, {"role": "assistant", "content": "5"}, USER],
    params={"temperature": 0.5, "min_p": 0.1},
    tools=[TOOL],
    purpose=ChatPurpose.JUDGE,
    policy="critic",
    parent_chat=2,
    prefix_len=2,
    state=b"s",
)
IMAGE = "data:image/png;base64," + base64.b64encode(bytes(range(256)) * 3).decode()
PICTURE: dict[str, Any] = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": IMAGE}}]}
SHOWN = events.ChatRequested(sample="main", chat_number=1, messages=[PICTURE])
PICTURED = ChatRequest(rollout_id="r", messages=[PICTURE])


class Form(NamedTuple):
    """A form that is recorded: its examples, and what a reader makes of them, as the bytes of a message again."""

    examples: Callable[[], Iterable[bytes]]
    again: Callable[[bytes], bytes]
    message: type[Any]


def journaled(number_and_body: bytes) -> bytes:
    """What a journal's row is read as, as the message of an event."""
    kind = kind_from_bytes(number_and_body[0], number_and_body[1:])
    return event_to_wire(TrajectoryEvent("r", 1, 1, 0.0, kind)).SerializeToString()


def chat_again(chat: ChatRequest) -> bytes:
    """The chat as it came: in full if it has the messages of the chat that it continues."""
    return chat_bytes(chat, delta=not chat.prefix_len)


FORMS = {
    "init": Form(
        lambda: [init_to_wire(INIT).SerializeToString()],
        lambda data: init_to_wire(init_from_wire(rollout_pb2.InitRequest.FromString(data))).SerializeToString(),
        rollout_pb2.InitRequest,
    ),
    "chat": Form(
        lambda: [chat_bytes(CHAT), chat_bytes(CHAT, delta=True), chat_bytes(PICTURED, blobs=True)],
        lambda data: chat_again(chat_from_wire(chat_pb2.ChatRequest.FromString(data))),
        chat_pb2.ChatRequest,
    ),
    "reply": Form(
        lambda: [reply_bytes(RESPONSE)],
        lambda data: reply_bytes(reply_from_wire(chat_pb2.ChatResponse.FromString(data))),
        chat_pb2.ChatResponse,
    ),
    "outcome": Form(
        lambda: [outcome_to_wire(COMPLETION, refer=refer).SerializeToString() for refer in (False, True)],
        lambda data: outcome_to_wire(
            outcome_from_wire(outcome_pb2.RolloutOutcome.FromString(data), "outcome"), refer=True
        ).SerializeToString(),
        outcome_pb2.RolloutOutcome,
    ),
    "event": Form(
        lambda: [event_to_wire(TrajectoryEvent("r", 1, 2, 3.5, kind)).SerializeToString() for kind in FIXTURES],
        lambda data: event_to_wire(event_from_wire(event_pb2.TrajectoryEvent.FromString(data))).SerializeToString(),
        event_pb2.TrajectoryEvent,
    ),
    "journal": Form(
        lambda: [bytes((number,)) + body for number, body in map(kind_to_bytes, [*FIXTURES, *SPARSE, SHOWN])],
        journaled,
        event_pb2.TrajectoryEvent,
    ),
}


def read(name: str, data: bytes) -> dict[str, Any]:
    """Returns the fields that this version reads from recorded bytes."""
    form = FORMS[name]
    told: dict[str, Any] = MessageToDict(form.message.FromString(form.again(data)), preserving_proto_field_name=True)
    return told


def main() -> None:
    rows = [
        {"form": name, "data": base64.b64encode(data).decode(), "read": read(name, data)}
        for name, form in FORMS.items()
        for data in form.examples()
    ]
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{__version__}.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
