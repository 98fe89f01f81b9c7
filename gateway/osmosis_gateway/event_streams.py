"""Reads the reply of an HTTP trainer, which is a stream of server-sent events or an object."""

from typing import Any

from osmosis_grpc.policies import event_streams
from osmosis_grpc.protocol.errors import InvalidArgument, OsmosisServerError, ReplyUnreadable
from osmosis_grpc.protocol.types import jsontext


def error_of(raw: bytes) -> OsmosisServerError | None:
    """Return the error of an answer that is a stream without a whole reply. Return None for every other answer.

    Such an answer is worth another try.
    """
    problem = event_streams.stream_problem(raw) if event_streams.is_stream(raw) else ""
    return OsmosisServerError(f"the trainer's stream {problem}") if problem else None


def read_stream(raw: bytes) -> dict[str, Any]:
    """Return the reply of a stream in the form of a reply that is not streamed. Raises ReplyUnreadable.

    An answer that is no stream is returned as it is.
    """
    try:
        if not event_streams.is_stream(raw):
            whole: dict[str, Any] = jsontext.parse_object(raw.decode(), "body")
            return whole
        return event_streams.read_stream(raw)
    except (KeyError, TypeError, ValueError, AttributeError, InvalidArgument) as error:
        raise ReplyUnreadable(f"the trainer's stream cannot be read: {type(error).__name__}: {error}") from None
