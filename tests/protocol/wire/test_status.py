"""One table between exceptions and statuses: all sixteen codes, there and back, with their details."""

import grpc
import pytest
from google.protobuf.any_pb2 import Any
from google.rpc import error_details_pb2
from google.rpc.status_pb2 import Status
from hypothesis import given
from hypothesis import strategies as st

from osmosis_grpc.protocol import errors
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import error_pb2
from osmosis_grpc.protocol.errors import CallError, InvalidArgument
from osmosis_grpc.protocol.wire.status import CLASSES, from_code, to_status

CODES = {code.value[0]: code for code in grpc.StatusCode if code is not grpc.StatusCode.OK}
HEADER_BYTES = 8 * 1024
"""What gRPC takes as the headers of an answer; above it, some answers are refused, above twice that, all."""
OTHER_HEADERS = 512


def coded(kind: type[CallError]) -> set[type[CallError]]:
    """The classes below one that name a code of their own; a special case inherits its code."""
    below = kind.__subclasses__()
    return {each for each in below if "code" in vars(each)}.union(*(coded(each) for each in below))


def from_status(status):
    return from_code(status.code, status.message, status.details)


def trip(error: CallError) -> CallError:
    return from_status(Status.FromString(to_status(error).SerializeToString()))


def make(kind: type[CallError]) -> CallError:
    return kind("", "what went wrong") if kind is InvalidArgument else kind("what went wrong")


def test_every_code_has_one_class_and_every_class_one_code():
    assert set(CLASSES) == set(CODES) == set(range(1, 17))
    ours = {kind for kind in coded(CallError) if kind.__module__ == errors.__name__}
    assert set(CLASSES.values()) == ours
    assert len({kind.code for kind in ours}) == 16
    assert all(kind.code == code for code, kind in CLASSES.items())


@pytest.mark.parametrize("code", CODES)
def test_class_to_status_to_class(code):
    error = make(CLASSES[code])
    status = to_status(error)
    assert status.code == code
    assert status.message == "what went wrong"
    back = trip(error)
    assert type(back) is CLASSES[code]
    assert str(back) == "what went wrong"
    assert back.retry_after is None


@pytest.mark.parametrize("code", CODES)
def test_a_status_of_another_implementation_without_details(code):
    error = from_status(Status(code=code, message="no"))
    assert type(error) is CLASSES[code]
    assert str(error) == "no"


@pytest.mark.parametrize("code", [0, 17, 99, -1])
def test_an_unknown_code_is_an_unknown_error(code):
    assert type(from_code(code, "what")) is errors.UnknownError


@pytest.mark.parametrize("code", [8, 14, 4, 2])
def test_retry_after_survives(code):
    error = CLASSES[code]("busy", retry_after=1.25)
    assert trip(error).retry_after == 1.25
    assert trip(CLASSES[code]("busy", retry_after=0.0)).retry_after == 0.0


DETAILED = [
    (InvalidArgument("a.b[0]", "is bad", [("c", "is worse"), ("", "as a whole")]), ["violations"]),
    (errors.NotFound("no rollout", kind="rollout", name="r-1"), ["kind", "name"]),
    (errors.AlreadyExists("taken", rollout_id="r-1", attempt=3), ["rollout_id", "attempt"]),
    (errors.Aborted("newer", rollout_id="r-1", attempt=4), ["rollout_id", "attempt"]),
    (errors.OutOfRange("gone", first_event_number=2**60, first_cursor="j:5"), ["first_event_number", "first_cursor"]),
    (errors.FailedPrecondition("no chat", kind="UNKNOWN_CHAT", subject="main/3"), ["kind", "subject"]),
]


@pytest.mark.parametrize(("error", "names"), DETAILED, ids=[type(error).__name__ for error, _ in DETAILED])
def test_details_survive(error, names):
    error.retry_after = 2.5
    back = trip(error)
    assert str(back) == str(error)
    assert [getattr(back, name) for name in names] == [getattr(error, name) for name in names]
    assert back.retry_after == 2.5


