"""Environments of other libraries as agents: their tasks, their episodes, and their rewards.

`serve --env KIND:NAME` hosts an environment, and `-d env:KIND:NAME` reads its tasks. In Python, pass the result of
open_environment() wherever an agent loop is expected, or to task_requests() to get the requests for a trainer. For an
environment of your own, subclass Environment.
"""

from osmosis_grpc.environments.environment import Environment, SeededEnvironment
from osmosis_grpc.environments.episode import Episode
from osmosis_grpc.environments.loading import KINDS, open_environment
from osmosis_grpc.environments.port import EnvironmentFault, EnvironmentTask, Score
from osmosis_grpc.environments.spec import EnvironmentSpec
from osmosis_grpc.environments.tasks import task_requests, task_rows

__all__ = [
    "KINDS",
    "Environment",
    "EnvironmentFault",
    "EnvironmentSpec",
    "EnvironmentTask",
    "Episode",
    "Score",
    "SeededEnvironment",
    "open_environment",
    "task_requests",
    "task_rows",
]
