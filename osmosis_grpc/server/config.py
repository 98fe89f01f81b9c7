"""The configuration of an agent server."""

from collections.abc import Sequence
from dataclasses import dataclass

from osmosis_grpc.engine import EngineConfig
from osmosis_grpc.protocol.wire.rollout import MAX_METADATA_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig(EngineConfig):
    """The configuration of the engine, and the fields that only a server has. Sizes are in bytes."""

    allow_targets: Sequence[str] = ()
    """Callback addresses to allow in addition to those that network/target_policy.py allows by default."""
    reflection: bool = True
    """Whether to offer gRPC server reflection."""
    max_metadata_bytes: int = MAX_METADATA_BYTES
    """The largest metadata of a rollout."""
    disk_budget: int = 10 * 1024**3
    """The largest size of the journal. When the journal is larger, the oldest settled rollouts are dropped."""
    max_connections: int | None = None
    """The most gRPC connections at once, and the most HTTP connections. None: a quarter of the files that the process
    may open, at most 4,096."""
    max_connection_age: float | None = None
    """A gRPC connection that is older than this many seconds gets GOAWAY, so that load balancers can move it."""
    otel: bool = False
    """Whether to send OpenTelemetry spans to the process's tracer provider. Needs the extra `otel`."""
    otel_content: bool = False
    """Whether the spans contain the messages of chats and the arguments and results of tools."""
