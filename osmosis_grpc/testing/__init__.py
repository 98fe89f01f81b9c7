"""The public test kit: run an agent loop without a server. `osmosis_grpc.testing.raw` tests other implementations."""

from osmosis_grpc.testing.rollouts import collect_rollout, run_rollout

__all__ = ["collect_rollout", "run_rollout"]
