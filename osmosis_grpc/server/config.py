"""The configuration of an agent server."""

from collections.abc import Sequence
from dataclasses import dataclass

from osmosis_grpc.engine import EngineConfig
from osmosis_grpc.protocol.wire.rollout import MAX_METADATA_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig(EngineConfig):
    """The configuration of the engine, and the fields that only a server has. Sizes are in bytes."""

    allow_targets: Sequence[str] = ()
    """Callback addresses that are allowed in addition to the addresses that network/target_policy.py allows."""
    reflection: bool = True
    """Whether the server describes its services to callers, as gRPC server reflection."""
    max_metadata_bytes: int = MAX_METADATA_BYTES
    """The largest metadata of a rollout."""
    disk_budget: int = 10 * 1024**3
    """The largest size of the journal. When the journal is larger, the oldest settled rollouts are dropped."""
    max_connections: int | None = None
    """The most connections at once, of gRPC and of HTTP each. None: a quarter of the files that the process may open,
    at most 4,096."""
    max_connection_age: float | None = None
    """A gRPC connection that is older than this many seconds gets GOAWAY, so that load balancers can move it."""
    otel: bool = False
    """Whether the server makes OpenTelemetry spans, with the process's tracer provider. It needs the extra `otel`."""
    otel_content: bool = False
    """Whether these spans have the messages of chats, and the arguments and results of tools."""
