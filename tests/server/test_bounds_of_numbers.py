"""Every number of a request has bounds: the largest and the smallest of the wire are no errors of the server."""

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from osmosis_grpc.policies import ToolCallingMock
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import annotation_pb2, control_pb2, message_pb2, rollout_pb2
from osmosis_grpc.protocol._gen.osmosis.rollout.v1.services_pb2_grpc import RolloutServiceStub
from osmosis_grpc.server import AgentServer
from osmosis_grpc.testing.calculator import CalculatorAgent
from osmosis_grpc.trainer import Trainer
from tests.server.test_bad_input import changed, refused, violations

NUMBERS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
LEFT = {"osmosis.rollout.v1.Message", "osmosis.rollout.v1.SegmentAnnotation"}
"""Messages without numbers that reach the server's own state."""


def numbers(descriptor, path=()):
    """Yield the path of each number in a message, with its smallest and largest value."""
    for field in descriptor.fields:
        here = (*path, field.name)
        if field.message_type and field.message_type.full_name not in LEFT:
            yield from numbers(field.message_type, here)
        elif field.cpp_type in NUMBERS and not field.is_repeated and field.enum_type is None:
            yield from ((here, number) for number in NUMBERS[field.cpp_type])


def with_number(request, path, number):
    part = request
    for name in path[:-1]:
        part = getattr(part, name)
    setattr(part, path[-1], number)
    return request


def good(kind):
    """A request that is valid without its numbers."""
    name = kind.DESCRIPTOR.name
    if name == "InitRequest":
        return kind(rollout_id="r", spec=rollout_pb2.RolloutSpec(messages=[message_pb2.Message(role="user", text="x")]))
    if name == "AnnotateRequest":
        return kind(rollout_id="known", annotation=annotation_pb2.Annotation(id="a"))
    return kind(**({} if name == "ListRolloutsRequest" else {"rollout_id": "known"}))


KINDS = {
    "Init": rollout_pb2.InitRequest,
    "Cancel": control_pb2.CancelRequest,
    "GetRollout": control_pb2.GetRolloutRequest,
    "ListRollouts": control_pb2.ListRolloutsRequest,
    "StreamEvents": control_pb2.StreamEventsRequest,
    "Annotate": annotation_pb2.AnnotateRequest,
}
CASES = [(method, path, number) for method, kind in KINDS.items() for path, number in numbers(kind.DESCRIPTOR)]


@pytest.fixture
async def server(stack, tmp_path):
    """A server whose journal is in SQLite."""
    return await stack.enter_async_context(AgentServer([CalculatorAgent()], port=0, state_dir=tmp_path))


async def test_no_number_of_a_request_is_an_error_of_the_server(server, train):
    trainer = await train(ToolCallingMock())
    async with Trainer([server.address], ToolCallingMock()) as own:
        await own.rollout(rollout_id="known", messages=[{"role": "user", "content": "What is 1 + 1?"}])
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub = RolloutServiceStub(channel)
        failed = []
        for index, (method, path, number) in enumerate(CASES):
            request = good(KINDS[method])
            if method == "Init":
                request.rollout_id = f"r{index}"
                request.callback.target = trainer.address
                request.callback.credential = trainer.callback().credential
            with_number(request, path, number)
            call = getattr(stub, method)(request)
            try:
                await (call.read() if method == "StreamEvents" else call)
            except grpc.aio.AioRpcError as error:
                if error.code().name not in ("INVALID_ARGUMENT", "NOT_FOUND"):
                    failed.append((method, path, number, error.code().name))
        assert not failed


@pytest.mark.parametrize("seconds", [2**63 - 1, 10**15, -1])
async def test_an_interval_of_pings_that_is_none_is_refused_by_name(server, train, seconds):
    trainer = await train(ToolCallingMock())
    request = changed()(trainer)
    request.callback.min_ping_interval.CopyFrom(Duration(seconds=seconds))
    async with grpc.aio.insecure_channel(server.address) as channel:
        error = await refused(RolloutServiceStub(channel).Init(request))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert violations(error) == ["callback.min_ping_interval"]


@pytest.mark.parametrize("name", ["accepted_after", "accepted_before"])
@pytest.mark.parametrize("time", [Timestamp(seconds=2**63 - 1), Timestamp(seconds=-(2**63)), Timestamp(nanos=-1)])
async def test_a_time_that_is_none_is_refused_by_name(server, name, time):
    request = control_pb2.ListRolloutsRequest(**{name: time})
    async with grpc.aio.insecure_channel(server.address) as channel:
        error = await refused(RolloutServiceStub(channel).ListRollouts(request))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert violations(error) == [name]
