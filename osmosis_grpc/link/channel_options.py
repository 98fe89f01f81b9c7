"""Channel options, set on purpose, the same for every channel and server of this project."""

from collections.abc import Sequence
from importlib import resources

MIB = 1024 * 1024
MAX_MESSAGE_BYTES = 64 * MIB
MAX_REPLY_BYTES = 32 * MIB

Options = Sequence[tuple[str, int | str]]

_BOTH: dict[str, int | str] = {
    "grpc.max_send_message_length": MAX_MESSAGE_BYTES,
    "grpc.max_receive_message_length": MAX_MESSAGE_BYTES,
    # A peer that died silently is noticed after 30 s; client keepalive is off by default, and
    # without the third of these a ping is waited for a minute.
    "grpc.keepalive_time_ms": 20_000,
    "grpc.keepalive_timeout_ms": 10_000,
    "grpc.http2.ping_timeout_ms": 10_000,
    "grpc.keepalive_permit_without_calls": 1,
    "grpc.http2.max_pings_without_data": 0,
}

_SERVER: dict[str, int | str] = _BOTH | {
    # The key whose name has `recv` in it is ignored; without this one, long silent chats are
    # cut with too_many_pings.
    "grpc.http2.min_ping_interval_without_data_ms": 10_000,
    "grpc.http2.max_ping_strikes": 2,
    "grpc.max_concurrent_streams": 1024,
    # This would refuse streams that the peer may open: those that are over on the wire still
    # count until the server has let go of them, and a caller of 2,000 at once sees half of them fail.
    "grpc.http.overload_protection": 0,
    # From 1,000 calls on that the event loop has not seen yet, grpc would cancel some at random.
    "grpc.server.max_pending_requests": 16_384,
    "grpc.server.max_pending_requests_hard_limit": 32_768,
    "grpc.server_handshake_timeout_ms": 10_000,
    # Two servers on one port are a mistake and not load balancing.
    "grpc.so_reuseport": 0,
}

CLIENT_DEFAULTS: dict[str, int | str] = _BOTH | {
    "grpc.initial_reconnect_backoff_ms": 500,
    "grpc.min_reconnect_backoff_ms": 500,
    "grpc.max_reconnect_backoff_ms": 5_000,
    "grpc.enable_http_proxy": 0,
}


def server_options() -> Options:
    """For grpc.aio.server."""
    return tuple(_SERVER.items())


def client_options(**more: int | str) -> Options:
    """For a channel that is dialled on purpose: retries what is idempotent, per service_config.json.

    `more` are further options, their dots written as double underscores.
    """
    extra = {name.replace("__", "."): value for name, value in more.items()}
    return tuple((CLIENT_DEFAULTS | {"grpc.service_config": service_config()} | extra).items())


def callback_options(authority: str) -> Options:
    """For a channel to a trainer. The engine asks again by itself, so the channel does not."""
    own: dict[str, int | str] = {
        "grpc.enable_retries": 0,
        "grpc.default_authority": authority,
        "grpc.max_receive_message_length": MAX_REPLY_BYTES,
    }
    return tuple((CLIENT_DEFAULTS | own).items())


def service_config() -> str:
    """The retry policy that ships with the project, as JSON text."""
    return resources.files("osmosis_grpc.link").joinpath("service_config.json").read_text()
