"""Equal specs join, however they are written. Another spec is refused, and the refusal names the fields that differ."""

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from osmosis_grpc.network.client_calls import error_of
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import message_pb2, outcome_pb2, rollout_pb2, tokens_pb2
from osmosis_grpc.protocol._gen.osmosis.rollout.v1.services_pb2_grpc import RolloutServiceStub
from osmosis_grpc.protocol.errors import AlreadyExists, CallError
from osmosis_grpc.protocol.wire.attach import refused
from osmosis_grpc.testing.raw import RawTrainer
from osmosis_grpc.testing.raw.trainer_frames import init
from tests.server.attached import Talk, plays

TURNS = '{"turns": 1}'


def user(text, extra=""):
    return message_pb2.Message(role="user", text=text, extra_json=extra)


async def waits(ctx):
    await ctx.chat(ctx.request.messages)
    return ctx.complete([])


def spec(**fields):
    return rollout_pb2.RolloutSpec(**({"messages": [user("hello")], "metadata_json": TURNS} | fields))


class ByRpc:
    """Sends Inits as calls, with a callback that nobody answers."""

    def __init__(self, stub):
        self._stub = stub

    async def __call__(self, rollout_id, wanted, **fields):
        callback = rollout_pb2.Callback(target="127.0.0.1:9")
        request = rollout_pb2.InitRequest(rollout_id=rollout_id, spec=wanted, callback=callback, **fields)
        try:
            return (await self._stub.Init(request)).created
        except grpc.aio.AioRpcError as error:
            return error_of(error)


class ByFrame:
    """Sends Inits as frames."""

    def __init__(self, trainer):
        self._trainer = trainer

    async def __call__(self, rollout_id, wanted, **fields):
        frame = init(rollout_id, **fields)
        frame.init.spec.CopyFrom(wanted)
        await self._trainer.send(frame)
        reply = await self._trainer.stream.next("init_reply")
        return reply.response.created if reply.WhichOneof("result") == "response" else refused(reply.status)


@pytest.fixture(params=["rpc", "frame"])
async def ask(request, serve, stack):
    """Makes a function that sends an Init to a server with these agent loops. It returns `created` or the error."""

    async def make(*names):
        server = await serve(*(plays(waits, name=name) for name in names))
        if request.param == "frame":
            trainer = await stack.enter_async_context(RawTrainer(server.address))
            await trainer.attach()
            return ByFrame(trainer)
        return ByRpc(RolloutServiceStub(await stack.enter_async_context(grpc.aio.insecure_channel(server.address))))

    return make


ONE = {
    "agent_loop": "talk",
    "messages": [user("hello", '{"n": [1, 2.5], "a": {"x": 1, "y": null}}')],
    "sampling": message_pb2.SamplingParams(temperature=0.5, extra_json='{"min_p": 1}'),
    "max_turns": 3,
    "max_tokens_total": 100,
    "metadata_json": '{"turns": 1, "a": [true, 1]}',
    "label": "5",
    "group": outcome_pb2.Group(id="g", index=1, size=4),
    "priority": 2,
    "agent_timeout": Duration(seconds=100),
    "tool_server_url": "http://tools",
    "idempotency_key": "key",
    "evaluation": True,
}
OTHERS = {
    "agent_loop": ["walk"],
    "messages": [
        [],
        [user("hello")],
        [*ONE["messages"], user("more")],
        [user("hello", '{"n": [1, 2.5], "a": {"x": 1}}')],
        [user("hello", '{"n": [2.5, 1], "a": {"x": 1, "y": null}}')],
        [user("hello", '{"n": [true, 2.5], "a": {"x": 1, "y": null}}')],
        [user("hello", '{"n": ["1", 2.5], "a": {"x": 1, "y": null}}')],
    ],
    "sampling": [
        message_pb2.SamplingParams(),
        message_pb2.SamplingParams(temperature=0.25, extra_json='{"min_p": 1}'),
        message_pb2.SamplingParams(temperature=0.5, extra_json='{"min_p": 1.0000001}'),
        message_pb2.SamplingParams(temperature=0.5, seed=1, extra_json='{"min_p": 1}'),
    ],
    "max_turns": [4, 10, 0],
    "max_tokens_total": [101, 8192, 0],
    "metadata_json": ["", TURNS, '{"turns": 1, "a": [1, true]}', '{"turns": 1, "a": [1, 1]}'],
    "label": ["", "6", None],
    "group": [None, *(outcome_pb2.Group(id=i, index=n, size=s) for i, n, s in [("h", 1, 4), ("g", 2, 4), ("g", 1, 5)])],
    "priority": [-2, 0],
    "agent_timeout": [None, Duration(seconds=100, nanos=1000), Duration(seconds=101)],
    "grader_timeout": [Duration(seconds=1)],
    "tool_server_url": ["", "http://tools/"],
    "idempotency_key": ["", "another"],
    "evaluation": [False],
    "pin_sampling": [True],
    "fork": [rollout_pb2.Fork(rollout_id="o", chat=tokens_pb2.ChatRef(sample="main", chat_number=1))],
}


