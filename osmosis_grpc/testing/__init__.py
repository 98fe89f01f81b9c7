"""The public test kit: run an agent loop without a server, and an agent loop to run."""

from osmosis_grpc.testing.rollouts import collect_rollout, run_rollout

__all__ = ["collect_rollout", "run_rollout"]
