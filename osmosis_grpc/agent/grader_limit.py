"""The time limit of a grader, for agents without a grader."""

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import RolloutRequest


def refuse_grader_timeout(name: str, request: RolloutRequest) -> None:
    """Raise InvalidArgument if a request for an agent without a grader has a grader's time limit."""
    if request.grader_timeout is not None:
        raise InvalidArgument("spec.grader_timeout", f"the agent {name} has no grader")
