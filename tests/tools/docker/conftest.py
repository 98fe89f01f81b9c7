"""Machines of the tests' daemon, and a sandbox."""

import pytest

from osmosis_grpc.tools.docker import DockerConfig, DockerMachine
from tests.docker_daemon import IMAGE


@pytest.fixture
def machine(daemon):
    """Make a machine of the daemon, with more fields of the configuration."""

    def make(**fields):
        return DockerMachine(DockerConfig(**{"server_id": "server-1", "image": IMAGE, "url": daemon} | fields))

    return make


@pytest.fixture
async def box(machine):
    async with machine() as made, made.sandbox("rollout-1") as sandbox:
        yield sandbox
