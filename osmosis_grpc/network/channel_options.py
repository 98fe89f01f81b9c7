"""The options of all channels and servers of this project, and how many connections a server accepts at once."""

from collections.abc import Sequence
from importlib import resources

LEAST, MOST = 16, 4096
"""The lowest and the highest default."""
_SHARE = 4
"""The default for each port is this fraction of the files that the process may open."""


def default_connections() -> int:
    """Return how many connections a server accepts at once, from the limit of open files (RLIMIT_NOFILE)."""
    return max(LEAST, min(MOST, _files() // _SHARE))


def agent_connections() -> int:
    """Return how many connections of agents a port accepts at once: the same fraction, without a maximum."""
    return max(LEAST, _files() // _SHARE)


def _files() -> int:
    most = MOST * _SHARE
    try:
        import resource
    except ModuleNotFoundError:  # not on Unix
        return most
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return most if files == resource.RLIM_INFINITY else files


MIB = 1024 * 1024
MAX_MESSAGE_BYTES = 64 * MIB
MAX_REPLY_BYTES = 32 * MIB
MIN_PING_INTERVAL = 10.0
"""Our servers accept an HTTP/2 ping every 10 seconds."""
PING_INTERVAL = 20.0
"""The seconds of silence after which a client pings a peer that accepts it."""
MAX_AGE_GRACE = 10.0
"""A call may last this many seconds after the GOAWAY of its old connection. A longer one is ended and made again."""
MAX_INT32 = 2**31 - 1
"""The largest value of a channel option."""

Options = Sequence[tuple[str, int | str]]

_BOTH: dict[str, int | str] = {
    "grpc.max_send_message_length": MAX_MESSAGE_BYTES,
    "grpc.max_receive_message_length": MAX_MESSAGE_BYTES,
    # The keepalive options detect a dead peer after 30 s. gRPC's client keepalive is off by default. Without
    # ping_timeout_ms a ping waits for a minute.
    "grpc.keepalive_time_ms": 20_000,
    "grpc.keepalive_timeout_ms": 10_000,
    "grpc.http2.ping_timeout_ms": 10_000,
    "grpc.keepalive_permit_without_calls": 1,
    "grpc.http2.max_pings_without_data": 0,
}

_SERVER: dict[str, int | str] = _BOTH | {
    # Without this option gRPC ends long silent chats with too_many_pings. gRPC ignores the similar option with `recv`
    # in its name.
    "grpc.http2.min_ping_interval_without_data_ms": int(MIN_PING_INTERVAL * 1000),
    "grpc.http2.max_ping_strikes": 2,
    "grpc.max_concurrent_streams": 1024,
    # The protection also counts ended streams until the server has freed them. So it refuses streams that the peer is
    # allowed to open: of 2,000 calls at once, half would fail.
    "grpc.http.overload_protection": 0,
    # By default, gRPC cancels calls at random when more than 1,000 calls wait for the event loop.
    "grpc.server.max_pending_requests": 16_384,
    "grpc.server.max_pending_requests_hard_limit": 32_768,
    "grpc.server_handshake_timeout_ms": 10_000,
    # A client without a call connects again when it needs to.
    "grpc.max_connection_idle_ms": 300_000,
    # In this project, two servers on one port are a mistake and not load balancing.
    "grpc.so_reuseport": 0,
}

CLIENT_DEFAULTS: dict[str, int | str] = _BOTH | {
    # Stock grpc-go servers answer more pings, and pings without a call, with GOAWAY.
    "grpc.keepalive_time_ms": 300_000,
    "grpc.keepalive_permit_without_calls": 0,
    "grpc.initial_reconnect_backoff_ms": 500,
    "grpc.min_reconnect_backoff_ms": 500,
    "grpc.max_reconnect_backoff_ms": 5_000,
    "grpc.enable_http_proxy": 0,
}


def server_options(connections: int = MOST, max_age: float | None = None) -> Options:
    """Return the options of a server. gRPC closes further connections at once, before it reads from them.

    A connection that is older than `max_age` seconds gets GOAWAY, and ends MAX_AGE_GRACE seconds later. gRPC shortens
    or lengthens each age by a tenth at random.
    """
    own: dict[str, int | str] = {"grpc.max_allowed_incoming_connections": connections}
    if max_age is not None:
        own["grpc.max_connection_age_ms"] = int(max_age * 1000)
        own["grpc.max_connection_age_grace_ms"] = int(min(MAX_AGE_GRACE, max_age) * 1000)
    return tuple((_SERVER | own).items())


def client_options(**more: int | str) -> Options:
    """Return the options of a client's channel. The channel retries idempotent calls as service_config.json says.

    `more` has further options. A double underscore in a name stands for a dot.
    """
    extra = {name.replace("__", "."): value for name, value in more.items()}
    return tuple((CLIENT_DEFAULTS | {"grpc.service_config": service_config()} | extra).items())


def callback_options(authority: str, min_ping_interval: float | None) -> Options:
    """Return the options of a channel to a trainer. The channel does not retry calls, because the engine does.

    `min_ping_interval` is the shortest interval, in seconds, between two pings that the trainer accepts; None if it is
    unknown. The channel pings once in PING_INTERVAL at most, and never more often than the trainer accepts.
    """
    own: dict[str, int | str] = {
        "grpc.enable_retries": 0,
        "grpc.default_authority": authority,
        "grpc.max_receive_message_length": MAX_REPLY_BYTES,
    }
    if min_ping_interval is not None:
        own["grpc.keepalive_time_ms"] = int(min(max(PING_INTERVAL, min_ping_interval) * 1000, MAX_INT32))
    return tuple((CLIENT_DEFAULTS | own).items())


def service_config() -> str:
    """Return the retry policy as JSON text."""
    return resources.files("osmosis_grpc.network").joinpath("service_config.json").read_text()
