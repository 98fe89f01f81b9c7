"""attach.proto: frames as bytes, and the checks of the two hellos.

Each frame is serialized once and alone. The bytes of a message are the joined bytes of its frames. So no frame is first
copied into a repeated field, and the sender knows the size of each frame.
"""

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import attach_pb2 as pb
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import control_pb2, error_pb2, outcome_pb2
from osmosis_grpc.protocol.errors import CallError, FailedPrecondition, InvalidArgument
from osmosis_grpc.protocol.types import RolloutOutcome
from osmosis_grpc.protocol.types.jsontext import check_text
from osmosis_grpc.protocol.wire.control import PROTOCOL
from osmosis_grpc.protocol.wire.outcome import referring_bytes
from osmosis_grpc.protocol.wire.outcome_size import MAX_OUTCOME_BYTES, cut_to_limit
from osmosis_grpc.protocol.wire.protobuf_encoding import head
from osmosis_grpc.protocol.wire.rollout import wants_delta
from osmosis_grpc.protocol.wire.status import from_code, to_status

ATTACHMENT_ID_CHARS = (16, 256)
DEFAULT_WINDOW = 1024
"""The window of a side whose hello has none."""
_FRAMES = 1  # the field of the four messages that hold frames
_TRAINER = {field.name: field.number for field in pb.TrainerFrame.DESCRIPTOR.fields}
_OUTCOME = outcome_pb2.CompleteRequest.DESCRIPTOR.fields_by_name["outcome"].number
_RESPONSE = pb.ChatReply.DESCRIPTOR.fields_by_name["response"].number
_SERVER = {field.name: field.number for field in pb.ServerFrame.DESCRIPTOR.fields}


def trainer_frame(kind: str, message: Message) -> bytes:
    """Return the bytes of a trainer's frame, to be joined with others."""
    return _joined(_TRAINER[kind], message.SerializeToString())


def server_frame(kind: str, message: Message) -> bytes:
    """Return the bytes of an agent server's frame, to be joined with others."""
    return _joined(_SERVER[kind], message.SerializeToString())


def chat_frame(chat: bytes) -> bytes:
    """Return the frame of a chat. chat_bytes() has serialized the chat."""
    return _joined(_SERVER["chat"], chat)


def complete_frame(outcome: RolloutOutcome, *, blobs: bool = False) -> bytes:
    """Return the frame of an outcome that refers to its chats, cut to MAX_OUTCOME_BYTES.

    `blobs` is that of message_to_wire().
    """
    report = referring_bytes(outcome, blobs=blobs)
    if len(report) > MAX_OUTCOME_BYTES:
        report = cut_to_limit(outcome_pb2.RolloutOutcome.FromString(report)).SerializeToString()
    return _joined(_SERVER["complete"], head(_OUTCOME, len(report)) + report)


def _joined(number: int, body: bytes) -> bytes:
    inner = head(number, len(body))
    return b"".join((head(_FRAMES, len(inner) + len(body)), inner, body))


def chat_reply_frame(rollout_id: str, attempt: int, sample: str, number: int, reply: bytes | CallError) -> bytes:
    """Return the frame that answers a chat. `reply` is an error, or the bytes that reply_bytes() returned."""
    message = pb.ChatReply(rollout_id=rollout_id, attempt=attempt, sample=sample, chat_number=number)
    if isinstance(reply, CallError):
        message.status.CopyFrom(refusal(reply))
        return trainer_frame("chat_reply", message)
    name = message.SerializeToString()
    within = head(_RESPONSE, len(reply))
    inner = head(_TRAINER["chat_reply"], len(name) + len(within) + len(reply))
    length = len(inner) + len(name) + len(within) + len(reply)
    return b"".join((head(_FRAMES, length), inner, name, within, reply))


def unknown_kind(frame: Message) -> pb.UnknownFrame:
    """Return the answer to a frame of a kind that this version does not know.

    Raises InvalidArgument for an empty frame.
    """
    fields = UnknownFieldSet(frame)
    if not len(fields):
        raise InvalidArgument("frames.frame", "is unset")
    return pb.UnknownFrame(frame_number=fields[0].field_number)


def refusal(error: CallError) -> error_pb2.Status:
    """Return an error as the status of a frame. Its bytes equal those of google.rpc.Status."""
    status = error_pb2.Status()
    status.MergeFromString(to_status(error).SerializeToString())
    return status


def refused(status: error_pb2.Status) -> CallError:
    """Return the exception for the status of a frame."""
    return from_code(status.code, status.message, status.details)


def check_trainer_hello(hello: pb.TrainerHello) -> None:
    """Raise InvalidArgument naming a bad field. Raises FailedPrecondition if the sides share no protocol version."""
    least, most = ATTACHMENT_ID_CHARS
    if not least <= len(hello.attachment_id) <= most:
        raise InvalidArgument(
            "hello.attachment_id", f"has {len(hello.attachment_id)} characters, not {least} to {most}"
        )
    check_text(hello.attachment_id, "hello.attachment_id")
    if not hello.attachment_id.isprintable():
        raise InvalidArgument("hello.attachment_id", "has a control character")
    wants_delta(hello.history, "hello.history", default=True)
    check_protocol(hello)


def window_of(hello: pb.TrainerHello | pb.ServerHello) -> int:
    """Return how many chats or rollouts the sender of a hello allows to be open. 0 pauses."""
    if isinstance(hello, pb.TrainerHello):
        return hello.max_open_chats if hello.HasField("max_open_chats") else DEFAULT_WINDOW
    return hello.max_open_rollouts if hello.HasField("max_open_rollouts") else DEFAULT_WINDOW


def check_protocol(hello: pb.TrainerHello | pb.ServerHello | control_pb2.GetServerInfoResponse) -> None:
    """Raise FailedPrecondition if the two sides share no protocol version."""
    least, most = PROTOCOL
    if hello.protocol_min > most or hello.protocol_max < least:
        raise FailedPrecondition(
            f"protocol versions {hello.protocol_min} to {hello.protocol_max} are not spoken here, "
            f"but {least} to {most}",
            kind="PROTOCOL",
            subject=f"{least}-{most}",
        )
