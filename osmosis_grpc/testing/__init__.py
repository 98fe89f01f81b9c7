"""The public test kit, which runs an agent loop without a server. Use `testing.raw` to test other implementations."""

from osmosis_grpc.network import grpc_variables  # noqa: F401 - must come before anything that imports grpc

# isort: split
from osmosis_grpc.integrations._strands_messages import recorded_samples
from osmosis_grpc.testing.rollouts import collect_rollout, run_rollout
from osmosis_grpc.testing.stream_pair import StreamEnd, stream_pair

__all__ = ["StreamEnd", "collect_rollout", "recorded_samples", "run_rollout", "stream_pair"]
