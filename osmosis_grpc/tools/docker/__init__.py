"""Sandboxes in containers of a Docker daemon. Needs the extra `docker`."""

from osmosis_grpc.tools.containers.sandbox import ContainerSandbox, ContainerSnapshot
from osmosis_grpc.tools.docker.config import DockerConfig
from osmosis_grpc.tools.docker.machine import DockerMachine

__all__ = ["ContainerSandbox", "ContainerSnapshot", "DockerConfig", "DockerMachine"]
