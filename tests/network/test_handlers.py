"""What a handler raises arrives as the same exception, over a real socket, for all sixteen codes."""

import asyncio
import logging

import grpc
import pytest

from osmosis_grpc.network.channel_options import callback_options, client_options, server_options, service_config
from osmosis_grpc.network.client_calls import call, error_of
from osmosis_grpc.network.handlers import REQUEST_ID_KEY, Registrar
from osmosis_grpc.protocol import errors
from osmosis_grpc.protocol.errors import CallError
from osmosis_grpc.protocol.wire.status import CLASSES

SAMPLES = {
    errors.InvalidArgument: errors.InvalidArgument("a.b", "is bad", [("c", "too")]),
    errors.NotFound: errors.NotFound("no such rollout", kind="rollout", name="r"),
    errors.AlreadyExists: errors.AlreadyExists("taken", rollout_id="r", attempt=3),
    errors.Aborted: errors.Aborted("newer", rollout_id="r", attempt=4),
    errors.FailedPrecondition: errors.FailedPrecondition("not so", kind="JOURNAL", subject="j"),
    errors.OutOfRange: errors.OutOfRange("gone", first_event_number=7, first_cursor="j.9"),
    errors.ResourceExhausted: errors.ResourceExhausted("full", retry_after=1.5),
    errors.Unavailable: errors.Unavailable("draining", retry_after=5.0),
}


def sample(kind):
    return SAMPLES.get(kind) or kind(f"a {kind.__name__}, mit Ümläuten")


def identity(data):
    return data


class Handlers(grpc.GenericRpcHandler):
    """/x/unary and /x/stream raise the exception that the request names; /x/echo answers."""

    def service(self, details):
        def raise_it(request):
            if request == b"bug":
                raise RuntimeError("a secret of the server's")
            raise sample(next(kind for kind in CLASSES.values() if kind.__name__.encode() == request))

        async def unary(request, context):
            raise_it(request)

        async def stream(request, context):
            yield b"one"
            raise_it(request)

        async def echo(request, context):
            return request

        name = details.method.rpartition("/")[2]
        if name == "stream":
            return grpc.unary_stream_rpc_method_handler(stream, identity, identity)
        return grpc.unary_unary_rpc_method_handler({"unary": unary, "echo": echo}[name], identity, identity)


@pytest.fixture
async def channel():
    server = grpc.aio.server(options=server_options())
    Registrar(server).add_generic_rpc_handlers((Handlers(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=client_options()) as channel:
        yield channel
    await server.stop(None)


def facts(error):
    return {**vars(error), "text": str(error), "kind": type(error)}


@pytest.mark.parametrize("code", range(1, 17))
async def test_every_code_there_and_back(channel, code):
    kind = CLASSES[code]
    with pytest.raises(CallError) as caught:
        await call(channel.unary_unary("/x/unary"), kind.__name__.encode(), timeout=5)
    assert facts(caught.value) == facts(sample(kind)) | {"reason": caught.value.reason}
    assert caught.value.reason, "P15: every refused call has a reason"
    stream = channel.unary_stream("/x/stream")(kind.__name__.encode())
    assert await stream.read() == b"one"
    with pytest.raises(grpc.aio.AioRpcError) as broken:
        await stream.read()
    assert facts(error_of(broken.value)) == facts(caught.value)
    assert broken.value.code().value[0] == code


async def test_resource_exhausted_has_a_pushback_trailer(channel):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channel.unary_unary("/x/unary")(b"ResourceExhausted")
    assert dict(iter(caught.value.trailing_metadata()))["grpc-retry-pushback-ms"] == "1500"


async def test_a_bug_is_internal_and_tells_nothing(channel, caplog):
    caplog.set_level(logging.ERROR)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channel.unary_unary("/x/unary")(b"bug", metadata=((REQUEST_ID_KEY, "my-request"),))
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in caught.value.details()
    assert "my-request" in caught.value.details()
    assert dict(iter(caught.value.trailing_metadata()))[REQUEST_ID_KEY] == "my-request"
    assert "a secret of the server's" in caplog.text


async def test_every_error_has_a_request_id(channel):
    assert await channel.unary_unary("/x/echo")(b"x") == b"x"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channel.unary_unary("/x/unary")(b"NotFound")
    assert len(dict(iter(caught.value.trailing_metadata()))[REQUEST_ID_KEY]) == 32


@pytest.mark.slow
async def test_more_calls_at_once_than_streams_are_answered(channel):
    """2,000 on a channel whose peer allows 1,024 at a time: the rest wait their turn, and none fails."""
    for _ in range(2):
        echo = channel.unary_unary("/x/echo")
        assert set(await asyncio.gather(*(echo(b"x", timeout=60) for _ in range(2000)))) == {b"x"}


def test_options_are_set_on_purpose():
    server, client = dict(server_options()), dict(client_options())
    assert server["grpc.http2.min_ping_interval_without_data_ms"] == 10_000
    assert not any("min_recv_ping" in name for name in server)
    assert server["grpc.so_reuseport"] == 0
    assert server["grpc.max_concurrent_streams"] == 1024
    assert server["grpc.server_handshake_timeout_ms"] == 10_000
    for options in (client, dict(callback_options("a:1", None))):
        assert options["grpc.enable_http_proxy"] == 0
        assert options["grpc.max_reconnect_backoff_ms"] == 5_000
        assert options["grpc.keepalive_time_ms"] == 300_000, "stock grpc-go servers answer more pings with GOAWAY"
        assert options["grpc.keepalive_permit_without_calls"] == 0


@pytest.mark.parametrize(
    ("permitted", "interval"), [(None, 300), (10.0, 20), (60.0, 60), (900.0, 900), (1e9, 2147483.647)]
)
def test_a_trainer_gets_only_the_pings_that_it_permits(permitted, interval):
    assert dict(callback_options("a:1", permitted))["grpc.keepalive_time_ms"] == interval * 1000


def test_only_what_is_idempotent_is_retried_by_the_channel():
    assert '"Chat"' not in service_config(), "only what is idempotent at the channel is retried by it"
