"""Invariant: whatever bytes come, the answer is OK, INVALID_ARGUMENT, RESOURCE_EXHAUSTED or a status that the RPC
documents; never INTERNAL, UNKNOWN or a crash; and health and a bystander rollout go on afterwards.

Every method of both services and every kind of frame of Attach and Accept, from the descriptors, so
that a new one cannot be forgotten. Random bytes, damaged bytes, unknown fields, valid messages with
hostile values. Several at once make an example. The long part runs 500 examples of each, and
prints how to repeat the one that fails.
"""

import asyncio
import contextlib
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import attach_pb2, control_pb2, services_pb2
from tests.faults.fuzzed import Deployment, annotation
from tests.faults.fuzzed_streams import LOST, Serverly, Trainerly
from tests.faults.messages import hostile

METHODS = {
    (service.name, method.name): method
    for service in services_pb2.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
UNARY = [key for key, method in METHODS.items() if not method.client_streaming]
STREAMS = [key for key, method in METHODS.items() if method.client_streaming]
DOCUMENTED = {
    "Init": {"NOT_FOUND", "ALREADY_EXISTS", "ABORTED"},
    "Cancel": set(),
    "GetRollout": {"NOT_FOUND"},
    "ListRollouts": set(),
    "StreamEvents": {"NOT_FOUND", "OUT_OF_RANGE", "FAILED_PRECONDITION"},
    "GetServerInfo": set(),
    "Drain": set(),
    "Annotate": {"NOT_FOUND", "ALREADY_EXISTS", "FAILED_PRECONDITION"},
    "Attach": {"FAILED_PRECONDITION", "ABORTED", "CANCELLED"},
    "Chat": {"ALREADY_EXISTS", "FAILED_PRECONDITION", "ABORTED"},
    "Complete": {"ABORTED"},
    "AbandonChat": set(),
    "Accept": {"FAILED_PRECONDITION", "ABORTED", "CANCELLED"},
}
"""Beside OK, INVALID_ARGUMENT and RESOURCE_EXHAUSTED. CANCELLED is what the fuzzing itself cut."""
ALWAYS = {"OK", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"}
SINGLY = {code.value[0] for code in grpc.StatusCode} - {
    grpc.StatusCode.UNKNOWN.value[0],
    grpc.StatusCode.INTERNAL.value[0],
}
TRAINER_FRAMES = [field.name for field in attach_pb2.TrainerFrame.DESCRIPTOR.oneofs_by_name["frame"].fields]
SERVER_FRAMES = [field.name for field in attach_pb2.ServerFrame.DESCRIPTOR.oneofs_by_name["frame"].fields]
QUICK, LONG = 12, 500


@pytest.fixture(scope="module")
def deployment():
    built = Deployment()
    built.begin()
    yield built
    built.end()


@pytest.fixture(scope="module")
def trainerly(deployment):
    async def begin():
        return Trainerly(deployment)

    built = deployment.run(begin())
    yield built
    deployment.run(built.raw.__aexit__())


@pytest.fixture(scope="module")
def serverly(deployment):
    async def begin():
        return Serverly(deployment)

    built = deployment.run(begin())
    yield built
    deployment.run(built.raw.__aexit__())


def repeat(test: Any, examples: int) -> None:
    """Run a test of drawn data so often: the same examples each time where there are few."""
    few = examples == QUICK
    settings(
        max_examples=examples,
        deadline=None,
        derandomize=few,
        database=None,
        print_blob=not few,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],
    )(given(st.data())(test))()


EXAMPLES = [
    pytest.param(QUICK, marks=pytest.mark.slow),
    pytest.param(LONG, marks=[pytest.mark.long, pytest.mark.timeout(900)]),
]


def test_every_method_is_tried_and_says_what_it_answers():
    assert {name for _, name in METHODS} == set(DOCUMENTED)
    assert {name for _, name in STREAMS} == {"Attach", "Accept"}


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize(("service", "name"), UNARY)
def test_methods(deployment, service, name, examples):
    method = METHODS[service, name]
    path = f"/{method.containing_service.full_name}/{name}"
    allowed = ALWAYS | DOCUMENTED[name]

    def test(data: Any) -> None:
        drawn = [hostile(_request(deployment, name, method), data.draw) for _ in range(data.draw(st.integers(1, 4)))]
        address = name if name in deployment.addresses else service
        calls = [deployment.call(address, path, one, stream=method.server_streaming) for one in drawn]
        codes = deployment.run(_gathered(calls))
        assert set(codes) <= allowed, (codes, drawn)

    repeat(test, examples)
    deployment.check()


async def _gathered(calls: Any) -> list[str]:
    return await asyncio.gather(*calls)


def _request(deployment: Deployment, name: str, method: Any) -> Any:
    if name == "Init":
        return deployment.request()
    if name == "Chat":
        return deployment.chat()
    if name == "Complete":
        return deployment.outcome()
    if name == "AbandonChat":
        return deployment.abandoned()
    if name == "Annotate":
        return annotation(deployment.run(deployment.accepted()))
    request = getattr(control_pb2, method.input_type.name)()
    for field in ("rollout_id", "page_token", "cursor"):
        if field in request.DESCRIPTOR.fields_by_name:
            setattr(request, field, "r00000001" if field == "rollout_id" else "")
    return request


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("kind", TRAINER_FRAMES)
def test_frames_of_a_trainer(deployment, trainerly, kind, examples):
    _frames(deployment, trainerly, kind, examples, services_pb2.AttachRequest, DOCUMENTED["Attach"])


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("kind", SERVER_FRAMES)
def test_frames_of_an_agent_server(deployment, serverly, kind, examples):
    _frames(deployment, serverly, kind, examples, services_pb2.AcceptRequest, DOCUMENTED["Accept"])


def _frames(deployment: Deployment, side: Any, kind: str, examples: int, request: Any, documented: set[str]) -> None:
    def test(data: Any) -> None:
        drawn = []
        for _ in range(data.draw(st.integers(1, 3))):
            template = request(frames=[deployment.run(side.template(kind))])
            drawn.append(hostile(template, data.draw))
            if kind == "hello":
                deployment.run(side.reopen(drawn[-1]))
            else:
                deployment.run(_sent(side, drawn[-1]))
                deployment.run(side.settle(kind))
            over = side.raw.stream.over
            if side.raw.stream.details == LOST:
                over = None
            assert over is None or over in ALWAYS | documented, (over, side.raw.stream.details, drawn)
            assert side.codes() <= SINGLY, drawn
            assert side.late <= ALWAYS | documented, (side.late, drawn)

    repeat(test, examples)
    deployment.check()


async def _sent(side: Any, data: bytes) -> None:
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # what came before has ended it
        await side.raw.stream.send_bytes(data)