def test_every_field_of_the_spec_is_compared():
    assert OTHERS.keys() == set(rollout_pb2.RolloutSpec.DESCRIPTOR.fields_by_name)


async def test_another_spec_is_refused_and_the_refusal_names_the_field(ask):
    send = await ask("talk", "walk")
    assert await send("r", spec(**ONE)) is True
    for field, values in OTHERS.items():
        for value in values:
            error = await send("r", spec(**(ONE | {field: value})))
            assert isinstance(error, AlreadyExists), (field, value)
            assert (error.fields, error.reason) == ((f"spec.{field}",), "SPEC_DIFFERS"), value
            assert (error.rollout_id, error.attempt) == ("r", 1)
            assert f"spec.{field}" in str(error)
    assert await send("r", spec(**ONE)) is False, "the refusals changed nothing"


async def test_a_refusal_names_all_fields_that_differ(ask):
    send = await ask("talk", "walk")
    assert await send("r", spec(**ONE)) is True
    changed = ONE | {field: values[0] for field, values in OTHERS.items()}
    error = await send("r", spec(**changed))
    assert sorted(error.fields) == sorted(f"spec.{field}" for field in OTHERS)


PLAIN = {"metadata_json": ""}
EQUAL = [
    ({}, {"agent_loop": "talk"}),
    ({}, {"max_turns": 10}),
    ({}, {"max_tokens_total": 8192}),
    ({}, {"sampling": message_pb2.SamplingParams()}),
    ({}, {"sampling": message_pb2.SamplingParams(extra_json=" { } ")}),
    ({}, {"priority": 0, "evaluation": False, "tool_server_url": "", "idempotency_key": ""}),
    (PLAIN, {"metadata_json": "{}"}),
    (PLAIN, {"metadata_json": "\n{ }\t"}),
    ({"metadata_json": '{"a":1,"b":[1.0,{"c":1e0}]}'}, {"metadata_json": '{ "b" : [1, {"c": 1.00}], "a": 1E+0 }'}),
    ({"metadata_json": '{"a": 100, "b": -0.0}'}, {"metadata_json": '{"a": 1e2, "b": 0}'}),
    ({"metadata_json": '{"a": "\\u00e9"}'}, {"metadata_json": '{"a": "é"}'}),
    (
        {"messages": [user("hello", '{"vendor":{"x":1,"y":[2]}}')]},
        {"messages": [user("hello", '{ "vendor": {"y": [2.0], "x": 1e0} }')]},
    ),
    (
        {"sampling": message_pb2.SamplingParams(extra_json='{"min_p":1,"top_k":40}')},
        {"sampling": message_pb2.SamplingParams(extra_json='{"top_k": 4e1, "min_p": 1.0}')},
    ),
    ({"agent_timeout": Duration(seconds=1)}, {"agent_timeout": Duration(seconds=1, nanos=0)}),
]


async def test_equal_specs_join(ask):
    send = await ask("talk")
    for number, (one, other) in enumerate(EQUAL):
        for first, second in ((one, other), (other, one)):
            name = f"r{number}{first is one}"
            assert await send(name, spec(**first)) is True
            assert await send(name, spec(**second)) is False, (first, second)
            assert await send(name, spec(**second), attempt=1) is False, "attempt 0 is read as 1"


async def test_attempt_callback_and_trace_are_beside_the_spec(serve, stack):
    server = await serve(Talk())
    stub = RolloutServiceStub(await stack.enter_async_context(grpc.aio.insecure_channel(server.address)))
    traces = [f"00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333{number}-01" for number in (1, 2)]
    answers = [
        await stub.Init(
            rollout_pb2.InitRequest(
                rollout_id="r",
                spec=spec(),
                callback=rollout_pb2.Callback(target=f"127.0.0.1:{port}"),
                trace_context=rollout_pb2.TraceContext(traceparent=trace),
            )
        )
        for port, trace in zip((9, 10), traces, strict=True)
    ]
    assert [answer.created for answer in answers] == [True, False]


async def test_a_fork_without_a_chat_is_refused_by_name(ask):
    send = await ask("talk")
    error = await send("r", spec(fork=rollout_pb2.Fork(rollout_id="other", attempt=1)))
    assert isinstance(error, CallError)
    assert (error.code, error.reason, error.violations[0][0]) == (3, "INVALID_FIELD", "spec.fork.chat.sample")
    error = await send("r", spec(grader_timeout=Duration(seconds=1)))
    assert error.violations[0][0] == "spec.grader_timeout"
