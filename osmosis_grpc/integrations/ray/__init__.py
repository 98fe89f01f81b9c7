"""Agent servers on a Ray cluster. Needs the extra `ray`.

`osmosis-grpc serve --ray` places them, and ray_targets() says to a trainer where they are.
"""

from osmosis_grpc.integrations.ray.targets import ray_targets

__all__ = ["ray_targets"]
