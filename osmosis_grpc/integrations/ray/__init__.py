"""Agent servers on a Ray cluster. Needs the extra `ray`.

`osmosis-grpc serve --ray` starts the servers, and ray_targets() gives a trainer their addresses.
"""

from osmosis_grpc.integrations.ray.targets import ray_targets

__all__ = ["ray_targets"]
