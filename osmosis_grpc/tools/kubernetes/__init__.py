"""Sandboxes in pods of a Kubernetes cluster. Needs the extra `kubernetes`."""

from osmosis_grpc.tools.containers.sandbox import ContainerSandbox, ContainerSnapshot
from osmosis_grpc.tools.kubernetes.cluster import KubernetesCluster
from osmosis_grpc.tools.kubernetes.config import KubernetesConfig

__all__ = ["ContainerSandbox", "ContainerSnapshot", "KubernetesCluster", "KubernetesConfig"]