def test_details_are_standard_messages_if_one_fits():
    """Another implementation reads them without knowing this one."""
    kinds = [
        error_details_pb2.BadRequest,
        error_details_pb2.ResourceInfo,
        error_pb2.CurrentAttempt,
        error_pb2.CurrentAttempt,
        error_pb2.EventsGone,
        error_details_pb2.PreconditionFailure,
    ]
    for (error, _), kind in zip(DETAILED, kinds, strict=True):
        (first, *_rest) = to_status(error).details
        assert first.Is(kind.DESCRIPTOR), kind
        assert first.type_url == f"type.googleapis.com/{kind.DESCRIPTOR.full_name}"


def test_every_kind_of_detail_at_once():
    """Details that do not belong to the code are passed over."""
    status = Status(code=5, message="no")
    for detail in (
        error_details_pb2.ResourceInfo(resource_type="rollout", resource_name="r"),
        error_details_pb2.BadRequest(field_violations=[{"field": "x", "description": "y"}]),
        error_details_pb2.Help(),
        error_pb2.EventsGone(first_event_number=3),
    ):
        status.details.add().Pack(detail)
    error = from_status(status)
    assert isinstance(error, errors.NotFound)
    assert (error.kind, error.name) == ("rollout", "r")


@pytest.mark.parametrize(
    ("code", "type_name"),
    [
        (3, "google.rpc.BadRequest"),
        (8, "google.rpc.RetryInfo"),
        (10, "osmosis.rollout.v1.CurrentAttempt"),
        (3, "unknown.Detail"),
    ],
)
def test_details_that_cannot_be_read_leave_the_code(code, type_name):
    bad = Any(type_url=f"type.googleapis.com/{type_name}", value=b"\xff\xff\xff")
    error = from_status(Status(code=code, message="no", details=[bad, Any(), Any(type_url="x", value=b"\xff")]))
    assert type(error) is CLASSES[code]


LONG = [
    errors.Internal("x" * 10**6),
    errors.Internal("字" * 10**5),
    InvalidArgument("f" * 10**5, "p" * 10**5, [("f" * 1000, "字" * 10**5)] * 100),
    errors.NotFound("x" * 10**5, kind="agent_loop", name="x" * 10**6),
    errors.AlreadyExists("x" * 10**5, rollout_id="字" * 256, attempt=1),
    errors.FailedPrecondition("x" * 10**5, kind="UNKNOWN_CHAT", subject="x" * 10**6),
]


@pytest.mark.parametrize("error", LONG, ids=lambda error: f"{type(error).__name__}-{str(error)[:1]}")
def test_long_texts_are_cut(error):
    """A status rides in headers, its text twice; headers that are too long become RESOURCE_EXHAUSTED."""
    status = to_status(error)
    assert len(status.message) <= 1000
    assert status.message.startswith(str(error)[:200])
    assert len(status.message.encode()) + status.ByteSize() + OTHER_HEADERS < HEADER_BYTES
    assert type(trip(error)) is type(error)


def test_a_violation_keeps_its_field_when_it_is_cut():
    field, problem = trip(InvalidArgument("messages[3].content", "x" * 5000)).violations[0]
    assert field == "messages[3].content"
    assert 100 < len(problem) <= 1000


TEXT = st.text(max_size=20) | st.sampled_from(["\ud800", "a\x00b"])


@given(TEXT, TEXT, st.none() | st.floats())
def test_any_error_has_a_status(text, more, retry_after):
    """What an agent or a policy put into an error never makes the answer fail."""
    for error in (
        InvalidArgument(text, more),
        errors.NotFound(text, kind=more or "x", name=text),
        errors.FailedPrecondition(text, kind=more or "x", subject=text),
        errors.ResourceExhausted(text),
    ):
        assert type(trip(error)) is type(error)
    assert trip(errors.ResourceExhausted("busy", retry_after=retry_after)).code == 8
